"""The estimate of the time left, in simulated jobs whose end is known."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from mops.attempt.timing import LOOK_SECONDS, RecentTasks, TimeLeft
from mops.task import Task

QUEUE = 4  # tasks in flight for each slot


@dataclass
class Simulated:
    """A job of tasks whose seconds are known, on slots that come and go.

    Parameters
    ----------
    times
        The seconds of each simulation, in the order in which they run.
    slots_at
        Returns the slots at a time.
    in_task
        Simulations of a task.
    wait_s
        How long a slot waits after a task.
    """

    times: list[float]
    slots_at: Callable[[float], int] = lambda _: 4
    in_task: int = 1
    wait_s: float = 0.0
    estimates: list[tuple[float, float | None]] = field(default_factory=list)

    def run(self) -> float:
        """Run the job; return when it ended."""
        recent = RecentTasks()
        found = TimeLeft(recent, lambda task: len(task.groups))
        left, next_group, now, looks_at = len(self.times), 0, 0.0, 0.0
        in_flight: dict[int, Task] = {}
        queued: deque[int] = deque()
        running: list[tuple[float, int]] = []
        while left:
            slots = self.slots_at(now)
            while next_group < len(self.times) and len(in_flight) < QUEUE * slots:
                groups = tuple(range(next_group, min(next_group + self.in_task, len(self.times))))
                next_group += len(groups)
                queued.append(groups[0])
                in_flight[groups[0]] = Task(groups[0], groups)
            while queued and len(running) < slots:
                number = queued.popleft()
                heapq.heappush(running, (now + self._seconds(in_flight[number]) + self.wait_s, number))
            if looks_at <= running[0][0]:
                now, looks_at = looks_at, looks_at + LOOK_SECONDS
                found.look(now, slots, left, in_flight)
                self.estimates.append((now, found.seconds))
                continue
            now, number = heapq.heappop(running)
            task = in_flight.pop(number)
            left -= len(task.groups)
            recent.add(self._seconds(task), len(task.groups))
        return now

    def _seconds(self, task: Task) -> float:
        return sum(self.times[group] for group in task.groups)


def shuffled(times: list[float]) -> list[float]:
    random.Random(1).shuffle(times)
    return times


JOBS = {
    "even": Simulated([1.0] * 400),
    "short": Simulated([0.01] * 10_000, in_task=50),
    "slots that wait for the runner": Simulated([0.01] * 10_000, in_task=50, wait_s=0.2),
    "long, in waves": Simulated([60.0] * 50, lambda _: 10),
    "1 of 20 takes ten times as long": Simulated(shuffled([0.2] * 1_520 + [2.0] * 80)),
    "exponential": Simulated([random.Random(i).expovariate(1.0) for i in range(1_000)], lambda _: 8),
    "first calls that compile": Simulated([3.0] * 4 + [0.1] * 800),
    "half of them fail at once": Simulated(shuffled([0.01] * 400 + [1.0] * 400)),
    "first calls that compile, on many slots": Simulated([30.0] * 300 + [1.0] * 6_000, lambda _: 300),
    "fewer slots later": Simulated([1.0] * 2_000, lambda now: 16 if now < 20 else 4),
    "more slots later": Simulated([1.0] * 2_000, lambda now: 4 if now < 20 else 16),
}


def test_from_a_fifth_of_the_job_on_the_estimate_is_within_25_percent(subtests: pytest.Subtests) -> None:
    """At the end, the slowest of the last simulations decides: there it is within the time of a few simulations."""
    for name in JOBS:
        with subtests.test(name):
            job = JOBS[name]
            end = job.run()
            last_s = 2 * max(job.times) * job.in_task
            for now, seconds in job.estimates:
                left = end - now
                if now > 0.2 * end and left > last_s:
                    assert seconds == pytest.approx(left, rel=0.25, abs=last_s), (now, left)


def test_nothing_is_known_before_a_task_has_ended() -> None:
    found = TimeLeft(RecentTasks(), lambda _: 1)
    found.look(0.0, 2, 10, {1: Task(1, (1,))})
    assert found.seconds is None


def test_what_runs_longer_than_anything_before_it_has_no_estimate() -> None:
    """Regression: "0.0 s to go" stood there while the last simulation hung."""
    recent, hangs = RecentTasks(), {9: Task(9, (9,))}
    found = TimeLeft(recent, lambda _: 1)
    for _ in range(8):
        recent.add(1.0, 1)
    found.look(0.0, 2, 1, hangs)
    assert found.seconds == pytest.approx(1.0)
    found.look(0.6, 2, 1, hangs)
    assert found.seconds == pytest.approx(0.4)
    found.look(5.0, 2, 1, hangs)
    assert found.seconds is None
    found.look(40.0, 2, 1, hangs, n_slow=1)
    assert found.seconds == 0.0, "known to be slow"


def test_simulations_that_hang_count_once() -> None:
    """Two of four slots hang, one of them in a task whose other 99 simulations were released."""
    recent, hangs = RecentTasks(), {1: Task(1, tuple(range(100))), 2: Task(2, (100,))}
    found = TimeLeft(recent, lambda task: len(task.groups))
    found.look(0.0, 4, 400, hangs)
    for n in range(80):  # two slots run a simulation of 1 s after the other
        recent.add(1.0, 1)
        running = {200 + n: Task(200 + n, (200 + n,))}
        found.look(20.0 + n / 2, 4, 100, hangs | running, n_slow=2)
    assert found.seconds == pytest.approx(98 / 2, rel=0.05)


def test_simulations_that_hang_take_their_slots_away() -> None:
    recent = RecentTasks()
    recent.add(1.0, 1)
    found = TimeLeft(recent, lambda _: 1)
    found.look(0.0, 4, 13, {}, n_slow=1)
    assert found.seconds == pytest.approx(12 / 3)
