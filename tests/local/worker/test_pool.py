"""Children of a pool: real processes and real signals, with the models of tests/models/wild."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from pool_lab import PATIENCE_S, SEEN, PoolLab, groups_of, request_for, values

from mops.child.channel import Running, Step
from mops.errors import ClusterError
from mops.study.groups import Group
from mops.study.ids_and_seeds import param_id, short_id
from mops.task import TaskResult
from mops.worker.child_process import ChildProcess
from mops.worker.child_starter import ChildStarter
from mops.worker.pool import Pool
from mops.worker.results import held_bytes
from mops.worker.task_progress import TaskProgress
from processes import alive, descriptors
from waiting import until

WARM_CHILDREN = True


def test_each_simulation_starts_in_its_working_folder(lab: PoolLab) -> None:
    code = "import os\n\ndef run(p, s):\n    n = len(os.listdir())\n    os.chdir('/')\n    return {'n': n}\n"
    result = lab.run(lab.pool(code), [{"a": 1}], n_replicates=3)
    assert values(result, "n") == {(0, i): [1] for i in range(3)}


@pytest.mark.usefixtures("real_children")
def test_output_of_every_kind_reaches_the_result(lab: PoolLab) -> None:
    code = (
        "import os, subprocess, sys\n\ndef run(p, s):\n    print('by print')\n    os.write(1, b'by write\\n')\n"
        "    subprocess.run(['echo', 'by another'], check=True)\n    print('an error', file=sys.stderr)\n"
        "    os.write(2, b'error by write\\n')\n    return {'x': 1}\n"
    )
    result = lab.run(lab.pool(code), [{"a": 1}])
    assert result.done == {0}
    assert sorted(result.prints.split("\n")) == [
        "",
        "an error",
        "by another",
        "by print",
        "by write",
        "error by write",
        f"group 0 ({short_id(param_id({'a': 1}))}) replicate 0 printed:",
    ]


def test_printed_text_names_its_simulation_or_target(lab: PoolLab) -> None:
    code = (
        "import sys\n\nprint('imported')\n\ndef run(p, s):\n    if p['a'] != 2:\n        print('set', p['a'])\n"
        "        print('an error', file=sys.stderr)\n        print('no end', end='')\n    return {'x': 1}\n\n"
        "def loss(p, replicates):\n    print('loss', p['a'])\n    return 1.0\n"
    )
    sets = [{"a": 1}, {"a": 2}]
    prints = lab.run(lab.pool(code, targets=("model:loss",)), sets).prints
    first, second = (short_id(param_id(params)) for params in sets)
    assert prints.splitlines() == [
        "imported",
        f"group 0 ({first}) replicate 0 printed:",
        "set 1",
        "an error",
        "no end",
        f"group 0 ({first}) target model:loss printed:",
        "loss 1",
        f"group 1 ({second}) target model:loss printed:",
        "loss 2",
    ]


def test_the_end_of_a_long_output_is_kept_with_a_note(lab: PoolLab) -> None:
    code = "def run(p, s):\n    print('x' * 500_000)\n    print('the end')\n    return {'x': 1}\n"
    prints = lab.run(lab.pool(code), [{"a": 1}]).prints
    assert "bytes of output left out" in prints.split("\n")[0]
    assert prints.endswith("the end\n")
    assert len(prints) < 70_000


def test_standard_input_is_empty(lab: PoolLab) -> None:
    code = "import sys\n\ndef run(p, s):\n    return {'read': sys.stdin.read()}\n"
    assert values(lab.run(lab.pool(code), [{"a": 1}]), "read") == {(0, 0): [""]}


@pytest.mark.parametrize("way", ["endless_holding_gil", "endless_ignoring_sigterm"])
def test_a_simulation_over_its_time_is_killed_and_its_line_reported(lab: PoolLab, way: str) -> None:
    result = lab.nasty(way, "good", timeout_s=3.0)
    (failure,) = result.failures
    assert (failure.group, failure.reason, failure.attempts) == (0, "timeout", 1)
    assert "MODELOPS_JOB_SIM_TIMEOUT" in failure.message
    assert f"in {way}" in failure.traceback
    assert result.done == {0, 1}


def test_each_simulation_has_its_own_seeded_generators(lab: PoolLab) -> None:
    code = (
        "import random\nimport numpy as np\n\ndef run(p, s):\n"
        "    drawn = [random.gauss(0, 1), np.random.standard_normal()]  # each keeps a second one for the next call\n"
        "    return {'drawn': drawn}\n"
    )
    pool = lab.pool(code)
    seeds = (1, 2**32, 2**64 - 1)
    groups = tuple(Group(i, str(i), {"a": i}, (seed,)) for i, seed in enumerate(seeds))
    there = values(pool.run(request_for(pool.context, groups)), "drawn")
    back = values(pool.run(request_for(pool.context, groups[::-1])), "drawn")
    assert there == back
    assert len({tuple(drawn) for drawn in there.values()}) == 3


@pytest.mark.usefixtures("real_children")
def test_a_child_has_thread_limits_and_the_kernel_kills_it_first(lab: PoolLab) -> None:
    names = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS", "PYTHONHASHSEED"
    code = (
        f"import os\n\ndef run(p, s):\n    found = [os.environ[name] for name in {names!r}]\n"
        "    return {'found': found + [open('/proc/self/oom_score_adj').read().strip()]}\n"
    )
    result = lab.run(lab.pool(code, threads=3), [{"a": 1}])
    assert values(result, "found") == {(0, 0): ["3", "3", "3", "3", "0", "1000"]}


@pytest.mark.usefixtures("real_children")
def test_subprocesses_of_a_model_inherit_no_descriptor_of_mops(lab: PoolLab) -> None:
    code = (
        "import os, subprocess\n\ndef run(p, s):\n"
        "    listed = subprocess.run(['ls', '-l', '/proc/self/fd'], capture_output=True, text=True, close_fds=False)\n"
        "    mine = subprocess.run(['ls', '-l', f'/proc/{os.getpid()}/fd'], capture_output=True, text=True)\n"
        "    return {'fds': [mine.stdout, listed.stdout]}\n"
    )
    mine, listed = values(lab.run(lab.pool(code), [{"a": 1}]), "fds")[0, 0]
    assert "socket" in mine
    assert "mops-progress" in mine
    assert "socket" not in listed
    assert "mops" not in listed


@pytest.mark.parametrize("budget", [{"seconds": 0.0}, {"bytes": 1}])
def test_a_task_over_its_budget_ends_after_a_whole_group(lab: PoolLab, budget: dict[str, Any]) -> None:
    result = lab.run(lab.pool("def run(p, s):\n    return {'x': s}\n"), [{"a": i} for i in range(3)], 2, **budget)
    assert result.done == {0}
    assert sorted(values(result, "x")) == [(0, 0), (0, 1)]


HELD = """
import time
from pathlib import Path
from mops.child.task_run import HANDOVER_SECONDS

def run(p, s):
    (HERE / f"started-{p['a']}").touch()
    while not (HERE / "go").exists() and p["a"]:
        time.sleep(0.01)
    time.sleep(HANDOVER_SECONDS)  # as long as a child keeps what is finished
    return {"x": p["a"]}
"""


def test_a_step_of_the_next_task_is_not_taken_for_one_of_the_last_task(lab: PoolLab) -> None:
    """Regression: a heartbeat between two tasks of a child looked for the new step in the old task."""
    pool = lab.pool("def run(p, s):\n    return {'x': s}\n")
    lab.run(pool, [{"a": 1}])
    (child,) = pool.slots.children()
    old, new = (TaskProgress(request_for(pool.context, groups_of([{"a": i} for i in range(n)], 1))) for n in (1, 2))

    class Page:
        def running(self) -> Running:
            child._progress = new  # the next task has begun meanwhile
            return Running(Step(1, 0), 0.0)

    child._progress, child._page, page = old, Page(), child._page
    try:
        assert pool.running() == []
        assert [step.group for step in pool.running()] == [1]
    finally:
        child._page, child._progress = page, None


def stopped(lab: PoolLab, grace_s: float, *, go: bool) -> TaskResult:
    pool = lab.pool(HELD)
    got: list[TaskResult] = []
    thread = threading.Thread(target=lambda: got.append(lab.run(pool, [{"a": i} for i in range(3)])))
    thread.start()
    until((lab.folder / "started-1").exists)
    assert [(step.group, step.replicate) for step in pool.running()] == [(1, 0)]
    pool.stop(grace_s)
    if go:
        (lab.folder / "go").touch()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return got[0]


def test_a_stop_lets_the_running_simulation_finish_and_starts_no_other(lab: PoolLab) -> None:
    assert stopped(lab, 600.0, go=True).done == {0, 1}
    assert not (lab.folder / "started-2").exists()


def test_a_stop_without_grace_records_no_failure_and_loses_no_finished_group(lab: PoolLab) -> None:
    result = stopped(lab, 0.0, go=False)
    assert (result.done, result.failures) == ({0}, [])
    assert values(result, "x") == {(0, 0): [0]}


def test_a_stop_kills_a_simulation_in_c_code_after_the_grace_period(lab: PoolLab) -> None:
    code = (
        "import ctypes\nfrom pathlib import Path\n\ndef run(p, s):\n    (HERE / 'started').touch()\n"
        "    while True:\n        ctypes.PyDLL(None).pause()\n"
    )
    pool = lab.pool(code)
    got = started(lab, pool, [{"a": 1}])
    until((lab.folder / "started").exists)
    pool.stop(0.2)
    until(lambda: bool(got))
    assert (got[0].done, got[0].failures) == (set(), [])


def started(lab: PoolLab, pool: Pool, sets: list[dict[str, Any]], **budget: Any) -> list[TaskResult]:
    """Run a task in a thread, which appends the result to the returned list."""
    got: list[TaskResult] = []
    threading.Thread(target=lambda: got.append(lab.run(pool, sets, **budget)), daemon=True).start()
    return got


@pytest.mark.parametrize("replicates", [None, (0,)])
def test_a_task_waits_until_buffers_are_freed(
    lab: PoolLab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    replicates: tuple[int, ...] | None,
) -> None:
    monkeypatch.setattr("mops.waiting.LOG_SECONDS", 0.0)
    code = "from pathlib import Path\n\ndef run(p, s):\n    (HERE / f'ran-{p[\"a\"]}').touch()\n    return {'x': s}\n"
    pool = lab.pool(code, held_bytes=held_bytes())
    first = lab.run(pool, [{"a": 1}], replicates=replicates)
    assert held_bytes() > pool.context.held_bytes
    got = started(lab, pool, [{"a": 2}], replicates=replicates)
    until(lambda: "results are not fetched yet" in caplog.text)  # the task waits
    assert not (lab.folder / "ran-2").exists()
    del first
    until(lambda: bool(got))
    assert sorted(values(got[0], "x")) == [(0, 0)]


def test_targets_do_not_wait_until_the_results_that_they_read_are_freed(lab: PoolLab) -> None:
    code = "def run(p, s):\n    return {'x': s}\n\ndef score(p, replicates):\n    return len(replicates)\n"
    pool = lab.pool(code, targets=("model:score",), held_bytes=held_bytes())
    (group,) = groups_of([{"a": 1}], 2)
    replicates = pool.run(request_for(pool.context, (group,), replicates=(0, 1)))
    assert held_bytes() > pool.context.held_bytes
    scored = pool.run(request_for(pool.context, (group,), replicates=()), replicates.buffers)
    assert [loss.loss for loss in scored.losses] == [2.0]


def test_a_task_that_waits_for_buffers_returns_empty_on_a_stop(lab: PoolLab) -> None:
    pool = lab.pool("def run(p, s):\n    return {'x': s}\n", held_bytes=held_bytes())
    first = lab.run(pool, [{"a": 1}])
    got = started(lab, pool, [{"a": 2}])
    pool.stop(600.0)
    until(lambda: bool(got))
    assert (first.done, got[0].done) == ({0}, set())


def test_subprocesses_of_a_simulation_over_its_time_end_too(lab: PoolLab) -> None:
    code = (
        "import subprocess, time\nfrom pathlib import Path\n\ndef run(p, s):\n"
        "    (HERE / 'sleeper').write_text(str(subprocess.Popen(['sleep', '600']).pid))\n    time.sleep(600)\n"
    )
    (failure,) = lab.run(lab.pool(code, timeout_s=1.0), [{"a": 1}]).failures
    assert failure.reason == "timeout"
    until(lambda: not alive(int((lab.folder / "sleeper").read_text())))


def test_a_killed_child_is_replaced_and_reported(lab: PoolLab, caplog: pytest.LogCaptureFixture) -> None:
    code = (
        "import os, signal\nfrom pathlib import Path\n\ndef run(p, s):\n    if not (HERE / 'killed').exists():\n"
        "        (HERE / 'killed').touch()\n        os.kill(os.getpid(), signal.SIGKILL)\n    return {'x': 1}\n"
    )
    caplog.set_level(logging.WARNING, "mops")
    result = lab.run(lab.pool(code), [{"a": 1}])
    assert (result.done, result.failures) == ({0}, [])
    (record,) = caplog.records
    for word in ("SIGKILL", "out of memory", "retrying in a new process (try 2 of 2)"):
        assert word in record.getMessage()


@pytest.mark.usefixtures("real_children")
def test_closing_leaves_no_process_and_no_descriptor(lab: PoolLab) -> None:
    before = descriptors()
    code = "import subprocess\n\ndef run(p, s):\n    return {'pid': subprocess.Popen(['sleep', '600']).pid}\n"
    pool = lab.pool(code)
    ((sleeper,),) = values(lab.run(pool, [{"a": 1}]), "pid").values()
    (child,) = pool.pids()
    pool.close()
    until(lambda: not psutil.pid_exists(child))
    until(lambda: not alive(sleeper))
    pool.close()  # a second close is allowed
    assert descriptors() <= before


@pytest.mark.usefixtures("real_children")
def test_closing_while_children_start_leaves_no_process_and_no_descriptor(lab: PoolLab) -> None:
    before = descriptors()
    pool = lab.pool("def run(p, s):\n    return {'x': s}\n", slots=3, start="spawn")
    pool.warm()
    children = pool.pids()
    pool.close()
    assert len(children) == 3
    assert not any(psutil.pid_exists(pid) for pid in children)
    assert descriptors() <= before


def test_a_check_meanwhile_starts_no_further_process(lab: PoolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a check took no child that was starting, and started one more, which another one had to leave."""
    pool = lab.pool("def run(p, s):\n    return {'x': s}\n", slots=1, start="spawn")
    spawn, kinds, starts = ChildStarter._spawn, [], threading.Event()

    def slowly(self: ChildStarter, kind: Any) -> Any:
        kinds.append(kind)
        starts.set()
        time.sleep(0.3)
        return spawn(self, kind)

    monkeypatch.setattr(ChildStarter, "_spawn", slowly)
    warming = threading.Thread(target=pool.warm)
    warming.start()
    assert starts.wait(PATIENCE_S)
    pool.check()
    warming.join()
    assert kinds == [ChildProcess]


def test_a_closed_pool_starts_no_child(lab: PoolLab) -> None:
    pool = lab.pool("def run(p, s):\n    return {'x': s}\n")
    pool.close()
    pool.warm()
    assert lab.run(pool, [{"a": 1}]).done == set()
    assert pool.pids() == []


def test_a_late_start_of_a_child_creates_nothing_in_a_closed_pool(lab: PoolLab) -> None:
    """Regression: a start that outlasted the close made a new reaper and a new scratch folder."""
    pool = lab.pool("def run(p, s):\n    return {'x': s}\n", start="spawn")
    assert lab.run(pool, [{"a": 1}]).done == {0}
    reaper = pool._starter._reaper
    pool.close()
    assert pool._starter._spawn(ChildProcess) is None
    assert pool._starter._reaper is reaper
    with pytest.raises(ClusterError, match="closed"):
        _ = pool._starter.scratch.path


def test_a_second_close_waits_until_no_child_is_left(lab: PoolLab) -> None:
    pool = lab.pool("def run(p, s):\n    return {'x': s}\n", slots=4, start="spawn")
    pool.warm()
    children = pool.pids()
    both, left = threading.Barrier(2), []

    def close() -> None:
        both.wait(PATIENCE_S)
        pool.close()
        left.append([pid for pid in children if psutil.pid_exists(pid)])

    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(children) == 4
    assert left == [[], []]


@pytest.mark.usefixtures("real_children")
def test_a_child_that_cannot_start_for_lack_of_descriptors_leaves_nothing(lab: PoolLab) -> None:
    pool = lab.pool("def run(p, s):\n    return {'x': s}\n", start="spawn")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pool._starter._living_reaper()  # the reaper survives every failed start
    others = set(
        psutil.Process().children(recursive=True)
    )  # including other processes of the test run, such as Azurite
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    first = max(opened) + 1
    assert pool._starter.scratch.path.is_dir()  # the lock of this folder is a descriptor that the pool keeps
    before = descriptors()
    n_refused = 0
    try:
        for more in range(20):
            resource.setrlimit(resource.RLIMIT_NOFILE, (first + more, hard))
            try:
                pool.warm()
            except OSError:
                n_refused += 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert (pool.pids() == []) == (set(psutil.Process().children(recursive=True)) <= others)
            if pool.pids():
                break
            assert descriptors() <= before
    finally:
        for fd in opened:
            os.close(fd)
    assert n_refused > 3
    assert lab.run(pool, [{"a": 1}]).done == {0}


@pytest.mark.usefixtures("real_children")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_children_work_with_more_than_a_thousand_open_files(lab: PoolLab, start: str) -> None:
    """Regression: select(2) accepts no descriptor above 1,023, so with 1,100 open files every child died."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    opened: list[int] = []
    try:
        opened += [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        pool = lab.pool("def run(p, s):\n    return {'x': s}\n", start=start, tasks_per_child=1)
        result = lab.run(pool, [{"a": 1}, {"a": 2}])
        pool.close()
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (result.done, result.failures) == ({0, 1}, [])


def test_a_child_keeps_no_buffer_and_the_worker_frees_unused_buffers(lab: PoolLab) -> None:
    pool = lab.pool("def run(p, s):\n    return {'x': list(range(1000))}\n")
    before = held_bytes()
    result = lab.run(pool, [{"a": i} for i in range(5)])
    assert held_bytes() > before
    (pid,) = pool.pids()
    opened = [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    assert not any("mops-part" in name for name in [*opened, Path(f"/proc/{pid}/maps").read_text()])
    del result
    assert held_bytes() == before


def test_a_child_keeps_no_buffer_that_it_got_for_targets(lab: PoolLab) -> None:
    code = (
        "import os, time\nfrom pathlib import Path\nfrom mops.child.task_run import HANDOVER_SECONDS\n\n"
        "def run(p, s):\n    first = not (HERE / 'first').exists()\n"
        "    (HERE / 'first').touch()\n    if not first and not (HERE / 'died').exists():\n"
        "        (HERE / 'died').touch()\n        os._exit(1)\n"
        "    time.sleep(HANDOVER_SECONDS)  # it keeps none longer\n    return {'x': s}\n\n"
        "def score(p, replicates):\n"
        "    (HERE / 'maps').write_text(Path('/proc/self/maps').read_text())\n    return 1.0\n"
    )
    pool = lab.pool(code, targets=("model:score",))
    assert len(lab.run(pool, [{"a": 1}], n_replicates=2).losses) == 1
    assert "mops-part" in (lab.folder / "maps").read_text()  # the target has read the buffer of an earlier child
    (pid,) = pool.pids()
    until(lambda: "mops-part" not in Path(f"/proc/{pid}/maps").read_text())  # the child reports its end first
    assert not any("mops-part" in str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.parametrize("fails", ["raise ValueError", "os._exit(1)"])
def test_the_first_good_simulation_in_order_sets_the_reference(lab: PoolLab, fails: str) -> None:
    code = f"import os\n\ndef run(p, s):\n    if p['a'] == 0:\n        {fails}\n    return {{'x': 1, 'y': 'text'}}\n"
    result = lab.run(lab.pool(code), [{"a": 0}, {"a": 1}])
    assert result.reference == {"output": {"x": "number", "y": "string"}}
    assert [failure.group for failure in result.failures] == [0]


PARENT = """
import json, sys
from mops.study.groups import Group
from mops.task import JobContext, TaskRequest
from mops.worker.pool import Pool

context = JobContext("job", "1", "bundle", "storage", "model:run", "baseline", (), None, slots=1)
pool = Pool(context, sys.argv[1], 1)
pool.check()
print(json.dumps(pool.pids()), flush=True)
pool.run(TaskRequest(context, 1, (Group(0, "a", {"a": 1}, (1,)),), None, 600.0, 1 << 40))
"""


def test_a_child_in_c_code_and_its_subprocesses_end_with_the_killed_parent(lab: PoolLab) -> None:
    (lab.folder / "model.py").write_text(
        SEEN + "import ctypes, subprocess\nfrom pathlib import Path\n\ndef run(p, s):\n"
        "    (HERE / 'sleeper').write_text(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "    while True:\n        ctypes.PyDLL(None).pause()  # never gives up the GIL\n"
    )
    with subprocess.Popen([sys.executable, "-c", PARENT, str(lab.folder)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        (child,) = json.loads(parent.stdout.readline())
        sleeper = lab.folder / "sleeper"
        until(lambda: sleeper.exists() and sleeper.read_text() != "")
        parent.send_signal(signal.SIGKILL)
    pids = [child, int(sleeper.read_text())]
    until(lambda: not any(alive(pid) for pid in pids))
