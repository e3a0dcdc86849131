"""Whether a worker is faulty, or a task, or nothing can run anywhere."""

from __future__ import annotations

from mops.attempt.faulty_workers import FAULTS, AfterFault, FaultyWorkers
from mops.errors import ModelError
from mops.task import Task

A, B = "tcp://a:1", "tcp://b:1"
FULL = OSError(28, "No space left on device")


def task(number: int, *, alone: bool = False) -> Task:
    return Task(number, (number,), alone=alone)


def test_a_faulty_worker_that_has_left_does_not_take_the_others_with_it() -> None:
    """The others were counted, and it was subtracted once more: a good cluster had no workers left."""
    faults = FaultyWorkers()
    assert [faults.raised(task(i), A, FULL, {A, B}) for i in range(FAULTS - 1)] == [AfterFault.ELSEWHERE] * (FAULTS - 1)
    assert faults.raised(task(9), A, FULL, {B}) is AfterFault.ELSEWHERE


def test_a_worker_that_is_restarted_after_an_error_is_waited_for() -> None:
    """No workers for a moment ended the attempt at its first error, whatever MODELOPS_JOB_CLUSTER_TIMEOUT."""
    assert FaultyWorkers().raised(task(0), A, FULL, set()) is AfterFault.ELSEWHERE


def test_a_model_that_the_only_worker_cannot_import_ends_the_attempt() -> None:
    assert FaultyWorkers().raised(task(0), A, ModelError("it cannot be imported"), {A}) is AfterFault.END


def test_nothing_can_run_where_all_workers_are_faulty() -> None:
    faults = FaultyWorkers()
    steps = [faults.raised(task(i), A if i < FAULTS else B, FULL, {A, B}) for i in range(2 * FAULTS)]
    assert steps == [AfterFault.ELSEWHERE] * (2 * FAULTS - 1) + [AfterFault.END]


def test_a_group_that_raises_everywhere_makes_no_worker_faulty() -> None:
    """Nothing good comes between what runs alone: each worker was faulty after three, and the job ended."""
    faults = FaultyWorkers()
    workers = {f"tcp://w:{i}" for i in range(4)}
    for worker in workers:
        faults.good(worker)
    for n in range(6 * FAULTS):
        worker = sorted(workers)[n % len(workers)]
        faults.raised(task(0, alone=n >= FAULTS), worker, FULL, workers)
    assert not faults.avoided


def test_a_worker_that_has_left_leaves_none_of_its_faults_to_the_next_one_of_its_address() -> None:
    """Only those of a worker that was avoided were forgotten: the new worker was faulty after one task."""
    faults = FaultyWorkers()
    for i in range(FAULTS - 1):
        faults.raised(task(i), A, FULL, {A, B})
    assert not faults.left(A)
    assert faults.raised(task(9), A, FULL, {A, B}) is AfterFault.ELSEWHERE
    assert not faults.avoided


def test_a_faulty_worker_that_has_left_is_not_avoided() -> None:
    faults = FaultyWorkers()
    for i in range(FAULTS):
        faults.raised(task(i), A, FULL, {A, B})
    assert faults.avoided == {A}
    assert faults.left(A)
    assert not faults.avoided
