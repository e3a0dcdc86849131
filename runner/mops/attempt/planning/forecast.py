"""Forecasts an attempt: its time from the first tasks, its rows and bytes from the committed results.

The committer commits the first good group of a job at once, so that its files can be measured. Everything here is pure,
except that :meth:`Forecast.committed` asks the storage for its free space.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mops.attempt.checkpoint.open_checkpoint import Limits
from mops.attempt.claimed_job import ClaimedJob
from mops.errors import StorageError
from mops.storage.files import Files
from mops.storage.joblog.view import LogView
from mops.study.column_families import Families
from mops.study.groups import IDENTITY_FIELDS
from mops.task import FAILURES, LOSSES
from mops.units import mebibytes

SETTLE_SECONDS = 2.0
"""How long to measure, from the first task, before a forecast is made. Many short jobs are over by then."""

MARGIN = 1.1
"""The room that the storage must have, as a multiple of the expected bytes: groups differ, and the log needs room."""

COLUMN_BYTES = 130
"""The overhead of a column in a file: page headers and its entries in the footer. Measured: 125 to 140."""

_MEASURED_TASKS = 200


@dataclass(frozen=True)
class Expected:
    """The forecast of an attempt.

    Parameters
    ----------
    seconds
        Wall-clock time until the end; None: nothing is measured.
    rows
        Rows of all outputs that the attempt will commit.
    bytes
        Bytes of Parquet that the attempt will commit.
    more
        Whether earlier attempts have committed results, which are not included.
    """

    seconds: float | None
    rows: int
    bytes: int
    more: bool = False

    @classmethod
    def of_live(cls, fields: Mapping[str, object] | None) -> Expected | None:
        """Return the forecast in a sign of life; None if there is none, or another version of mops wrote it."""
        if not fields or set(fields) != {"seconds", "rows", "bytes", "more"}:
            return None
        seconds, rows, n_bytes = fields["seconds"], fields["rows"], fields["bytes"]
        if not isinstance(rows, int) or not isinstance(n_bytes, int) or not isinstance(seconds, int | float | None):
            return None
        return cls(seconds, rows, n_bytes, bool(fields["more"]))


@dataclass(frozen=True)
class OutputPerSimulation:
    """The average output of a simulation.

    Parameters
    ----------
    rows
        Rows of all outputs.
    bytes
        Bytes in Parquet files, of outputs, losses and failures.
    file_bytes
        The overhead of one set of files, one for each table.
    """

    rows: float
    bytes: float
    file_bytes: int


def output_per_simulation(view: LogView, families: Families) -> OutputPerSimulation | None:
    """Return the average output of the committed simulations; None if none was good.

    Parameters
    ----------
    families
        The reference schema, with the columns of each output.
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
    """Return the time of a simulation on one slot, with its share of the targets; None if nothing was measured.

    The first task of a child process has the first call of the model, which imports and compiles. So the slowest
    tasks, one for each slot, are left out when there are others.

    Parameters
    ----------
    tasks
        Seconds and number of simulations of the attempt's first tasks.
    """
    slowest_first = sorted(tasks, key=lambda task: -task[0] / max(task[1], 1))
    warm = slowest_first[min(slots, len(tasks) - 1) :] if tasks else []
    n = sum(simulations for _, simulations in warm)
    return sum(seconds for seconds, _ in warm) / n if n else None


def expected_bytes(
    each: OutputPerSimulation, limits: Limits, *, n_simulations: int, n_groups: int, seconds: float | None
) -> int:
    """Return the bytes of Parquet that an attempt will commit.

    Parameters
    ----------
    limits
        When a checkpoint closes. Each checkpoint has files.
    n_simulations, n_groups
        What the attempt will commit.
    seconds
        How long that will take; None: not measured.
    """
    n_bytes = each.bytes * n_simulations
    checkpoints = 1 + max((seconds or 0.0) / max(limits.seconds, 1.0), n_groups / limits.groups, n_bytes / limits.bytes)
    return math.ceil(n_bytes + min(checkpoints, n_groups) * each.file_bytes)


def check_room(files: Files, job: str, n_bytes: int) -> None:
    """Check that the storage has room for more bytes, if it can tell.

    Raises
    ------
    StorageError
        It has no room.
    """
    free, needed = files.free_bytes(), math.ceil(n_bytes * MARGIN)
    if free is not None and free < needed:
        raise StorageError(
            f"there is not enough room for the results: they need about {mebibytes(needed)}, "
            f"and {mebibytes(free)} are free",
            where=files.url,
            hint=f"make room, then continue the job: mops jobs resume {job}",
        )


class Forecast:
    """Measures an attempt until there is enough for a forecast, and makes it once."""

    def __init__(self, job: ClaimedJob, *, clock: Callable[[], float] = time.monotonic):
        self._job, self._clock = job, clock
        self._tasks: list[tuple[float, int]] = []
        self._since = 0.0
        self._each: OutputPerSimulation | None = None
        self._expected: Expected | None = None

    def committed(self, view: LogView, families: Families | None) -> None:
        """Measure the committed results, if they hold a good simulation; then check that the rest has room.

        Raises
        ------
        StorageError
            The storage has no room.
        """
        if self._each is None and families is not None:
            self._each = output_per_simulation(view, families)
            if self._each is not None and (n_groups := self._n_groups_left(view)):
                before = self._job.inherited.counts
                n_simulations = self._job.n_simulations - (view.counts.simulations - before.simulations)
                check_room(self._job.files, self._job.name, self._bytes(self._each, None, n_simulations, n_groups))

    def _n_groups_left(self, view: LogView) -> int:
        return len(self._job.todo) - (len(view.committed) - len(self._job.inherited.committed))

    def task_finished(self, seconds: float, n_simulations: int) -> None:
        """Take the time of a task."""
        self._since = self._since or self._clock()
        if len(self._tasks) < _MEASURED_TASKS:
            self._tasks.append((seconds, n_simulations))

    def estimate(self, n_left: int, slots: int) -> Expected | None:
        """Return the forecast; None before enough is measured, and for a job that is over before that.

        Parameters
        ----------
        n_left
            Simulations that have not finished.
        """
        has_settled = self._tasks and self._clock() - self._since >= SETTLE_SECONDS
        if self._expected is None and self._each is not None and has_settled and n_left:
            each_s = seconds_per_simulation(self._tasks, slots)
            seconds = None if each_s is None else n_left * each_s / max(slots, 1)
            rows = round(self._each.rows * self._job.n_simulations)
            more = bool(self._job.inherited.committed)
            whole = self._bytes(self._each, seconds, self._job.n_simulations, len(self._job.todo))
            self._expected = Expected(seconds, rows, whole, more)
        return self._expected

    def _bytes(self, each: OutputPerSimulation, seconds: float | None, n_simulations: int, n_groups: int) -> int:
        limits = self._job.checkpoint_limits
        return expected_bytes(each, limits, n_simulations=n_simulations, n_groups=n_groups, seconds=seconds)
