"""How often tasks were lost, and what that says of the simulations that run alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from claimed_jobs import claimed_job, groups_of
from mops.attempt.recovery import TaskRecovery
from mops.attempt.tasks import TaskLost
from mops.cluster.shares import Share
from mops.task import Task


def task(*groups: int, replicates: tuple[int, ...] | None = None, alone: bool = False) -> Task:
    return Task(1, groups, replicates, alone)


def test_tries_before_are_those_of_postponed_steps_and_of_dead_workers() -> None:
    job = claimed_job("memory://lost-tasks", groups_of([3] * 5), targets=("scores:one",))
    plan: Any = SimpleNamespace(share=Share(1, workers=1), task_lost=lambda number, blamed: None)
    cluster: Any = None
    recovery = TaskRecovery(job, cluster, plan)
    recovery.came_back(task(9), "w", {(3, 0): 1, (3, 1): 2}, is_empty=False)
    assert recovery.tries_before(task(3, alone=True)) == {0: 1, 1: 2}
    assert recovery.tries_before(task(4, alone=True)) == {}
    assert recovery.tries_before(task(3)) == {}, "it does not run alone"
    for lost in (task(2, 3), task(3, replicates=(1,))):
        recovery.lost(TaskLost(lost, "its workers died", blamed=True))
    assert recovery.tries_before(task(3, replicates=(1,), alone=True)) == {1: 4}
    assert recovery.tries_before(task(3, replicates=(2,), alone=True)) == {2: 1}
    assert recovery.lost(TaskLost(task(3, replicates=(), alone=True), "its workers died", blamed=True)) == 2
    assert recovery.tries_before(task(3, replicates=(), alone=True)) == {3: 2}
