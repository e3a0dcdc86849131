"""Where a job stands: counts, rate, results so far, time left, memory of the process tree."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.results_so_far import ResultsSoFar
from mops.errors import JobFailed
from mops.storage.live_record import BestLoss, FailureCause, SlowStep
from mops.system.process_memory import tree_bytes
from mops.system.resources import allowed_bytes
from mops.verdicts import Counts

logger = logging.getLogger(__name__)


_RATE_SECONDS = 20.0
_MEMORY_SECONDS = 1.0
# A job ends after so many simulations, or two for each slot, if all have failed with one cause and others are left.
FIRST_FAILURES = 100


@dataclass(frozen=True)
class Snapshot:
    """Where a job stands.

    Parameters
    ----------
    finished, durable
        Counts of what has reached the runner, and of what is committed.
    total
        Simulations of the job.
    rate
        Simulations per second over the last 20 s; 0 before the first result.
    seconds_left
        Seconds until the end, without what runs much longer than others; None: unknown.
    seconds
        Time since the attempt began.
    memory_bytes, peak_bytes
        Resident memory of the runner's process tree, now and at its peak.
    in_flight, slots
        Groups in flight, and simulations that run at once.
    window
        The most groups in flight.
    children
        How child processes start, and why; empty before one has run a simulation.
    sizing
        How MODELOPS_JOB_BATCH_SIZE=auto chose the window; empty before it did, and if a number is set.
    ended
        Simulations that have reached the runner in this attempt, by verdict; good ones as ``good``.
    inherited
        Counts of the groups that earlier attempts committed, and of those that a retry took over.
    n_groups, n_groups_durable, n_groups_committed
        Groups of the job, those that are committed, and those that this attempt has committed.
    limit_bytes
        The memory limit of the container or of the machine; 0: unknown.
    next_commit_s
        Seconds until the next commit, at the latest; None: no result waits for one.
    best
        The smallest loss of each target.
    causes
        The most frequent causes of failures in this attempt.
    slow
        Simulations and targets that run much longer than others, the longest first.
    """

    job: str
    finished: Counts
    durable: Counts
    total: int
    rate: float
    seconds: float
    memory_bytes: int
    peak_bytes: int
    in_flight: int = 0
    slots: int = 0
    seconds_left: float | None = None
    window: int = 0
    children: str = ""
    sizing: str = ""
    ended: Mapping[str, int] = field(default_factory=dict)
    inherited: Counts = field(default_factory=Counts)
    n_groups: int = 0
    n_groups_durable: int = 0
    n_groups_committed: int = 0
    limit_bytes: int = 0
    next_commit_s: float | None = None
    best: tuple[BestLoss, ...] = ()
    causes: tuple[FailureCause, ...] = ()
    slow: tuple[SlowStep, ...] = ()

    @property
    def left(self) -> int:
        """Simulations that have neither succeeded nor failed."""
        return self.total - self.finished.simulations


class Progress:
    """Adds up results and commits, and measures rate and memory."""

    def __init__(self, job: ClaimedJob, results: ResultsSoFar):
        self._job, self._results, self._n_committed = job, results, 0
        self.finished = self.durable = job.inherited_counts
        self._ended: Counter[str] = Counter()
        self._began = time.monotonic()
        self._marks: deque[tuple[float, int]] = deque([(self._began, self.finished.simulations)])
        self._memory = self._peak = self._limit = 0
        self._measure_at = 0.0
        self.in_flight = self.slots = self.window = 0
        self.children = self.sizing = ""
        self.seconds_left: float | None = None
        self.next_commit_s: float | None = None
        self.slow: tuple[SlowStep, ...] = ()

    def add(self, counts: Counts, failed: Mapping[str, int]) -> None:
        """Count results that have reached the runner; raise if more simulations have failed than the settings allow."""
        self.finished += counts
        # Replaced and not changed, because another thread may be reading it.
        self._ended = self._ended + Counter({"good": counts.simulations_good, **failed})
        now = time.monotonic()
        self._marks.append((now, self.finished.simulations))
        while len(self._marks) > 2 and now - self._marks[0][0] > _RATE_SECONDS:
            self._marks.popleft()
        n_failed, settings = self.finished.simulations_failed, self._job.settings
        if n_failed > settings.failures_allowed(self._job.groups.n_simulations):
            raise JobFailed(
                f"{n_failed} simulations have failed, more than MODELOPS_JOB_MAX_FAILURES={settings.max_failures}",
                where=self._job.name,
                hint=f"see why they failed: mops jobs status {self._job.name}",
            )
        self._check_first_failures()

    def _check_first_failures(self) -> None:
        """Raise if the first simulations of the job have all failed alike, as all others probably will."""
        n_failed, causes = self.finished.simulations_failed, self._results.causes
        is_enough = n_failed >= max(FIRST_FAILURES, 2 * self.slots) and not self.finished.simulations_good
        if is_enough and len(causes) == 1 and self.n_left and self._job.settings.max_failures is None:
            raise JobFailed(
                f"the first {n_failed} simulations have all failed alike ({causes[0].verdict}: {causes[0].message})",
                where=self._job.name,
                hint=f"see why: mops jobs failures {self._job.name}; to run the others anyway, set "
                "MODELOPS_JOB_MAX_FAILURES=100% and resume the job",
            )

    @property
    def n_left(self) -> int:
        """Simulations that have not finished."""
        return self._job.groups.n_simulations - self.finished.simulations

    def committed(self, counts: Counts, n_groups: int) -> None:
        """Count a commit."""
        self.durable += counts
        self._n_committed += n_groups

    def snapshot(self) -> Snapshot:
        """Return where the job stands now. From any thread."""
        now = time.monotonic()
        if now >= self._measure_at:
            self._memory, self._limit = tree_bytes(os.getpid()), allowed_bytes()
            self._peak = max(self._peak, self._memory)
            # Reading every process of a busy host takes long: at most 2 % of the time is spent on it.
            self._measure_at = now + max(_MEMORY_SECONDS, 50 * (time.monotonic() - now))
        since, before = self._marks[0]
        rate = (self.finished.simulations - before) / max(now - since, 1e-9)
        return Snapshot(
            job=self._job.name,
            finished=self.finished,
            durable=self.durable,
            total=self._job.groups.n_simulations,
            rate=rate,
            seconds=now - self._began,
            memory_bytes=self._memory,
            peak_bytes=self._peak,
            in_flight=self.in_flight,
            slots=self.slots,
            seconds_left=self.seconds_left,
            window=self.window,
            children=self.children,
            sizing=self.sizing,
            ended=self._ended,
            inherited=self._job.inherited_counts,
            n_groups=len(self._job.groups),
            n_groups_durable=len(self._job.groups) - len(self._job.todo) + self._n_committed,
            n_groups_committed=self._n_committed,
            limit_bytes=self._limit,
            next_commit_s=self.next_commit_s,
            best=self._results.best,
            causes=self._results.causes,
            slow=self.slow,
        )


class ProgressCallback:
    """Calls the user's ``on_progress``. Its first error is logged and becomes a RuntimeWarning; the job continues."""

    def __init__(self, job: str, on_progress: Callable[[Snapshot], None]):
        self._job, self._on_progress = job, on_progress
        self._failed = False

    def __call__(self, snapshot: Snapshot) -> None:
        """Report a snapshot to the user."""
        try:
            self._on_progress(snapshot)
        except Exception as error:
            if self._failed:
                return
            self._failed = True
            logger.warning("%s: on_progress raised an error; later ones are not logged", self._job, exc_info=True)
            # While a job runs, mops logs only to the job's log, which the caller does not see.
            text = "".join(traceback.format_exception(error))
            with contextlib.suppress(RuntimeWarning):  # the caller may turn warnings into errors
                warnings.warn(
                    f"job {self._job!r} continues, but on_progress raised:\n{text}", RuntimeWarning, stacklevel=1
                )
