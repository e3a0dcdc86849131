"""Turns: whose task is next, on a queue of several jobs."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.cluster.fair_queue import FairQueue


class Queue:
    """Slots, a queue ordered by turns, and jobs that keep some tasks in flight; time passes at once."""

    def __init__(self, slots: int, *, in_turn: bool = True):
        self.free, self.in_turn = slots, in_turn
        self.now = 0.0
        self.queued: list[tuple[float, int, str]] = []
        self.running: list[tuple[float, int, str]] = []
        self.turns: dict[str, FairQueue] = {}
        self.lengths: dict[str, float] = {}
        self.prices: dict[str, float] = {}
        self.used: dict[str, float] = {}
        self.n = 0

    def join(self, job: str, length: float, in_flight: int, weight: int = 1) -> None:
        self.turns[job], self.lengths[job], self.prices[job], self.used[job] = FairQueue(), length, length / weight, 0.0
        for _ in range(in_flight):
            self.send(job)

    def send(self, job: str) -> None:
        self.n += 1
        reached = max(turns.reached for turns in self.turns.values())
        tag = self.turns[job].tag(str(self.n), self.prices[job], reached)
        heapq.heappush(self.queued, (tag if self.in_turn else self.n, self.n, job))

    def run_until(self, end: float) -> None:
        while True:
            while self.free and self.queued:
                _, number, job = heapq.heappop(self.queued)
                self.turns[job].taken(str(number))
                self.free -= 1
                heapq.heappush(self.running, (self.now + self.lengths[job], number, job))
            if not self.running or self.running[0][0] > end:
                return
            self.now, _, job = heapq.heappop(self.running)
            self.free += 1
            self.used[job] += self.lengths[job]
            self.send(job)


def test_jobs_have_equal_time_however_long_their_tasks_are() -> None:
    """First in, first out, a job of long tasks has all slots as soon as it has as many tasks in flight."""
    shares = {}
    for in_turn in (False, True):
        queue = Queue(4, in_turn=in_turn)
        queue.join("long", 60.0, in_flight=4)
        queue.join("short", 1.0, in_flight=4)
        queue.run_until(10_000.0)
        shares[in_turn] = queue.used["short"] / sum(queue.used.values())
    assert shares[False] < 0.05
    assert shares[True] == pytest.approx(0.5, abs=0.02)


@given(
    slots=st.integers(1, 12),
    lengths=st.lists(st.floats(0.5, 5.0), min_size=2, max_size=4),
    weights=st.lists(st.sampled_from([1, 4]), min_size=4, max_size=4),
)
def test_each_job_has_its_part_of_the_time(slots: int, lengths: list[float], weights: list[int]) -> None:
    queue = Queue(slots)
    for i, length in enumerate(lengths):
        queue.join(str(i), length, 2 * slots, weights[i])
    queue.run_until(400.0)
    total, all_weights = sum(queue.used.values()), sum(weights[: len(lengths)])
    for i in range(len(lengths)):
        # What is wrong at any moment is a task or two of each slot, whatever came before.
        wrong = abs(queue.used[str(i)] - total * weights[i] / all_weights)
        assert wrong <= 4 * (slots + 1) * max(lengths) + 1e-6


def test_a_job_that_comes_later_begins_where_the_others_are() -> None:
    """It neither waits behind what is queued, nor makes up for the time before it came."""
    queue = Queue(2)
    queue.join("early", 1.0, in_flight=8)
    queue.run_until(100.0)
    queue.join("late", 1.0, in_flight=4)
    queue.used = dict.fromkeys(queue.used, 0.0)
    queue.run_until(110.0)
    assert queue.used["late"] == pytest.approx(10.0, abs=3.0)


def test_a_task_that_is_taken_again_after_its_worker_has_died_moves_nobody() -> None:
    turns = FairQueue()
    turns.tag("a", 5.0, 0.0)
    turns.tag("b", 5.0, 0.0)
    turns.taken("b")
    turns.taken("a")
    turns.taken("a")
    turns.gone("c")
    assert turns.reached == 5.0
