"""How often tasks were lost, and what that says of the simulations that run alone."""

from __future__ import annotations

from mops.attempt.recovery import LostTasks
from mops.task import Task


def task(*groups: int, replicates: tuple[int, ...] | None = None, alone: bool = False) -> Task:
    return Task(1, groups, replicates, alone)


def test_tries_before_are_those_of_postponed_steps_and_of_dead_workers() -> None:
    lost = LostTasks()
    lost.postponed({(3, 0): 1, (3, 1): 2})
    assert lost.tries_before(task(3, alone=True), 3, 1) == {0: 1, 1: 2}
    assert lost.tries_before(task(4, alone=True), 3, 1) == {}
    assert lost.count_death(task(2, 3)) == 1
    assert lost.count_death(task(3, replicates=(1,))) == 2
    assert lost.tries_before(task(3, replicates=(1,), alone=True), 3, 1) == {1: 4}
    assert lost.tries_before(task(3, replicates=(2,), alone=True), 3, 1) == {2: 1}
    assert lost.count_death(task(3, replicates=())) == 2
    assert lost.tries_before(task(3, replicates=(), alone=True), 3, 1) == {3: 2}
