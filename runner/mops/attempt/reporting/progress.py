"""Where a job stands: counts, rate, time left, memory of the process tree."""

from __future__ import annotations

import logging
import os
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mops.attempt.planning.forecast import Expected
from mops.system.process_memory import tree_bytes
from mops.verdicts import Counts

logger = logging.getLogger(__name__)

_RATE_SECONDS = 20.0
_MEMORY_SECONDS = 1.0


@dataclass(frozen=True)
class Snapshot:
    """Where a job stands, for whoever shows it.

    Parameters
    ----------
    finished, durable
        Counts of what has reached the runner, and of what is committed.
    total
        Simulations of the job.
    rate
        Simulations per second over the last 20 s; 0 before the first result.
    seconds
        Since the attempt began.
    memory_bytes, peak_bytes
        Resident memory of the runner's process tree, now and at its highest.
    in_flight, slots
        Groups sent and not yet back, and simulations that run at once.
    expected
        What the attempt will take and give; None until it is known.
    window
        The most groups in flight at this moment.
    children
        How child processes are started, and why; empty until one has run something.
    sizing
        The arithmetic of MODELOPS_JOB_BATCH_SIZE=auto; empty before it is done, and where a number is set.
    ended
        Simulations that have reached the runner in this attempt, by verdict; ``good`` is one.
    inherited
        Counts of what earlier attempts committed, and of what a retry took over.
    n_groups, n_groups_durable
        Groups of the job, and those that are committed, by whichever attempt.
    n_groups_committed
        Those that this attempt has committed.
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
    expected: Expected | None = None
    window: int = 0
    children: str = ""
    sizing: str = ""
    ended: Mapping[str, int] = field(default_factory=dict)
    inherited: Counts = field(default_factory=Counts)
    n_groups: int = 0
    n_groups_durable: int = 0
    n_groups_committed: int = 0

    @property
    def left(self) -> int:
        """Simulations that have neither succeeded nor failed."""
        return self.total - self.finished.simulations

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end at the present rate; None where there is no rate yet."""
        return self.left / self.rate if self.rate else None


class Progress:
    """Takes counts as they come, and measures.

    Parameters
    ----------
    inherited
        What earlier attempts committed.
    n_groups, n_todo
        Groups of the job, and those that are not committed yet.
    """

    def __init__(self, job: str, total: int, inherited: Counts, *, n_groups: int = 0, n_todo: int = 0):
        self._job, self._total = job, total
        self._n_groups, self._n_todo, self._n_committed = n_groups, n_todo, 0
        self.finished = self.durable = self._inherited = inherited
        self._ended: Counter[str] = Counter()
        self._began = time.monotonic()
        self._marks: deque[tuple[float, int]] = deque([(self._began, inherited.simulations)])
        self._memory = self._peak = 0
        self._measure_at = 0.0
        self.in_flight = self.slots = self.window = 0
        self.children = self.sizing = ""
        self.expected: Expected | None = None

    def note_start(self, how: str) -> None:
        """Note how workers start child processes."""
        self.children = how

    def took(self, counts: Counts, failed: Mapping[str, int]) -> None:
        """Count what has reached the runner.

        Parameters
        ----------
        failed
            The failed simulations, by verdict.
        """
        self.finished += counts
        # A new one: another thread may be reading the old one.
        self._ended = self._ended + Counter({"good": counts.simulations_good, **failed})
        now = time.monotonic()
        self._marks.append((now, self.finished.simulations))
        while len(self._marks) > 2 and now - self._marks[0][0] > _RATE_SECONDS:
            self._marks.popleft()

    @property
    def left(self) -> int:
        """Simulations that have neither succeeded nor failed."""
        return self._total - self.finished.simulations

    def committed(self, counts: Counts, n_groups: int) -> None:
        """Count what is durable."""
        self.durable += counts
        self._n_committed += n_groups

    def snapshot(self) -> Snapshot:
        """Return where the job stands now."""
        now = time.monotonic()
        if now >= self._measure_at:
            self._memory = tree_bytes(os.getpid())
            self._peak = max(self._peak, self._memory)
            # Looking through every process of a busy host takes long: never more than 2 % of the time.
            self._measure_at = now + max(_MEMORY_SECONDS, 50 * (time.monotonic() - now))
        since, before = self._marks[0]
        rate = (self.finished.simulations - before) / max(now - since, 1e-9)
        return Snapshot(
            job=self._job,
            finished=self.finished,
            durable=self.durable,
            total=self._total,
            rate=rate,
            seconds=now - self._began,
            memory_bytes=self._memory,
            peak_bytes=self._peak,
            in_flight=self.in_flight,
            slots=self.slots,
            expected=self.expected,
            window=self.window,
            children=self.children,
            sizing=self.sizing,
            ended=self._ended,
            inherited=self._inherited,
            n_groups=self._n_groups,
            n_groups_durable=self._n_groups - self._n_todo + self._n_committed,
            n_groups_committed=self._n_committed,
        )


class ProgressCallback:
    """Calls the user's ``on_progress``. Its first error is logged and becomes a RuntimeWarning, and the job continues.

    A KeyboardInterrupt there stops the runner.

    Parameters
    ----------
    stop
        Stops the runner, unless it stops already.
    """

    def __init__(self, job: str, on_progress: Callable[[Snapshot], None], stop: Callable[[], None]):
        self._job, self._on_progress, self._stop = job, on_progress, stop
        self._failed = False

    def __call__(self, snapshot: Snapshot) -> None:
        """Call it."""
        try:
            self._on_progress(snapshot)
        except KeyboardInterrupt:
            self._stop()
        except Exception as error:
            if self._failed:
                return
            self._failed = True
            logger.warning("%s: on_progress raised an error; later ones are not logged", self._job, exc_info=True)
            # While a job runs, mops logs to the job's log only: a warning is what the caller sees.
            text = "".join(traceback.format_exception(error))
            warnings.warn(f"job {self._job!r} continues, but on_progress raised:\n{text}", RuntimeWarning, stacklevel=1)
