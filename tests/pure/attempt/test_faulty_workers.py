"""Whether a worker is faulty, or a task, or the whole cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from claimed_jobs import claimed_job, groups_of
from mops.attempt.recovery import TaskRecovery
from mops.attempt.tasks import TaskRaised
from mops.cluster.shares import Share
from mops.cluster.worker_losses import WorkerLoss
from mops.errors import ClusterError, InstallError, ModelError
from mops.recovery import FAULTS
from mops.task import Task

A, B, C, D = (f"tcp://{name}:1" for name in "abcd")
FULL = OSError(28, "No space left on device")
LEFT = WorkerLoss(A, frozenset())


def task(number: int, *, alone: bool = False) -> Task:
    return Task(number, (number,), alone=alone)


class Lab:
    """The recovery of a job on a cluster with these workers, and what it does with tasks and workers."""

    def __init__(self, *workers: str):
        self.addresses, self.avoided = frozenset(workers), frozenset[str]()
        self.again: list[tuple[int, bool]] = []  # number of a task, and whether it is cut
        self.share, self.tasks_in_flight = Share(1, workers=1), dict[int, Task]()
        here: Any = self  # the cluster and the plan, too
        self.recovery = TaskRecovery(claimed_job("memory://faulty-workers", groups_of([1] * 60)), here, here)

    @property
    def workers(self) -> int:
        return len(self.addresses - self.avoided)

    def avoid(self, workers: frozenset[str]) -> None:
        self.avoided = workers

    def task_lost(self, number: int, *, blamed: bool = False) -> None:
        self.again.append((number, blamed))

    def raised(self, numbers: Iterable[int], worker: str, error: Exception = FULL, *, alone: bool = False) -> None:
        for number in numbers:
            self.recovery.raised(TaskRaised(task(number, alone=alone), error, worker))

    def succeeded(self, number: int, worker: str) -> None:
        self.recovery.came_back(task(number), worker, is_empty=False)


def test_a_task_that_raises_runs_on_a_worker_on_which_it_has_not_raised() -> None:
    lab = Lab(A, B, C)
    lab.raised([1], A)
    lab.raised([1], B)
    assert lab.again == [(1, False)] * 2
    assert lab.recovery.to_avoid(task(1)) == {A, B}
    assert lab.recovery.to_avoid(task(2)) == frozenset()


def test_a_worker_on_which_three_tasks_in_a_row_raise_is_retired() -> None:
    lab = Lab(A, B)
    lab.succeeded(0, B)
    lab.raised(range(1, FAULTS), A)
    assert lab.avoided == frozenset()
    lab.succeeded(10, A)
    lab.raised(range(20, 20 + FAULTS), A)
    assert lab.avoided == {A}
    assert lab.recovery.to_avoid(task(30)) == {A}
    assert not any(is_cut for _, is_cut in lab.again), "the tasks are not to blame"


def test_pieces_of_a_bad_group_that_run_alone_retire_no_worker() -> None:
    lab = Lab(A, B)
    lab.succeeded(0, B)
    lab.raised(range(1, 2 * FAULTS), A, alone=True)
    assert lab.avoided == frozenset()


def test_tasks_in_flight_on_a_retired_worker_do_not_end_the_attempt() -> None:
    """Regression: the retired worker did not count, so its next error of this kind came from as many as there were."""
    lab = Lab(A, B)
    lab.raised(range(4 * FAULTS), A, ModelError("a package is missing here"))
    assert lab.avoided == {A}


def test_a_task_that_has_raised_three_times_is_cut_and_its_pieces_may_run_anywhere() -> None:
    lab = Lab(A, B, C, D)
    for worker in (A, B, C):
        lab.raised([1], worker)
    assert lab.again == [(1, False), (1, False), (1, True)]
    assert lab.recovery.to_avoid(task(1)) == frozenset()
    assert lab.avoided == frozenset()


def test_a_task_that_raises_alone_three_times_ends_the_attempt_with_its_error() -> None:
    """No task succeeds while one runs alone. Its errors must not make the workers faulty."""
    lab = Lab(A, B, C, D)
    for number, worker in enumerate((A, B, C, D)):
        lab.succeeded(number, worker)
    lab.raised([9], A, alone=True)
    lab.raised([9], B, alone=True)
    with pytest.raises(
        ClusterError, match=rf"no worker can run task 9 .*; the last error, from {C}: OSError.*No space"
    ):
        lab.raised([9], C, alone=True)
    assert lab.avoided == frozenset()


def test_one_task_that_raises_again_and_again_retires_no_worker() -> None:
    lab = Lab(A, B)
    lab.raised([1] * 2 * FAULTS, A)
    assert lab.avoided == frozenset()


def test_the_attempt_ends_when_all_workers_are_retired() -> None:
    lab = Lab(A, B)
    lab.raised(range(FAULTS), A)
    lab.raised(range(10, 9 + FAULTS), B)
    with pytest.raises(ClusterError, match=f"the last error, from {B}: .*No space left"):
        lab.raised([20], B)


def test_tasks_that_the_scheduler_cannot_read_end_the_attempt() -> None:
    lab = Lab(A, B)
    lab.succeeded(0, A)
    lab.raised([1, 2], "")
    with pytest.raises(ClusterError, match="from the scheduler"):
        lab.raised([3], "")


@pytest.mark.parametrize("workers", [(A,), (A, B), (A, B, C, D)])
def test_a_model_that_no_worker_can_import_ends_the_attempt_before_anything_has_succeeded(
    workers: tuple[str, ...],
) -> None:
    error, lab = ModelError("it cannot be imported"), Lab(*workers)
    *before, last = workers[:3]
    for number, worker in enumerate(before):
        lab.raised([number], worker, error)
    with pytest.raises(ModelError):
        lab.raised([9], last, error)


def test_different_errors_and_errors_after_a_success_do_not_end_the_attempt() -> None:
    lab = Lab(A, B)
    lab.raised([1], A, ModelError("it cannot be imported"))
    lab.raised([2], B, InstallError("no network"))
    lab.succeeded(3, A)
    lab.raised([4], B, ModelError("it cannot be imported"))
    assert len(lab.again) == 3


def test_a_faulty_worker_that_has_left_does_not_count_against_the_others() -> None:
    """The count of good workers was one too low: a good cluster had no workers left."""
    lab = Lab(A, B)
    lab.raised(range(FAULTS - 1), A)
    lab.addresses = frozenset({B})
    lab.raised([9], A)
    assert len(lab.again) == FAULTS


def test_a_worker_that_restarts_after_an_error_does_not_end_the_attempt() -> None:
    """A moment without workers ended the attempt at its first error, in spite of MODELOPS_JOB_CLUSTER_TIMEOUT."""
    lab = Lab()
    lab.raised([0], A)
    assert lab.again == [(0, False)]


def test_a_new_worker_does_not_get_the_faults_of_the_one_before_it_at_its_address() -> None:
    """Only the faults of avoided workers were forgotten: a new worker was faulty after one task."""
    lab = Lab(A, B)
    lab.raised(range(FAULTS - 1), A, ModelError("it cannot be imported"))
    assert lab.recovery.worker_lost(LEFT) == []
    lab.raised([9], A)
    assert lab.avoided == frozenset()
    lab.raised([10], B, ModelError("it cannot be imported"))
    assert len(lab.again) == FAULTS + 1, "no two workers have this error"


def test_a_faulty_worker_that_has_left_is_not_avoided() -> None:
    lab = Lab(A, B)
    lab.raised(range(FAULTS), A)
    assert lab.avoided == {A}
    lab.recovery.worker_lost(LEFT)
    assert lab.avoided == frozenset()
