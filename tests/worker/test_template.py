"""Children forked from a process that has imported the model; and spawned ones, where that is not safe."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest
from pool_lab import Lab, until, values

from mops.errors import ModelError
from mops.worker.order import Outcome
from mops.worker.parent import Child
from mops.worker.process import UNSAFE, why_not_forked

EXAMPLE = Path(__file__).parents[2] / "examples" / "sir"
# Writes a line for each import, and returns the process and its parent.
COUNTS = """
import os
from pathlib import Path

with (HERE / "imports").open("a") as file:
    file.write("x")

def run(p, s):
    return {"pid": [os.getpid(), os.getppid()]}
"""


def processes(outcome) -> list[tuple[int, int]]:  # type: ignore[no-untyped-def]
    return [(pid, parent) for _, (pid, parent) in sorted(values(outcome, "pid").items())]


def test_the_model_is_imported_once_and_children_are_forked(lab: Lab) -> None:
    pool = lab.pool(COUNTS, tasks_per_child=1)
    found = processes(lab.run(pool, [{"a": i} for i in range(5)]))
    assert len({pid for pid, _ in found}) == 5
    assert len({parent for _, parent in found}) == 1
    assert os.getpid() not in {parent for _, parent in found}
    assert (lab.folder / "imports").read_text() == "x"


def test_spawned_children_import_each_by_itself(lab: Lab) -> None:
    pool = lab.pool(COUNTS, tasks_per_child=1, start="spawn")
    found = processes(lab.run(pool, [{"a": i} for i in range(3)]))
    assert {parent for _, parent in found} == {os.getpid()}
    assert (lab.folder / "imports").read_text() == "xxx"


def test_the_example_forks(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pool = lab.pool(model="models.sir:SIR", root=str(EXAMPLE))
    pool.warm()
    pool.check()
    (pid,) = pool.pids()
    assert psutil.Process(pid).ppid() != os.getpid()
    assert "each by itself" not in caplog.text


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        ("os._exit(7)", "ended by itself with exit code 7"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV"),
        ("os.killpg(0, signal.SIGKILL)", "was ended by SIGKILL"),
    ],
)
def test_how_a_forked_process_ended_is_known(lab: Lab, ends: str, how: str) -> None:
    code = f"import os, signal\n\ndef run(p, s):\n    if p['a'] == 1:\n        {ends}\n    return {{'x': s}}\n"
    outcome = lab.run(lab.pool(code, retries=0), [{"a": i} for i in range(3)])
    assert sorted(values(outcome, "x")) == [(0, 0), (2, 0)]
    (failure,) = outcome.failures
    assert (failure.group, failure.reason) == (1, "crashed")
    assert how in failure.message


def test_a_model_that_cannot_be_imported_is_said_once(lab: Lab) -> None:
    pool = lab.pool("raise ValueError('not today')\n")
    pool.warm()
    with pytest.raises(ModelError, match="not today"):
        pool.check()


def test_a_model_whose_import_ends_the_process_is_said(lab: Lab) -> None:
    pool = lab.pool("import os\nos._exit(3)\n")
    pool.warm()
    with pytest.raises(ModelError, match="exit code 3"):
        pool.check()


def test_threads_of_the_models_import_are_not_forked(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    start = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    outcome = lab.run(lab.pool(f"import threading, time\n{start}{COUNTS}"), [{"a": 1}])
    assert [parent for _, parent in processes(outcome)] == [os.getpid()]
    assert "importing the model starts threads" in caplog.text
    assert (lab.folder / "imports").read_text() == "x", "the process that was to be the template is the first child"


def test_a_library_that_does_not_survive_a_fork_is_not_forked(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (lab.folder / "torch.py").write_text("")  # stands for the library, which is 2 GB: only its name counts
    outcome = lab.run(lab.pool(f"import torch\n{COUNTS}"), [{"a": 1}])
    assert [parent for _, parent in processes(outcome)] == [os.getpid()]
    assert f"the model imports torch: {UNSAFE['torch']}" in caplog.text


def test_a_template_that_dies_is_replaced(lab: Lab) -> None:
    pool = lab.pool(COUNTS, tasks_per_child=1)
    ((_, template),) = processes(lab.run(pool, [{"a": 1}]))
    os.kill(template, signal.SIGKILL)
    until(lambda: os.waitid(os.P_PID, template, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None)
    ((_, another),) = processes(lab.run(pool, [{"a": 2}]))
    assert another not in (template, os.getpid())
    assert (lab.folder / "imports").read_text() == "xx"


def test_a_forked_process_that_hangs_at_once_is_replaced_by_a_spawned_one(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mops.worker.parent.START_SECONDS", 1.0)
    code = (
        "import os, threading\nlock, importer = threading.Lock(), os.getpid()\nlock.acquire()\n\ndef run(p, s):\n"
        "    if os.getpid() != importer:\n        lock.acquire()  # as of a thread that is not here any more\n"
        "    return {'x': s}\n"
    )
    outcome = lab.run(lab.pool(code), [{"a": 1}, {"a": 2}])
    assert (outcome.done, outcome.failures) == ({0, 1}, [])
    assert "a forked process did nothing for 1 s in its first simulation" in caplog.text
    assert "MODELOPS_JOB_START=spawn" in caplog.text


def test_closing_leaves_no_process_and_no_descriptor(lab: Lab) -> None:
    before, others = len(list(Path("/proc/self/fd").iterdir())), set(psutil.Process().children(recursive=True))
    pool = lab.pool(COUNTS, slots=2, tasks_per_child=2)
    for _ in range(3):
        lab.run(pool, [{"a": i} for i in range(3)])
    pool.close()
    assert set(psutil.Process().children(recursive=True)) <= others
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_prints_of_forked_processes_are_their_own(lab: Lab) -> None:
    code = "print('imported', end='')\n\ndef run(p, s):\n    print('ran', p['a'])\n    return {'x': s}\n"
    outcome = lab.run(lab.pool(code, tasks_per_child=1), [{"a": 1}, {"a": 2}])
    assert outcome.prints.count("ran 1") == outcome.prints.count("ran 2") == 1
    assert outcome.prints.count("imported") <= 1


@pytest.mark.parametrize(
    ("threads", "modules", "why"),
    [
        ([], [], None),
        (["b", "a", "b", "jemalloc_bg_thd"], [], ": a, b"),
        (["jemalloc_bg_thd", "polars-ooc-clea"], [], None),
        ([], ["jax"], "the model imports jax"),
    ],
)
def test_what_is_forked(threads: list[str], modules: list[str], why: str | None) -> None:
    found = why_not_forked(threads, modules)
    assert found is None if why is None else why in (found or "")


def test_a_process_that_was_just_forked_can_be_ended_at_once(lab: Lab) -> None:
    """A signal to its group, before it had one, reached nobody, and closing waited for ever."""
    pool = lab.pool(COUNTS)
    pool.check()
    for _ in range(60):
        child = Child(pool.context, str(lab.folder), pool._scratch, pool._template)
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
        time.process_time()
    if p["a"] == "dies":
        os._exit(7)
    return {"x": s}
"""


def test_after_a_hang_the_template_still_tells_how_its_other_processes_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an ordinary child it would run an order, and be asked for a status, in two threads at once."""
    monkeypatch.setattr("mops.worker.parent.START_SECONDS", 1.0)
    pool = lab.pool(ENDS, slots=2, retries=0)
    got: dict[str, Outcome] = {}

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
    assert "ended by itself with exit code 7" in failure.message


def test_a_model_that_is_refused_is_refused_again(lab: Lab) -> None:
    pool = lab.pool("raise ValueError('not today')\n")
    for _ in range(3):
        with pytest.raises(ModelError, match="not today"):
            lab.run(pool, [{"a": 1}])


@pytest.mark.parametrize(("start", "level"), [("auto", "INFO"), ("fork", "WARNING")])
def test_each_outcome_says_how_children_start_and_a_refused_wish_is_a_warning(
    lab: Lab, caplog: pytest.LogCaptureFixture, start: str, level: str
) -> None:
    caplog.set_level("INFO", "mops")
    code = f"import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n{COUNTS}"
    outcome = lab.run(lab.pool(code, start=start), [{"a": 1}])
    assert outcome.children.startswith("each imports the model: importing the model starts threads")
    assert [record.levelname for record in caplog.records if "started so" in record.message] == [level]
    assert lab.run(lab.pool(COUNTS, start=start), [{"a": 1}]).children.startswith("forked")
    assert lab.run(lab.pool(COUNTS, start="spawn"), [{"a": 1}]).children.endswith("MODELOPS_JOB_START=spawn")


def test_what_a_model_prints_when_it_is_imported_comes_with_the_first_order(lab: Lab) -> None:
    pool = lab.pool(f"print('imported here')\n{COUNTS}")
    assert [lab.run(pool, [{"a": 1}]).prints for _ in range(2)] == ["imported here\n", ""]


def test_a_model_may_put_anything_in_the_place_of_stdout(lab: Lab) -> None:
    outcome = lab.run(lab.pool(f"import sys\nsys.stdout = None\n{COUNTS}"), [{"a": 1}])
    ((_, parent),) = processes(outcome)
    assert parent != os.getpid()
