"""What the results of an attempt have shown so far: the smallest loss of each target, and why simulations failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa

from mops.attempt.claimed_job import ClaimedJob
from mops.errors import MopsError
from mops.storage.dataset import dataset_of
from mops.storage.live_record import BestLoss, FailureCause, read_live
from mops.task import LOSSES, Failure, Loss, TaskResult
from mops.units import shortened, without_varying

logger = logging.getLogger(__name__)

_MOST_CAUSES = 100  # more causes are not counted: a terminal shows a few
_CAUSES_SHOWN = 5
_MESSAGE_CHARACTERS = 200


def earlier_best(job: ClaimedJob) -> list[BestLoss]:
    """Return the smallest losses of earlier attempts, which the last sign of life names, or of the job's parents."""
    live = read_live(job.files, job.paths, job.attempt - 1) if job.attempt > 1 else None
    return live.best if live is not None else _taken_over_best(job)


def _taken_over_best(job: ClaimedJob) -> list[BestLoss]:
    """Return the smallest losses that a derived job takes over. They are only for display, so a fault is logged."""
    best: dict[tuple[str, str], BestLoss] = {}
    try:
        losses = dataset_of(job.files, job.name, job.losses_taken_over, LOSSES)
        for batch in losses.to_batches(columns=["target", "name", "loss", "param_id"]):
            ordered = pa.table(batch).sort_by("loss").group_by(["target", "name"], use_threads=False)
            for row in ordered.aggregate([("loss", "first"), ("param_id", "first")]).to_pylist():
                found = BestLoss(row["target"], row["name"], row["loss_first"], row["param_id_first"])
                key = found.target, found.name
                if key not in best or found.loss < best[key].loss:
                    best[key] = found
    except (MopsError, OSError, pa.ArrowException) as bad:
        logger.warning("%s: the best losses that the job takes over are unknown: %s", job.name, bad)
    return list(best.values())


class ResultsSoFar:
    """Looks at each result once. Used by the delivering thread; any thread may read ``best`` and ``causes``."""

    def __init__(self, param_id: Callable[[int], str], earlier: Iterable[BestLoss] = ()):
        self._param_id = param_id
        self._best = {(one.target, one.name): one for one in earlier}
        self._causes: dict[tuple[str, str], FailureCause] = {}
        self._lock = threading.Lock()  # tasks that the runner gives up come from another thread
        self.best = tuple(self._best.values())
        self.causes: tuple[FailureCause, ...] = ()

    def add_simulations(self, result: TaskResult) -> None:
        """Count the failed simulations of a result."""
        with self._lock:
            self._count(failure for failure in result.failures if failure.target is None)

    def add_targets(self, result: TaskResult) -> None:
        """Take the losses of whole groups, and count the targets that raised errors."""
        with self._lock:
            # A target `*` has no losses because a simulation failed, which is counted already.
            self._count(failure for failure in result.failures if failure.target not in (None, "*"))
            smallest: dict[tuple[str, str], Loss] = {}
            for loss in result.losses:
                key = loss.target, loss.name
                if loss.group in result.done and (key not in smallest or loss.loss < smallest[key].loss):
                    smallest[key] = loss
            for key, loss in smallest.items():
                if key not in self._best or loss.loss < self._best[key].loss:
                    self._best[key] = BestLoss(*key, loss.loss, self._param_id(loss.group))
                    self.best = tuple(self._best.values())

    def _count(self, failures: Iterable[Failure]) -> None:
        is_new = False
        for failure in failures:
            message = failure.message.strip().partition("\n")[0]
            key = failure.reason, without_varying(message)  # messages that differ only in numbers are one cause
            if key not in self._causes and len(self._causes) < _MOST_CAUSES:
                text = shortened(message, _MESSAGE_CHARACTERS).encode(errors="replace").decode()
                self._causes[key] = FailureCause(failure.reason, text, 0)
            if (found := self._causes.get(key)) is not None:
                self._causes[key] = replace(found, n=found.n + 1)
                is_new = True
        if is_new:
            self.causes = tuple(sorted(self._causes.values(), key=lambda one: -one.n)[:_CAUSES_SHOWN])
