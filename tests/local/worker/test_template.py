"""Children forked from a template process, and children spawned if a fork is not safe."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

import psutil
import pytest
from pool_lab import PoolLab, values

from mops.child.shared_state import UNSAFE
from mops.errors import SystemUnfit
from mops.task import TaskResult
from mops.worker.pool import Pool
from processes import descriptors
from waiting import until

EXAMPLE = Path(__file__).parents[3] / "examples" / "sir"
# Writes a character for each import, and returns the pids of the process and its parent.
COUNTS = """
import os
from pathlib import Path

with (HERE / "imports").open("a") as file:
    file.write("x")

def run(p, s):
    return {"pid": [os.getpid(), os.getppid()]}
"""


def processes(result) -> list[tuple[int, int]]:  # type: ignore[no-untyped-def]
    return [(pid, parent) for _, (pid, parent) in sorted(values(result, "pid").items())]


def reaper_of(pool: Pool) -> int:
    assert pool._starter._reaper is not None
    return pool._starter._reaper.pid


def test_the_model_is_imported_once_and_children_are_forked(lab: PoolLab) -> None:
    pool = lab.pool(COUNTS, tasks_per_child=1)
    found = processes(lab.run(pool, [{"a": i} for i in range(5)]))
    assert len({pid for pid, _ in found}) == 5
    assert len({parent for _, parent in found}) == 1
    assert os.getpid() not in {parent for _, parent in found}
    assert (lab.folder / "imports").read_text() == "x"


def test_the_example_forks(lab: PoolLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pool = lab.pool(model="models.sir:SIR", root=str(EXAMPLE))
    pool.warm()
    pool.check()
    (pid,) = pool.pids()
    assert psutil.Process(pid).ppid() != os.getpid()
    assert "each by itself" not in caplog.text


def test_the_end_of_a_forked_process_is_known(lab: PoolLab) -> None:
    code = (
        "import os, signal\n\ndef run(p, s):\n    if p['a'] == 1:\n        os.killpg(0, signal.SIGKILL)\n"
        "    return {'x': s}\n"
    )
    result = lab.run(lab.pool(code, retries=0), [{"a": i} for i in range(3)])
    assert sorted(values(result, "x")) == [(0, 0), (2, 0)]
    (failure,) = result.failures
    assert (failure.group, failure.reason) == (1, "crashed")
    assert "ended with SIGKILL" in failure.message


def test_a_library_that_does_not_survive_a_fork_is_not_forked(lab: PoolLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (lab.folder / "torch.py").write_text("")  # in place of the library of 2 GB, because only its name counts
    pool = lab.pool(f"import torch\n{COUNTS}")
    result = lab.run(pool, [{"a": 1}])
    assert [parent for _, parent in processes(result)] == [reaper_of(pool)]
    assert f"the model imports torch ({UNSAFE['torch']})" in caplog.text
    assert (lab.folder / "imports").read_text() == "x", "the intended template becomes the first child"


def test_a_template_that_dies_is_replaced(lab: PoolLab) -> None:
    pool = lab.pool(COUNTS, tasks_per_child=1)
    ((_, template),) = processes(lab.run(pool, [{"a": 1}]))
    os.kill(template, signal.SIGKILL)
    until(lambda: pool.slots.template() is None or not pool.slots.template().is_reusable)
    ((_, another),) = processes(lab.run(pool, [{"a": 2}]))
    assert another not in (template, reaper_of(pool))
    assert (lab.folder / "imports").read_text() == "xx"


def test_a_forked_process_that_hangs_at_once_is_replaced_by_a_spawned_one(
    lab: PoolLab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mops.worker.limits.START_SECONDS", 1.0)
    code = (
        "import os, threading\nlock, importer = threading.Lock(), os.getpid()\nlock.acquire()\n\ndef run(p, s):\n"
        "    if os.getpid() != importer:\n        lock.acquire()  # its owner did not survive the fork\n"
        "    return {'x': s}\n"
    )
    result = lab.run(lab.pool(code), [{"a": 1}, {"a": 2}])
    assert (result.done, result.failures) == ({0, 1}, [])
    assert "did nothing for 1 s in a forked process" in caplog.text
    assert "MODELOPS_JOB_START=spawn" in caplog.text


@pytest.mark.parametrize("refusal", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_that_refuses_pidfd_open_is_refused_by_name(
    lab: PoolLab, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """Python has the function even so, and mops would not notice the ends of processes."""

    def refuse(_: int) -> int:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(SystemUnfit, match="this system cannot run simulations: it has no pidfd_open, or forbids it"):
        lab.run(lab.pool(COUNTS), [{"a": 1}])


def test_a_kernel_that_does_not_list_children_is_refused_by_name(
    lab: PoolLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mops.worker.processes._CHILDREN", tmp_path / "children")
    with pytest.raises(SystemUnfit, match="its kernel does not list the children of a process"):
        lab.run(lab.pool(COUNTS), [{"a": 1}])


def test_a_request_to_a_template_that_closes_gets_the_error_that_it_has_ended(lab: PoolLab) -> None:
    """Regression: a closed epoll descriptor raised an unexpected ValueError, and a descriptor was not closed."""
    pool = lab.pool(COUNTS)
    pool.check()
    template = pool.slots.template()
    assert template is not None
    before = descriptors()
    child = template.fork()
    template._selector.close()  # close() does this first, and another thread may send a request before the rest
    with pytest.raises(ConnectionError):
        template._ask({"kind": "wait", "pid": 1})
    child.close()
    del child  # frees its memory page
    assert descriptors() <= before


def test_a_new_forked_process_can_be_killed_at_once(lab: PoolLab) -> None:
    """Regression: before the process had a group, a signal to the group was lost, and close() hung."""
    pool = lab.pool(COUNTS)
    pool.check()
    template = pool.slots.template()
    assert template is not None
    for _ in range(60):
        child = template.fork()
        child.close()
        assert not psutil.pid_exists(child.pid)


ENDS = """
import os, threading, time
from pathlib import Path

lock, importer = threading.Lock(), os.getpid()
lock.acquire()

def run(p, s):
    if p["a"] == "hangs" and os.getpid() != importer:
        lock.acquire()
    while p["a"] in ("dies", "slow") and not (HERE / p["a"]).exists():
        time.sleep(0.01)
    if p["a"] == "dies":
        os._exit(7)
    return {"x": s}
"""


def test_after_a_hang_the_template_still_reports_its_other_processes(
    lab: PoolLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template used as an ordinary child would run a task and answer requests in two threads at the same time."""
    monkeypatch.setattr("mops.worker.limits.START_SECONDS", 1.0)
    pool = lab.pool(ENDS, slots=2, retries=0)
    got: dict[str, TaskResult] = {}

    def run(what: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: got.__setitem__(what, lab.run(pool, [{"a": what}])), daemon=True)
        thread.start()
        return thread

    dies = run("dies")
    until(lambda: len(pool.pids()) == 1)
    run("hangs").join(60)
    slow = run("slow")
    until(lambda: len(pool.pids()) == 2)
    (lab.folder / "dies").touch()
    dies.join(30)
    (lab.folder / "slow").touch()
    slow.join(30)
    assert [got[what].failures for what in ("hangs", "slow")] == [[], []]
    (failure,) = got["dies"].failures
    assert "ended with exit code 7" in failure.message


@pytest.mark.parametrize(("start", "level"), [("auto", "INFO"), ("fork", "WARNING")])
def test_an_unsafe_fork_gives_a_warning(lab: PoolLab, caplog: pytest.LogCaptureFixture, start: str, level: str) -> None:
    caplog.set_level("INFO", "mops")
    code = f"import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n{COUNTS}"
    result = lab.run(lab.pool(code, start=start), [{"a": 1}])
    assert result.children.startswith("each import the model: importing the model starts threads")
    assert [record.levelname for record in caplog.records if "child processes" in record.message] == [level]


@pytest.mark.parametrize(("start", "how"), [("auto", "fork from a template"), ("spawn", "(MODELOPS_JOB_START=spawn)")])
def test_each_result_has_the_start_method(lab: PoolLab, start: str, how: str) -> None:
    assert how in lab.run(lab.pool(COUNTS, start=start), [{"a": 1}]).children


def test_output_of_the_models_import_comes_with_the_first_task(lab: PoolLab) -> None:
    pool = lab.pool(f"print('imported here')\n{COUNTS}")
    assert [lab.run(pool, [{"a": 1}]).prints for _ in range(2)] == ["imported here\n", ""]


def test_a_model_may_replace_stdout(lab: PoolLab) -> None:
    pool = lab.pool(f"import sys\nsys.stdout = None\n{COUNTS}")
    ((_, parent),) = processes(lab.run(pool, [{"a": 1}]))
    assert parent != reaper_of(pool)


AT_FORK = """
import os, sys, threading, time

template, lock = os.getpid(), threading.Lock()
lock.acquire()

def prints():
    os.write(1, b"x" * 500_000)

def sleeps():
    time.sleep(600)

def raises():
    raise ValueError("not at a fork")

os.register_at_fork({handler})

def run(p, s):
    return {{"forked": os.getppid() == template}}
"""


@pytest.mark.parametrize(
    "handler",
    ["before=prints", "after_in_child=prints", "before=raises"],
)
def test_output_or_errors_of_fork_handlers_stop_nothing(lab: PoolLab, handler: str) -> None:
    """Regression: mops did not read the pipe, which was full after 64 KiB, and every slot waited for the template."""
    pool = lab.pool(AT_FORK.format(handler=handler), tasks_per_child=1)
    result = lab.run(pool, [{"a": 1}, {"a": 2}])
    assert values(result, "forked") == {(0, 0): [True], (1, 0): [True]}
    said = result.prints + lab.run(pool, [{"a": 3}]).prints
    assert ("xxx" if "prints" in handler else "not at a fork") in said


@pytest.mark.parametrize("handler", ["before=sleeps", "after_in_child=lock.acquire"])
def test_a_model_that_hangs_in_a_fork_handler_is_spawned(
    lab: PoolLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, handler: str
) -> None:
    """Regression: the worker waited without end for the template."""
    monkeypatch.setattr("mops.worker.template.ANSWER_SECONDS", 1.0)
    others = set(psutil.Process().children(recursive=True))
    pool = lab.pool(AT_FORK.format(handler=handler))
    result = lab.run(pool, [{"a": 1}, {"a": 2}])
    assert values(result, "forked") == {(0, 0): [False], (1, 0): [False]}
    assert caplog.text.count("the template did not answer") == 1
    pool.close()
    assert set(psutil.Process().children(recursive=True)) <= others


@pytest.mark.parametrize("way", ["stop", "close"])
def test_a_pool_stops_while_its_template_hangs_in_a_fork(
    lab: PoolLab, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Regression: the pool held its lock during the fork, and a stop waited for the lock."""
    monkeypatch.setattr("mops.worker.template.ANSWER_SECONDS", 600.0)
    others = set(psutil.Process().children(recursive=True))
    pool = lab.pool(AT_FORK.format(handler="before=sleeps"))
    got: list[TaskResult] = []
    thread = threading.Thread(target=lambda: got.append(lab.run(pool, [{"a": 1}])), daemon=True)
    thread.start()
    until(lambda: pool.slots.template() is not None and pool.slots.template()._is_forking)
    pool.stop(0.0) if way == "stop" else pool.close()
    thread.join(60)
    assert [(result.done, result.failures) for result in got] == [(frozenset(), [])]
    pool.close()
    assert set(psutil.Process().children(recursive=True)) <= others
