"""The smallest losses and the causes of failures that a terminal shows while a job runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from claimed_jobs import claimed_job, groups_of
from mops.attempt.progress import ResultsSoFar, earlier_best
from mops.storage.progress_record import BestLoss, Progress, read_live, write_live
from mops.task import Failure, Loss, TaskResult
from mops.verdicts import Counts


def result(**fields: Any) -> TaskResult:
    return TaskResult(keys=("k",), done=frozenset({0, 1, 2}), seconds=1.0, reference=None, **fields)


def failure(message: str, target: str | None = None, reason: str = "error") -> Failure:
    replicate, seed = (0, 1) if target is None else (None, None)
    return Failure(0, replicate, seed, target, reason, message, "", 1)


def so_far(*earlier: BestLoss) -> ResultsSoFar:
    return ResultsSoFar(lambda group: f"id of {group}", earlier)


def test_the_smallest_loss_of_each_target_is_kept_with_its_set() -> None:
    found = so_far(BestLoss("t:a", "a", 2.0, "earlier"), BestLoss("t:b", "b", -3.0, "earlier"))
    found.add_targets(result(losses=[Loss(0, "t:a", "a", 5.0, 1), Loss(1, "t:a", "a", 1.0, 1)]))
    found.add_targets(result(losses=[Loss(2, "t:b", "b", 0.0, 1), Loss(2, "t:c", "c", 1e300, 1)]))
    assert found.best == (
        BestLoss("t:a", "a", 1.0, "id of 1"),
        BestLoss("t:b", "b", -3.0, "earlier"),
        BestLoss("t:c", "c", 1e300, "id of 2"),
    )


def test_losses_of_groups_that_run_again_do_not_count() -> None:
    found = so_far()
    found.add_targets(result(losses=[Loss(7, "t:a", "a", 1.0, 1)]))
    assert found.best == ()


def test_each_failure_is_counted_once_by_its_message_without_numbers() -> None:
    found, whole = so_far(), result(failures=[failure("x is 3\nmore"), failure("x is 4"), failure("y", "t:a")])
    found.add_simulations(whole)
    assert [(one.verdict, one.message, one.n) for one in found.causes] == [("error", "x is 3", 2)]
    found.add_targets(whole)
    found.add_targets(result(failures=[failure("replicate 0 failed", "*")]))
    assert [(one.message, one.n) for one in found.causes] == [("x is 3", 2), ("y", 1)]


def test_many_causes_take_little_room() -> None:
    found = so_far()
    for i in range(1000):
        found.add_simulations(result(failures=[failure("x" * i + " is wrong " * 50)] * (2 if i == 50 else 1)))
    assert len(found.causes) == 5
    assert found.causes[0].n == 2
    assert len(found._causes) == 100
    assert max(len(one.message) for one in found._causes.values()) <= 200


def test_the_next_attempt_knows_the_smallest_losses_of_the_one_before(tmp_path: Path) -> None:
    """A loss may be larger than any other number that mops stores: an unusable record would look like a dead runner."""
    job = claimed_job(str(tmp_path), groups_of([1]))
    assert earlier_best(job) == []
    best = [BestLoss("t:a", "a", 1e300, "3f2a"), BestLoss("t:b", "b", -7, "3f2b")]
    live = Progress(1.0, Counts(), next_commit_s=3.5, best=tuple(best))
    write_live(job.files, job.paths, 1, live)
    assert read_live(job.files, job.paths, 1) == live
    job.attempt = 2
    assert earlier_best(job) == best
