"""Forecasts the rows and bytes of an attempt from the first committed results.

The committer commits the first good group of a job at once, so that its files can be measured. Everything here is pure,
except that :meth:`Forecast.committed` asks the storage for its free space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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

MARGIN = 1.1
"""The room that the storage must have, as a multiple of the expected bytes: groups differ, and the log needs room."""

COLUMN_BYTES = 130
"""The overhead of a column in a file: page headers and its entries in the footer. Measured: 125 to 140."""


@dataclass(frozen=True)
class Expected:
    """The forecast of an attempt.

    Parameters
    ----------
    rows
        Rows of all outputs that the attempt will commit.
    bytes
        Bytes of Parquet that the attempt will commit.
    more
        Whether earlier attempts have committed results, which are not included.
    """

    rows: int
    bytes: int
    more: bool = False

    @classmethod
    def of_live(cls, fields: Mapping[str, object] | None) -> Expected | None:
        """Return the forecast in a sign of life; None if there is none, or another version of mops wrote it."""
        if not fields or set(fields) != {"rows", "bytes", "more"}:
            return None
        rows, n_bytes = fields["rows"], fields["bytes"]
        if not isinstance(rows, int) or not isinstance(n_bytes, int):
            return None
        return cls(rows, n_bytes, bool(fields["more"]))


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


def expected_bytes(each: OutputPerSimulation, limits: Limits, *, n_simulations: int, n_groups: int) -> int:
    """Return the bytes of Parquet that an attempt will commit.

    Parameters
    ----------
    limits
        When a checkpoint closes. Each checkpoint has files.
    n_simulations, n_groups
        What the attempt will commit.
    """
    n_bytes = each.bytes * n_simulations
    checkpoints = 1 + max(n_groups / limits.groups, n_bytes / limits.bytes)
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
    """Measures the first committed results of an attempt, and makes the forecast once."""

    def __init__(self, job: ClaimedJob):
        self._job = job
        self.expected: Expected | None = None
        """The forecast; None: no good simulation is committed, or nothing is left to run."""

    def committed(self, view: LogView, families: Families | None) -> None:
        """Measure the committed results, if they hold a good simulation; then check that the rest has room.

        Raises
        ------
        StorageError
            The storage has no room.
        """
        if self.expected is not None or families is None or not (n_groups := self._n_groups_left(view)):
            return
        each = output_per_simulation(view, families)
        if each is None:
            return
        job = self._job
        n_left = job.n_simulations - (view.counts.simulations - job.inherited.counts.simulations)
        check_room(job.files, job.name, self._bytes(each, n_left, n_groups))
        whole = self._bytes(each, job.n_simulations, len(job.todo))
        self.expected = Expected(round(each.rows * job.n_simulations), whole, bool(job.inherited.committed))

    def _n_groups_left(self, view: LogView) -> int:
        return len(self._job.todo) - (len(view.committed) - len(self._job.inherited.committed))

    def _bytes(self, each: OutputPerSimulation, n_simulations: int, n_groups: int) -> int:
        return expected_bytes(each, self._job.checkpoint_limits, n_simulations=n_simulations, n_groups=n_groups)
