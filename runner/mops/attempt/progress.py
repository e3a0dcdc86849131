"""What a runner tells about its job: counts, rate and memory, and the live records and samples that it stores."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.text_log import TextLogBuffer
from mops.errors import JobFailed, MopsError
from mops.storage import advisory
from mops.storage.dataset import dataset_of
from mops.storage.progress_record import BestLoss, FailureCause, Progress, read_live, write_live
from mops.storage.samples import write_samples
from mops.system.process_memory import resident_bytes, tree_bytes
from mops.system.resources import allowed_bytes
from mops.task import LOSSES, Failure, Loss, TaskResult
from mops.units import shortened, without_varying
from mops.verdicts import Counts

logger = logging.getLogger(__name__)

_RATE_SECONDS = 20.0
_MEMORY_SECONDS = 1.0
# A job ends after so many simulations, or two for each slot, if all have failed with one cause and others are left.
FIRST_FAILURES = 100
_MOST_CAUSES = 100  # more causes are not counted: a terminal shows a few
_CAUSES_SHOWN = 5
_MESSAGE_CHARACTERS = 200

# The committing thread ticks twice a second, so a live record and a sample come about every 10 s.
LIVE_SECONDS = 9.0
FIRST_LIVE_SECONDS = 0.9  # the time between two live records in the first minute
WATCHED_SECONDS = 60.0  # after the start, a person often watches
_WRITE_SHARE = 0.05  # the most of the time that the first minute's live records may take, if the storage is slow
SAMPLE_SECONDS = 9.0
WRITE_SECONDS = 60.0
_MOST_SAMPLES = 60  # in one object; if the storage was slow for long, the oldest samples are dropped


class ProgressMeter:
    """Adds up results and commits, and measures rate and memory. :attr:`now` is replaced, so any thread may read it."""

    def __init__(self, job: ClaimedJob, results: ResultsSoFar):
        self._job, self._results = job, results
        self._began = time.monotonic()
        self.now = Progress(
            at=time.time(),
            finished=job.inherited_counts,
            job=job.name,
            durable=job.inherited_counts,
            total=job.groups.n_simulations,
            inherited=job.inherited_counts,
            n_groups=len(job.groups),
            n_groups_durable=len(job.groups) - len(job.todo),
            host=os.uname().nodename,
            pid=os.getpid(),
            settings=job.settings.to_json(),
        )
        self._marks: deque[tuple[float, int]] = deque([(self._began, self.now.finished.simulations)])
        self._measure_at = 0.0
        self._lock = threading.Lock()  # the loop and the committing thread replace different fields

    def set(self, **fields: Any) -> None:
        """Replace some fields."""
        with self._lock:
            self.now = replace(self.now, **fields)

    def add(self, counts: Counts, failed: Mapping[str, int]) -> None:
        """Count results that have reached the runner; raise if more simulations have failed than the settings allow."""
        ended = Counter({"good": counts.simulations_good, **failed})
        finished = self.now.finished + counts
        self.set(finished=finished, ended=dict(Counter(self.now.ended) + ended))
        now = time.monotonic()
        self._marks.append((now, finished.simulations))
        while len(self._marks) > 2 and now - self._marks[0][0] > _RATE_SECONDS:
            self._marks.popleft()
        n_failed, settings = finished.simulations_failed, self._job.settings
        if n_failed > settings.failures_allowed(self.now.total):
            raise JobFailed(
                f"{n_failed} simulations have failed, more than MODELOPS_JOB_MAX_FAILURES={settings.max_failures}",
                where=self._job.name,
                hint=f"see why they failed: mops jobs status {self._job.name}",
            )
        # If the first simulations of the job have all failed alike, all others probably will.
        causes = self._results.causes
        is_enough = n_failed >= max(FIRST_FAILURES, 2 * self.now.slots) and not finished.simulations_good
        if is_enough and len(causes) == 1 and self.now.left and settings.max_failures is None:
            raise JobFailed(
                f"the first {n_failed} simulations have all failed alike ({causes[0].verdict}: {causes[0].message})",
                where=self._job.name,
                hint=f"see why: mops jobs failures {self._job.name}; to run the others anyway, set "
                "MODELOPS_JOB_MAX_FAILURES=100% and resume the job",
            )

    def committed(self, counts: Counts, n_groups: int) -> None:
        """Count a commit."""
        now = self.now
        self.set(
            durable=now.durable + counts,
            n_groups_durable=now.n_groups_durable + n_groups,
            n_groups_committed=now.n_groups_committed + n_groups,
        )

    def look(self) -> Progress:
        """Measure, and return where the job stands. From any thread."""
        now = time.monotonic()
        if now >= self._measure_at:
            memory = tree_bytes(os.getpid())
            self.set(memory_bytes=memory, peak_bytes=max(self.now.peak_bytes, memory), limit_bytes=allowed_bytes())
            # Reading every process of a busy host takes long: at most 2 % of the time is spent on it.
            self._measure_at = now + max(_MEMORY_SECONDS, 50 * (time.monotonic() - now))
        since, before = self._marks[0]
        self.set(
            at=time.time(),
            rate=(self.now.finished.simulations - before) / max(now - since, 1e-9),
            seconds=now - self._began,
            best=self._results.best,
            causes=self._results.causes,
        )
        return self.now


class ProgressCallback:
    """Calls the user's ``on_progress``. Its first error is logged and becomes a RuntimeWarning; the job continues."""

    def __init__(self, job: str, on_progress: Callable[[Progress], None]):
        self._job, self._on_progress = job, on_progress
        self._failed = False

    def __call__(self, now: Progress) -> None:
        """Report the progress to the user."""
        try:
            self._on_progress(now)
        except Exception as error:
            if self._failed:
                return
            self._failed = True
            logger.warning("%s: on_progress raised an error; later ones are not logged", self._job, exc_info=True)
            # A program that handles no log lines does not see them.
            text = "".join(traceback.format_exception(error))
            with contextlib.suppress(RuntimeWarning):  # the caller may turn warnings into errors
                warnings.warn(
                    f"job {self._job!r} continues, but on_progress raised:\n{text}", RuntimeWarning, stacklevel=1
                )


def earlier_best(job: ClaimedJob) -> list[BestLoss]:
    """Return the smallest losses of earlier attempts, by the last live record, or of the sources of a derived job."""
    live = read_live(job.files, job.paths, job.attempt - 1) if job.attempt > 1 else None
    return list(live.best) if live and live.best else _taken_over_best(job)


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


class Samples:
    """Samples that wait to be written. Pure: the caller gives the time, in seconds of a monotonic clock."""

    def __init__(self, now: float):
        self._waiting: list[Progress] = []
        self._taken, self._written = now - SAMPLE_SECONDS, now  # the first one is due at once

    def is_due(self, now: float) -> bool:
        """Tell whether to take a sample."""
        return now - self._taken >= SAMPLE_SECONDS

    def add(self, now: float, sample: Progress) -> None:
        """Take a sample."""
        self._taken = now
        self._waiting.append(sample)
        del self._waiting[:-_MOST_SAMPLES]

    def to_write(self, now: float, *, last: bool = False) -> list[Progress]:
        """Return the samples to write now: about once a minute, and at the end."""
        if not last and now - self._written < WRITE_SECONDS:
            return []
        self._written = now
        waiting, self._waiting = self._waiting, []
        return waiting


class Observer:
    """Writes an attempt's live records and samples. Used by the committing thread alone."""

    def __init__(
        self,
        job: ClaimedJob,
        meter: ProgressMeter,
        text_log: TextLogBuffer,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._writer = advisory.Writer(job.files)
        self._job, self._meter, self._text_log, self._clock = job, meter, text_log, clock
        self._began = clock()
        self._live_at, self._live_took_s = float("-inf"), 0.0
        self._samples = Samples(self._began)
        self._n_written = 0

    def tick(self, open_bytes: int, *, last: bool = False) -> None:
        """Write a live record and samples, if they are due. At the attempt's end (``last``) everything is due."""
        now = self._clock()
        live_is_due = last or now - self._live_at >= self._live_interval_s(now)
        sample_is_due = last or self._samples.is_due(now)
        if not (live_is_due or sample_is_due):
            return
        # This thread knows what is durable before the loop does.
        seen = replace(
            self._meter.look(),
            durable=self._job.durable_counts,
            runner_bytes=resident_bytes(),
            open_bytes=open_bytes,
            lines=tuple(self._text_log.last_lines()),
        )
        if last:
            seen = replace(seen, next_commit_s=None)
        paths, attempt = self._job.paths, self._job.attempt
        if live_is_due:
            self._live_at = now
            self._writer.write("the sign of life", lambda files: write_live(files, paths, attempt, seen))
            self._live_took_s = self._clock() - now
        if sample_is_due:
            self._samples.add(now, seen.sample())
        if due := self._samples.to_write(now, last=last):
            self._n_written += 1
            n = self._n_written
            self._writer.write("samples of memory and rate", lambda files: write_samples(files, paths, attempt, n, due))

    def _live_interval_s(self, now: float) -> float:
        """Return the time between two live records: about 1 s in the first minute, and then about 10 s."""
        if now - self._began >= WATCHED_SECONDS:
            return LIVE_SECONDS
        return min(max(FIRST_LIVE_SECONDS, self._live_took_s / _WRITE_SHARE), LIVE_SECONDS)
