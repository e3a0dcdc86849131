"""How many workers a service has, as its jobs come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocks import Clock
from mops.attempt.sizing import useful_slots
from mops.cluster.base import ShareRequest
from mops.service.autoscaler import Autoscaler, Limits, next_replicas, wanted_workers

LIMITS = Limits(least=0, most=10, threads=2, idle_s=60.0)


def test_a_job_can_use_slots_that_have_a_minute_of_work(subtests: pytest.Subtests) -> None:
    for n_left, work_s, slots in [
        (1_000, 0.0, 1),  # nothing has run yet
        (1_000, 3_000.0, 50),  # no simulation has ended for 3 s, so each takes at least that
        (1_000, 10.0, 1),  # less than a minute on one slot
        (3, 10_800.0, 3),  # three simulations of an hour, which no fourth slot makes shorter
        (0, 0.0, 1),  # the last commit
    ]:
        with subtests.test(str((n_left, work_s, slots))):
            assert useful_slots(n_left, work_s) == slots


def request(slots: int, sim_threads: int = 1) -> ShareRequest:
    return ShareRequest(4, 1.0, slots=slots, sim_threads=sim_threads)


def test_all_jobs_together_need_workers(subtests: pytest.Subtests) -> None:
    for requests, workers in [
        ([], 0),
        ([request(1)], 1),
        ([request(2), request(1)], 2),
        ([request(100)], 10),
        ([request(3, sim_threads=2)], 3),
        ([request(3, sim_threads=8)], 3),  # a worker runs one, however many threads it may use
    ]:
        with subtests.test(str((requests, workers))):
            assert wanted_workers(requests, LIMITS) == workers


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


@dataclass
class Looks:
    """Looks of an autoscaler, five seconds apart, at one job."""

    workers: InMemory
    clock: Clock
    n: int = 0

    def __post_init__(self) -> None:
        stand_in: Any = self.workers
        self.autoscaler = Autoscaler("default", stand_in, LIMITS, self.clock)

    def look(self, slots: int | None, busy: list[str], for_s: float = 5.0) -> int:
        """Look for so many seconds; return the number of workers at the end."""
        for _ in range(int(for_s / 5)):
            self.n, self.clock.now = self.n + 1, self.clock.now + 5
            card = {"format": 3, "pool": "", "n": self.n, "weight": 4, "wants": 1.0, "owner": "", "sim_threads": 1}
            self.autoscaler.look({} if slots is None else {"1.1": card | {"slots": slots}}, dict.fromkeys(busy, ""))
        return self.workers.n


def test_workers_follow_a_job_from_none_to_none() -> None:
    workers = InMemory()
    job = Looks(workers, Clock(0.0))
    assert job.look(None, []) == 0
    assert job.look(1, []) == 1, "a runner waits for a first worker"
    assert job.look(100, ["a"]) == 10
    assert job.look(6, ["a", "b", "c"], for_s=60) == 10, "the need may come back"
    assert job.look(6, ["a", "b", "c", "d"]) == 4, "none that is busy, although three are enough"
    assert workers.kept == ["a", "b", "c", "d"]
    assert job.look(1, ["a"], for_s=65) == 1
    assert job.look(None, [], for_s=60) == 1
    assert job.look(None, []) == 0


@pytest.mark.parametrize("break_s", [0.0, 1_000.0])
def test_nothing_is_removed_at_once_at_the_start_and_after_a_break(break_s: float) -> None:
    """After a break of the connection, no runner may have connected again."""
    workers, clock = InMemory(), Clock(0.0)
    job = Looks(workers, clock)
    workers.n = 7
    if break_s:
        job.look(14, ["a"])
        clock.now += break_s
    assert job.look(None, [], for_s=60) == 7
    assert job.look(None, [], for_s=10) == 0


def test_each_pool_follows_its_own_jobs() -> None:
    clock, workers = Clock(0.0), {"default": InMemory(), "large": InMemory()}
    scalers = []
    for pool, deployment in workers.items():
        stand_in: Any = deployment
        scalers.append(Autoscaler(pool, stand_in, LIMITS, clock))
    card = {"format": 3, "n": 1, "weight": 4, "wants": 1.0, "owner": "", "sim_threads": 1}
    records = {"1.1": card | {"slots": 4, "pool": ""}, "2.1": card | {"slots": 6, "pool": "large"}}
    for scaler in scalers:
        scaler.look(records, {})
    assert {pool: deployment.n for pool, deployment in workers.items()} == {"default": 2, "large": 3}
    for _ in range(13):
        clock.now += 5
        for scaler in scalers:
            scaler.look({}, {"a": "large", "b": "large", "c": ""})
    assert {pool: deployment.n for pool, deployment in workers.items()} == {"default": 1, "large": 2}
    assert workers["large"].kept == ["a", "b"]
