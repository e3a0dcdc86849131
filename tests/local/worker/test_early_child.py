"""A child process that started before its pool: the pool uses it if it is like the pool's own children."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pool_lab import PoolLab, values

from mops.errors import ModelError
from mops.worker.reaper import early
from mops.worker.reaper.early import start_early, take_reaper
from waiting import until

# A process that started early has one descriptor on its command line, another one has three.
MODEL = """
def run(p, s):
    _, numbers = open("/proc/self/cmdline").read().split("mops.child.main\\0")
    return {"n": numbers.count("\\0")}
"""


@pytest.fixture(autouse=True)
def _leave_none() -> Iterator[None]:
    early._close()  # a command that an earlier test has run in this process
    yield
    early._close()


def started_early() -> psutil.Process:
    """Start a child, and return its process. Not a fixture: pytest changes a variable between fixtures and the test."""
    start_early(1)
    return until(lambda: psutil.Process(early._early[0][1].pid).children())[0]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_first_pool_uses_the_process_that_started_early(lab: PoolLab, start: str) -> None:
    started = started_early()
    pool = lab.pool(MODEL, start=start, tasks_per_child=1)
    assert values(lab.run(pool, [{"a": 1}]), "n") == {(0, 0): [1]}
    assert values(lab.run(pool, [{"a": 2}]), "n") == {(0, 0): [1 if start == "fork" else 3]}
    other = lab.pool(MODEL)
    assert values(lab.run(other, [{"a": 1}]), "n") == {(0, 0): [3]}
    pool.close()
    assert not started.is_running()


def test_prints_of_the_model_reach_the_worker(lab: PoolLab) -> None:
    started = started_early()
    said = "print(os.getpid(), sys.stdout is sys.__stdout__, sys.stdout.line_buffering, sys.stderr.errors)"
    result = lab.run(lab.pool(f"import os, sys\n{said}\nsys.__stderr__.write('last')\n{MODEL}"), [{"a": 1}])
    assert result.prints == f"{started.pid} True True backslashreplace\nlast"


@pytest.mark.parametrize("fields", [{"env": {"MODE": "fast"}}, {"threads": 2}])
def test_a_pool_whose_children_differ_ends_it(lab: PoolLab, fields: dict[str, object]) -> None:
    started = started_early()
    pool = lab.pool(MODEL, **fields)
    assert values(lab.run(pool, [{"a": 1}]), "n") == {(0, 0): [3]}
    until(lambda: not started.is_running())


@pytest.fixture
def at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let each Python process run some code at its start."""

    def run(code: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    return run


def test_prints_of_its_start_reach_the_worker(lab: PoolLab, at_start: Callable[[str], None]) -> None:
    at_start("import sys\nsys.stderr.write('old processor\\n')\n")
    started = started_early()
    result = lab.run(lab.pool(f"import os\nprint('imported by', os.getpid())\n{MODEL}"), [{"a": 1}])
    assert result.prints == f"old processor\nimported by {started.pid}\n"


def test_if_its_imports_fail_the_error_of_another_child_says_why(lab: PoolLab, at_start: Callable[[str], None]) -> None:
    """The early child has not ended when the pool starts its first child."""
    at_start(
        "import time, sys\nif 'mops.child.main' in sys.argv:\n    time.sleep(0.5)\n    sys.modules['pyarrow'] = None\n"
    )
    started_early()
    with pytest.raises(ModelError, match="import of pyarrow halted"):
        lab.pool(MODEL).check()


def test_a_fork_of_the_process_uses_another_reaper() -> None:
    started = started_early()
    pid = os.fork()
    if pid == 0:
        take_reaper().close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert started.is_running()


def test_a_pool_starts_another_child_if_it_has_ended(lab: PoolLab) -> None:
    started = started_early()
    os.kill(started.pid, signal.SIGKILL)
    until(lambda: started.status() == psutil.STATUS_ZOMBIE)
    assert values(lab.run(lab.pool(MODEL), [{"a": 1}]), "n") == {(0, 0): [3]}


def test_a_pool_starts_another_reaper_if_that_has_ended(lab: PoolLab) -> None:
    started = started_early()
    ((_, reaper),) = early._early
    os.kill(reaper.pid, signal.SIGKILL)
    assert values(lab.run(lab.pool(MODEL), [{"a": 1}]), "n") == {(0, 0): [3]}
    until(lambda: not started.is_running())


def test_it_ends_with_its_reaper() -> None:
    started = started_early()
    early._early[0][1].close()
    assert not started.is_running()
