"""What an attempt will take and give: time from its first tasks, rows and bytes from what is committed.

The first good group of a job is committed as soon as it is there, so that its files tell (checkpoint/committer.py).
Pure; only :meth:`Forecast.committed` asks the storage for its free space.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mops.attempt.checkpoint.open_checkpoint import Limits
from mops.errors import StorageError
from mops.storage.files import Files
from mops.storage.joblog.view import LogView
from mops.study.column_families import Families
from mops.study.groups import IDENTITY_FIELDS
from mops.task import FAILURES, LOSSES
from mops.units import mebibytes

SETTLE_SECONDS = 2.0
"""How long is measured, from the first task on, before a time is said: many short jobs are over by then."""

MARGIN = 1.1
"""Room is wanted for so many times the expected bytes: groups differ, and the log and the samples need some too."""

COLUMN_BYTES = 130
"""What a column of a file takes besides its values: headers of pages, its lines in the footer. Measured: 125 to 140."""

_MEASURED_TASKS = 200


@dataclass(frozen=True)
class Expected:
    """What an attempt is expected to take and to give.

    Parameters
    ----------
    seconds
        Wall clock from now to the end; None: nothing is measured.
    rows
        Rows of all outputs that the attempt is to commit.
    bytes
        Bytes of Parquet that it is to commit.
    more
        Whether earlier attempts have committed a part of the job, which is not in here.
    """

    seconds: float | None
    rows: int
    bytes: int
    more: bool = False

    @classmethod
    def of_live(cls, fields: Mapping[str, object] | None) -> Expected | None:
        """Return the expectation in a sign of life; None: there is none, or another mops wrote it."""
        if not fields or set(fields) != {"seconds", "rows", "bytes", "more"}:
            return None
        seconds, rows, n_bytes = fields["seconds"], fields["rows"], fields["bytes"]
        if not isinstance(rows, int) or not isinstance(n_bytes, int) or not isinstance(seconds, int | float | None):
            return None
        return cls(seconds, rows, n_bytes, bool(fields["more"]))


@dataclass(frozen=True)
class OutputPerSimulation:
    """What each simulation gives, on average.

    Parameters
    ----------
    rows
        Rows of all outputs.
    bytes
        Their bytes in Parquet files, and those of losses and failures.
    file_bytes
        Bytes that one set of files, one for each table, takes besides.
    """

    rows: float
    bytes: float
    file_bytes: int


def output_per_simulation(view: LogView, families: Families) -> OutputPerSimulation | None:
    """Return what the committed simulations gave; None: none was good.

    Parameters
    ----------
    families
        The reference schema: the columns of each output.
    """
    if not view.counts.simulations_good:
        return None
    columns: dict[tuple[str, str | None], int] = {("losses", None): len(LOSSES), ("failures", None): len(FAILURES)}
    columns |= {("outputs", name): len(IDENTITY_FIELDS) + len(families[name]) for name in families}
    rows = sum(stored.rows for (kind, _), stored in view.stored.items() if kind == "outputs")
    n_bytes = sum(
        max(stored.bytes - COLUMN_BYTES * columns.get(table, 0) * stored.parts, stored.bytes // 10)
        for table, stored in view.stored.items()
    )
    file_bytes = COLUMN_BYTES * sum(columns[table] for table in view.stored if table in columns)
    return OutputPerSimulation(rows / view.counts.simulations, n_bytes / view.counts.simulations, file_bytes)


def seconds_per_simulation(tasks: Sequence[tuple[float, int]], slots: int) -> float | None:
    """Return the seconds that a simulation takes on one slot, its share of the targets included.

    A child's first task holds the model's first call, which imports and compiles. So the slowest tasks, one for each
    slot, are left out as soon as there are others.

    Parameters
    ----------
    tasks
        Seconds and simulations of the attempt's first tasks.
    """
    slowest_first = sorted(tasks, key=lambda task: -task[0] / max(task[1], 1))
    warm = slowest_first[min(slots, len(tasks) - 1) :] if tasks else []
    n = sum(simulations for _, simulations in warm)
    return sum(seconds for seconds, _ in warm) / n if n else None


def expected(
    each: OutputPerSimulation,
    limits: Limits,
    *,
    n_simulations: int,
    n_left: int,
    n_groups: int,
    each_s: float | None,
    slots: int,
    more: bool = False,
) -> Expected:
    """Return what an attempt will take and give.

    Parameters
    ----------
    limits
        When a checkpoint closes: each has files of its own.
    n_simulations, n_groups
        What the attempt is to commit.
    n_left
        Simulations that have not finished yet.
    each_s
        Seconds of a simulation on one slot; None: not measured.
    """
    seconds = None if each_s is None else n_left * each_s / max(slots, 1)
    n_bytes = each.bytes * n_simulations
    checkpoints = 1 + max((seconds or 0.0) / max(limits.seconds, 1.0), n_groups / limits.groups, n_bytes / limits.bytes)
    total = n_bytes + min(checkpoints, n_groups) * each.file_bytes
    return Expected(seconds, round(each.rows * n_simulations), math.ceil(total), more)


def check_room(files: Files, job: str, n_bytes: int) -> None:
    """Look whether the storage has room for what is still to be written, where it can tell.

    Raises
    ------
    StorageError
        It has not.
    """
    free, needed = files.free_bytes(), math.ceil(n_bytes * MARGIN)
    if free is not None and free < needed:
        raise StorageError(
            f"there is not enough room for the results: about {mebibytes(needed)} more are needed, "
            f"{mebibytes(free)} are free",
            where=files.url,
            hint=f"what is finished is kept: make room, then mops jobs resume {job}",
        )


class Forecast:
    """Gathers what an expectation rests on, and draws it up once.

    Parameters
    ----------
    inherited
        What earlier attempts committed.
    n_groups, n_simulations
        What this attempt is to commit.
    """

    def __init__(
        self,
        files: Files,
        job: str,
        limits: Limits,
        inherited: LogView,
        *,
        n_groups: int,
        n_simulations: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._files, self._job, self._limits, self._clock = files, job, limits, clock
        self._n_groups, self._n_simulations, self._more = n_groups, n_simulations, bool(inherited.committed)
        self._tasks: list[tuple[float, int]] = []
        self._since = 0.0
        self._each: OutputPerSimulation | None = None
        self._drawn_up: Expected | None = None

    def committed(self, view: LogView, kinds: Families | None) -> None:
        """Take what is committed, until it tells; then look whether there is room for the rest.

        Raises
        ------
        StorageError
            There is not.
        """
        if self._each is None and kinds is not None:
            self._each = output_per_simulation(view, kinds)
            if self._each is not None:
                check_room(self._files, self._job, self._expected(self._each, 0, 1).bytes)

    def measured(self, seconds: float, simulations: int) -> None:
        """Take the time of a task."""
        self._since = self._since or self._clock()
        if len(self._tasks) < _MEASURED_TASKS:
            self._tasks.append((seconds, simulations))

    def estimate(self, n_left: int, slots: int) -> Expected | None:
        """Return the expectation; None before enough is known, and for a job that is over before that.

        Parameters
        ----------
        n_left
            Simulations that have not finished yet.
        """
        settled = self._tasks and self._clock() - self._since >= SETTLE_SECONDS
        if self._drawn_up is None and self._each is not None and settled and n_left:
            self._drawn_up = self._expected(self._each, n_left, slots)
        return self._drawn_up

    def _expected(self, each: OutputPerSimulation, n_left: int, slots: int) -> Expected:
        return expected(
            each,
            self._limits,
            n_simulations=self._n_simulations,
            n_left=n_left,
            n_groups=self._n_groups,
            each_s=seconds_per_simulation(self._tasks, slots),
            slots=slots,
            more=self._more,
        )
