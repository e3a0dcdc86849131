"""``mops.jobs()`` and ``mops.settings()``: what there is, as tables."""

from __future__ import annotations

import functools
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from mops.jobs.following.phases import phases_of
from mops.jobs.listing import Listed, list_jobs
from mops.jobs.location import described, locate
from mops.jobs.tables.conditions import Where
from mops.jobs.tables.scan import Computed, Selection
from mops.jobs.tables.table import Table
from mops.settings import Settings
from mops.storage.files import Files

JOBS = pa.schema(
    [
        pa.field("job", pa.string()),
        pa.field("state", pa.string()),
        pa.field("groups", pa.int32()),
        pa.field("n_groups", pa.int32()),
        pa.field("simulations_failed", pa.int64()),
        pa.field("created", pa.timestamp("s", "UTC")),
        pa.field("error", pa.string()),
    ]
)
SETTINGS = pa.schema([pa.field(name, pa.string()) for name in ("name", "value", "source", "meaning")])


def jobs(
    states: str | Collection[str] = (),
    limit: int | None = None,
    *,
    where: Where | None = None,
    storage: str | Path | None = None,
    local: bool = False,
) -> Table:
    """List the jobs of a storage, newest first, as ``mops jobs list`` does.

    Parameters
    ----------
    states
        Only jobs in these states, such as ``"running"`` or ``["running", "interrupted"]``; empty: all.
    limit
        At most this many of the newest; None: all.
    where
        A condition for the columns, as for :meth:`Job.outputs`.
    storage, local
        As for :func:`mops.open_job`.

    Returns
    -------
    Table
        A row for each job:

        - ``job`` (string): its name
        - ``state`` (string): as in :class:`~mops.jobs.status.Status`, or ``unreadable``
        - ``groups``, ``n_groups`` (int32): the committed groups, and all groups
        - ``simulations_failed`` (int64): the committed simulations that failed
        - ``created`` (timestamp in s, UTC): when the job was submitted
        - ``error`` (string): why the job is unreadable; null for other jobs

    Raises
    ------
    UsageError
        A state is unknown. This and errors of the storage and of Kubernetes are raised when the table is read.

    Examples
    --------
    >>> mops.jobs("running").to_pandas()
    """
    files = locate(storage, local=local).open()
    wanted = [states] if isinstance(states, str) else list(states)
    return Table(f"jobs in {files.url}", functools.partial(_jobs, files, wanted, limit, where, local))


def _jobs(files: Files, states: list[str], limit: int | None, where: Where | None, local: bool) -> Computed:
    listed = list_jobs(files.brief(), states, limit, phases=phases_of(files, local=local))
    rows = [_row(job) for job in listed]
    return Computed(pa.Table.from_pylist(rows, schema=JOBS), Selection(where=where))


def _row(job: Listed) -> dict[str, object]:
    return vars(job) | {"created": datetime.fromisoformat(job.created) if job.created else None}


def settings(*, local: bool = False) -> Table:
    """List every setting, as ``mops settings`` does.

    Parameters
    ----------
    local
        Leave a connected service aside.

    Returns
    -------
    Table
        ``name`` (string): the variable; ``value`` (string); ``source`` (string): where the value comes from;
        ``meaning`` (string).

    Examples
    --------
    >>> mops.settings().to_pandas()
    """

    def opened() -> Computed:
        lines = described(Settings.from_environment(), locate(local=local))
        rows = [{"name": one.name, "value": one.text, "source": one.source, "meaning": one.meaning} for one in lines]
        return Computed(pa.Table.from_pylist(rows, schema=SETTINGS), Selection())

    return Table("settings", opened)
