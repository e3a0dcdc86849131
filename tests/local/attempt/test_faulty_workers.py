"""Whether a worker is faulty, or a task, or the whole cluster."""

from __future__ import annotations

from mops.attempt.recovery import FAULTS, AfterFault, FaultyWorkers
from mops.errors import ModelError
from mops.task import Task

A, B = "tcp://a:1", "tcp://b:1"
FULL = OSError(28, "No space left on device")


def task(number: int, *, alone: bool = False) -> Task:
    return Task(number, (number,), alone=alone)


def test_a_faulty_worker_that_has_left_does_not_count_against_the_others() -> None:
    """The count of good workers was one too low: a good cluster had no workers left."""
    faults = FaultyWorkers()
    assert [faults.raised(task(i), A, FULL, {A, B}) for i in range(FAULTS - 1)] == [AfterFault.ELSEWHERE] * (FAULTS - 1)
    assert faults.raised(task(9), A, FULL, {B}) is AfterFault.ELSEWHERE


def test_a_worker_that_restarts_after_an_error_does_not_end_the_attempt() -> None:
    """A moment without workers ended the attempt at its first error, in spite of MODELOPS_JOB_CLUSTER_TIMEOUT."""
    assert FaultyWorkers().raised(task(0), A, FULL, set()) is AfterFault.ELSEWHERE


def test_a_model_that_the_only_worker_cannot_import_ends_the_attempt() -> None:
    assert FaultyWorkers().raised(task(0), A, ModelError("it cannot be imported"), {A}) is AfterFault.END


def test_the_attempt_ends_when_all_workers_are_faulty() -> None:
    faults = FaultyWorkers()
    steps = [faults.raised(task(i), A if i < FAULTS else B, FULL, {A, B}) for i in range(2 * FAULTS)]
    assert steps == [AfterFault.ELSEWHERE] * (2 * FAULTS - 1) + [AfterFault.END]


def test_a_group_that_raises_on_every_worker_makes_no_worker_faulty() -> None:
    """No task succeeds while one runs alone. So each worker counted as faulty after three errors, and the job ended."""
    faults = FaultyWorkers()
    workers = {f"tcp://w:{i}" for i in range(4)}
    for worker in workers:
        faults.succeeded(worker)
    for n in range(6 * FAULTS):
        worker = sorted(workers)[n % len(workers)]
        faults.raised(task(0, alone=n >= FAULTS), worker, FULL, workers)
    assert not faults.avoided


def test_a_new_worker_does_not_get_the_faults_of_the_one_before_it_at_its_address() -> None:
    """Only the faults of avoided workers were forgotten: a new worker was faulty after one task."""
    faults = FaultyWorkers()
    for i in range(FAULTS - 1):
        faults.raised(task(i), A, FULL, {A, B})
    assert not faults.worker_left(A)
    assert faults.raised(task(9), A, FULL, {A, B}) is AfterFault.ELSEWHERE
    assert not faults.avoided


def test_a_faulty_worker_that_has_left_is_not_avoided() -> None:
    faults = FaultyWorkers()
    for i in range(FAULTS):
        faults.raised(task(i), A, FULL, {A, B})
    assert faults.avoided == {A}
    assert faults.worker_left(A)
    assert not faults.avoided
