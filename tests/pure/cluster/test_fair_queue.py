"""The fair queue: which job's task is next."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.cluster.base import ShareRequest
from mops.cluster.shares import FairQueue, queue_weight


class Queue:
    """Simulates slots, a fair queue, and jobs that keep some tasks in flight."""

    def __init__(self, slots: int, *, fair: bool = True):
        self.free, self.fair = slots, fair
        self.now = 0.0
        self.queued: list[tuple[float, int, str]] = []
        self.running: list[tuple[float, int, str]] = []
        self.queues: dict[str, FairQueue] = {}
        self.lengths: dict[str, float] = {}
        self.prices: dict[str, float] = {}
        self.used: dict[str, float] = {}
        self.n = 0

    def join(self, job: str, length: float, in_flight: int, weight: float = 1) -> None:
        self.queues[job], self.used[job] = FairQueue(), 0.0
        self.lengths[job], self.prices[job] = length, length / weight
        for _ in range(in_flight):
            self.send(job)

    def send(self, job: str) -> None:
        self.n += 1
        reached = max(queue.highest_taken for queue in self.queues.values())
        tag = self.queues[job].tag(str(self.n), self.prices[job], reached)
        heapq.heappush(self.queued, (tag if self.fair else self.n, self.n, job))

    def run_until(self, end: float) -> None:
        while True:
            while self.free and self.queued:
                _, number, job = heapq.heappop(self.queued)
                self.queues[job].taken(str(number))
                self.free -= 1
                heapq.heappush(self.running, (self.now + self.lengths[job], number, job))
            if not self.running or self.running[0][0] > end:
                return
            self.now, _, job = heapq.heappop(self.running)
            self.free += 1
            self.used[job] += self.lengths[job]
            self.send(job)


def test_jobs_have_equal_time_however_long_their_tasks_are() -> None:
    """First in, first out gives all slots to a job of long tasks that has as many tasks in flight."""
    shares = {}
    for fair in (False, True):
        queue = Queue(4, fair=fair)
        queue.join("long", 60.0, in_flight=4)
        queue.join("short", 1.0, in_flight=4)
        queue.run_until(10_000.0)
        shares[fair] = queue.used["short"] / sum(queue.used.values())
    assert shares[False] < 0.05
    assert shares[True] == pytest.approx(0.5, abs=0.02)


@given(
    slots=st.integers(1, 12),
    lengths=st.lists(st.floats(0.5, 5.0), min_size=2, max_size=4),
    weights=st.lists(st.sampled_from([1, 4]), min_size=4, max_size=4),
)
def test_each_job_has_time_by_its_weight(slots: int, lengths: list[float], weights: list[int]) -> None:
    queue = Queue(slots)
    for i, length in enumerate(lengths):
        queue.join(str(i), length, 2 * slots, weights[i])
    queue.run_until(400.0)
    total, all_weights = sum(queue.used.values()), sum(weights[: len(lengths)])
    for i in range(len(lengths)):
        # At any moment a job may be ahead or behind by a task or two of each slot.
        wrong = abs(queue.used[str(i)] - total * weights[i] / all_weights)
        assert wrong <= 4 * (slots + 1) * max(lengths) + 1e-6


def test_a_person_with_five_jobs_has_the_time_of_a_person_with_one() -> None:
    """With the weights of their priorities, the five jobs had five sixths of the time, however few tasks in flight."""
    many, single = [ShareRequest(4, 1.0, "ada")] * 5, ShareRequest(4, 1.0, "bob")
    queue = Queue(4)
    for i in range(5):
        queue.join(str(i), 1.0, 1, queue_weight(many[0], [*many[1:], single]))
    queue.join("single", 1.0, 4, queue_weight(single, many))
    queue.run_until(400.0)
    assert queue.used["single"] / sum(queue.used.values()) == pytest.approx(0.5, abs=0.02)


def test_a_job_that_joins_later_starts_level_with_the_others() -> None:
    """It neither waits behind what is queued, nor catches up for the time before."""
    queue = Queue(2)
    queue.join("early", 1.0, in_flight=8)
    queue.run_until(100.0)
    queue.join("late", 1.0, in_flight=4)
    queue.used = dict.fromkeys(queue.used, 0.0)
    queue.run_until(110.0)
    assert queue.used["late"] == pytest.approx(10.0, abs=3.0)


def test_a_task_that_is_taken_again_after_its_worker_died_counts_once() -> None:
    queues = FairQueue()
    queues.tag("a", 5.0, 0.0)
    queues.tag("b", 5.0, 0.0)
    queues.taken("b")
    queues.taken("a")
    queues.taken("a")
    queues.removed("c")
    assert queues.highest_taken == 5.0
