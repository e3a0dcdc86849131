"""A child process that started before its pool: the pool uses it if it is like the pool's own children."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest
from pool_lab import PoolLab, values

from mops.worker.reaper import early
from mops.worker.reaper.early import start_early
from waiting import until

# A process that started early has one descriptor on its command line, another one has three.
MODEL = """
def run(p, s):
    _, numbers = open("/proc/self/cmdline").read().split("mops.child.main\\0")
    return {"n": numbers.count("\\0")}
"""


@pytest.fixture(autouse=True)
def _leave_none() -> Iterator[None]:
    yield
    while early._early:
        early._early.pop().close()


def started_early() -> psutil.Process:
    """Start a child, and return its process. Not a fixture: pytest changes a variable between fixtures and the test."""
    start_early(1)
    return until(lambda: psutil.Process(early._early[0].pid).children())[0]


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
    result = lab.run(lab.pool(f"import os\nprint('imported by', os.getpid())\n{MODEL}"), [{"a": 1}])
    assert f"imported by {started.pid}" in result.prints


@pytest.mark.parametrize("fields", [{"env": {"MODE": "fast"}}, {"threads": 2}])
def test_a_pool_whose_children_differ_ends_it(lab: PoolLab, fields: dict[str, object]) -> None:
    started = started_early()
    pool = lab.pool(MODEL, **fields)
    assert values(lab.run(pool, [{"a": 1}]), "n") == {(0, 0): [3]}
    assert not started.is_running()


def test_a_pool_starts_another_child_if_it_has_ended(lab: PoolLab) -> None:
    started = started_early()
    os.kill(started.pid, signal.SIGKILL)
    until(lambda: started.status() == psutil.STATUS_ZOMBIE)
    assert values(lab.run(lab.pool(MODEL), [{"a": 1}]), "n") == {(0, 0): [3]}


def test_a_pool_starts_another_reaper_if_that_has_ended(lab: PoolLab) -> None:
    started = started_early()
    (reaper,) = early._early
    os.kill(reaper.pid, signal.SIGKILL)
    assert values(lab.run(lab.pool(MODEL), [{"a": 1}]), "n") == {(0, 0): [3]}
    until(lambda: not started.is_running())


def test_it_ends_with_its_reaper() -> None:
    started = started_early()
    early._early[0].close()
    assert not started.is_running()
