"""How many workers a service has, as its jobs come and go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocks import Clock
from mops.attempt.sizing import useful_slots
from mops.cluster.base import ShareRequest
from mops.service.autoscaler import Autoscaler, Limits, next_replicas, wanted_workers

LIMITS = Limits(least=0, most=10, threads=2, idle_s=60.0)


@pytest.mark.parametrize(
    ("n_left", "each_s", "slots"),
    [
        (1_000, 3.0, 50),  # none has ended for 3 s, so each takes at least that
        (1_000, 0.01, 1),  # less than a minute on one slot
        (3, 3_600.0, 3),  # three hours, which no fourth slot makes shorter
        (0, 10.0, 1),  # the last commit
    ],
)
def test_a_job_can_use_slots_that_have_a_minute_of_work(n_left: int, each_s: float, slots: int) -> None:
    assert useful_slots(n_left, each_s) == slots


@pytest.mark.parametrize(("threads", "workers"), [([], 0), ([1], 1), ([2, 1], 2), ([100], 10)])
def test_all_jobs_together_need_workers(threads: list[int], workers: int) -> None:
    assert wanted_workers([ShareRequest(4, 1.0, threads=each) for each in threads], LIMITS) == workers


@given(present=st.integers(0, 20), wanted=st.integers(0, 20), more=st.integers(0, 20), n_busy=st.integers(0, 20))
def test_workers_come_at_once_and_no_busy_one_goes(present: int, wanted: int, more: int, n_busy: int) -> None:
    n = next_replicas(present, wanted, wanted + more, n_busy)
    assert n >= wanted
    if wanted < present:
        assert min(present, n_busy) <= n <= present


class InMemory:
    """The Deployment of the workers, without Kubernetes."""

    def __init__(self) -> None:
        self.n, self.kept = 0, []

    def replicas(self) -> int:
        return self.n

    def keep(self, busy: list[str]) -> None:
        self.kept = busy

    def scale(self, n: int) -> None:
        self.n = n


def test_workers_follow_a_job_from_none_to_none() -> None:
    clock, workers = Clock(0.0), InMemory()
    stand_in: Any = workers
    autoscaler, n = Autoscaler(stand_in, LIMITS, clock), 0

    def looks(threads: int | None, busy: list[str], after_s: float = 5.0) -> int:
        nonlocal n
        n, clock.now = n + 1, clock.now + after_s
        record = {"format": 2, "n": n, "weight": 4, "wants": 1.0, "threads": threads, "owner": ""}
        autoscaler.look({} if threads is None else {"1.1": record}, busy)
        return workers.n

    assert looks(None, []) == 0
    assert looks(1, []) == 1, "a runner waits for a first worker"
    assert looks(100, ["a"]) == 10
    assert looks(6, ["a", "b", "c"]) == 10, "the need may come back"
    assert looks(6, ["a", "b", "c", "d"], after_s=61.0) == 4, "none that is busy, although three are enough"
    assert workers.kept == ["a", "b", "c", "d"]
    assert looks(1, ["a"], after_s=61.0) == 1
    assert looks(None, [], after_s=30.0) == 1
    assert looks(None, [], after_s=31.0) == 0


def test_a_new_autoscaler_removes_nothing_at_once() -> None:
    clock, workers = Clock(0.0), InMemory()
    workers.n = 7
    stand_in: Any = workers
    autoscaler = Autoscaler(stand_in, LIMITS, clock)
    for clock.now in (1.0, 60.0):
        autoscaler.look({}, [])
        assert workers.n == 7
    clock.now = 62.0
    autoscaler.look({}, [])
    assert workers.n == 0
