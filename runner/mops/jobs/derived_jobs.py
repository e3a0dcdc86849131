"""Chooses the groups that a retry runs again. "Derived jobs" in docs/internals/storage.md explains derived jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import JobError, UsageError
from mops.jobs.job import Job
from mops.storage.job_records import JobRecord, Parent
from mops.storage.joblog.view import LogView
from mops.storage.params_file import load_groups
from mops.study.groups import GroupTable
from mops.study.ranges import Ranges
from mops.verdicts import VERDICTS, Counts


def wanted(verdicts: str | Iterable[str]) -> frozenset[str]:
    """Return the verdicts to retry, from names or a text like ``oom,timeout`` or ``all``.

    Raises
    ------
    UsageError
        No verdict is named, or a verdict is unknown.
    """
    words = verdicts.split(",") if isinstance(verdicts, str) else verdicts
    names = [text for word in words if (text := word.strip())]
    unknown = [repr(name) for name in names if name not in (*VERDICTS, "all")]
    if unknown or not names:
        raise UsageError(
            f"unknown verdict: {', '.join(unknown)}" if unknown else "no verdict is named",
            where="the verdicts to retry",
            hint=f"use {', '.join(VERDICTS)}, or all",
        )
    return frozenset(VERDICTS) if "all" in names else frozenset(names)


def parent(job: Job, record: JobRecord, view: LogView, verdicts: frozenset[str]) -> Parent:
    """Choose the groups of a job that run again, and count what the new job takes over.

    Raises
    ------
    JobError
        The job is not complete, or has no failure with these verdicts.
    """
    if view.end is None or not view.complete:
        state = job.status().state
        complete = f"mops jobs watch {job.name}" if state == "running" else f"mops jobs resume {job.name}"
        raise JobError(
            f"job {job.name!r} is {state}: only a complete job can be retried",
            where=job.files.url,
            hint=f"complete the job first: {complete}",
        )
    failures = job.failures(columns=["group", "target", "reason"]).to_arrow()
    if not failures.num_rows:
        raise JobError(
            f"no simulation or target of job {job.name!r} has failed",
            where=job.files.url,
            hint=f"read the results: mops jobs results {job.name}",
        )
    groups = Ranges.of(_groups(failures.filter(pc.is_in(failures["reason"], pa.array(sorted(verdicts))))))
    if not groups:
        found = {v: len(_groups(failures.filter(pc.equal(failures["reason"], v)))) for v in VERDICTS}
        counts = ", ".join(f"{n:,} with {verdict}" for verdict, n in found.items() if n)
        raise JobError(
            f"job {job.name!r} has no failure with the verdict {' or '.join(v for v in VERDICTS if v in verdicts)}",
            where=job.files.url,
            hint=f"name a verdict that the job has; parameter sets with failures: {counts}",
        )
    again = counts_of(groups, failures, load_groups(job.files, job.name), len(record.spec.targets))
    taken_over = record.taken_over_counts + view.counts - again
    return Parent(job=job.name, k=view.k, nonce=view.end.nonce, groups=groups, counts=taken_over)


def _groups(failures: pa.Table) -> list[int]:
    groups: list[int] = pc.unique(failures["group"]).to_pylist()
    return groups


def counts_of(groups: Ranges, failures: pa.Table, table: GroupTable, n_targets: int) -> Counts:
    """Count the simulations and targets of some committed groups.

    Parameters
    ----------
    failures
        The job's failures: columns ``group``, ``target`` and ``reason``.
    table
        The job's groups.
    n_targets
        The number of targets of each group.
    """
    theirs = failures.filter(pc.is_in(failures["group"], pa.array(list(groups), pa.int32())))
    rows = _counted(theirs["target"])
    simulations_failed = rows.pop(None, 0)
    without_losses = rows.pop("*", 0)  # one row for all targets of a group
    targets_failed = without_losses * n_targets + sum(rows.values())
    return Counts(
        simulations_good=sum(map(table.n_replicates, groups)) - simulations_failed,
        simulations_failed=simulations_failed,
        targets_good=len(groups) * n_targets - targets_failed,
        targets_failed=targets_failed,
        verdicts=_counted(theirs.filter(pc.fill_null(pc.not_equal(theirs["target"], "*"), fill_value=True))["reason"]),
    )


def _counted(values: pa.ChunkedArray) -> dict[Any, int]:
    return {kind["values"]: kind["counts"] for kind in pc.value_counts(values).to_pylist()}
