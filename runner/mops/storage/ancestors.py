"""Finds the parts that hold a job's rows: its own and, for a derived job, those of its ancestors.

docs/internals/storage.md, "Derived jobs", has the rules. :mod:`mops.storage.dataset` filters the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mops.errors import CorruptRecord, JobError
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, Parent, load_job, read_reference
from mops.storage.joblog.parts import WholeLog, read_whole
from mops.storage.joblog.records import Part
from mops.storage.joblog.verify import verify
from mops.storage.joblog.view import LogView
from mops.storage.paths import JobPaths, NamePaths, table_of
from mops.study.column_families import Families, join_families
from mops.study.ranges import Ranges


@dataclass(frozen=True)
class PartRows:
    """The rows of a part, without those of some groups.

    Parameters
    ----------
    job
        The job that wrote the part.
    without
        Groups of this part whose rows do not count; empty: the whole part counts.
    groups
        The groups of the records that committed the part. No other group has rows in it.
    """

    part: Part
    job: str
    without: Ranges
    groups: Ranges


@dataclass(frozen=True)
class ResultSource:
    """A job that has rows: its log, and what ran again in jobs derived from it.

    Parameters
    ----------
    again
        The groups that ran again: their losses and failures do not count.
    simulated_again
        Those of them whose outputs do not count either.
    """

    job: str
    log: WholeLog
    again: Ranges = field(default_factory=Ranges)
    simulated_again: Ranges = field(default_factory=Ranges)

    def rows(self, kind: str, output: str | None = None) -> Iterator[PartRows]:
        """Yield the rows of one table; kind and output as for :meth:`JobPaths.part`."""
        again = self.simulated_again if kind == "outputs" else self.again
        for part, ranges in ((one.part, one.ranges) for one in self.log.parts):
            if table_of(part.path) == (kind, output):
                without = ranges & again
                if len(without) < len(ranges):
                    yield PartRows(part, self.job, without, ranges)


def ancestors(files: Files, record: JobRecord) -> list[ResultSource]:
    """Return the jobs from which a derived job takes rows over, the oldest first.

    Raises
    ------
    CorruptRecord
        A parent is missing, or another job has its name now.
    """
    found, again, simulated_again = [], Ranges(), Ranges()
    while record.parent is not None:
        parent, child = record.parent, record.job
        again, simulated_again = again | parent.groups, simulated_again | parent.simulated_again
        found.append(ResultSource(parent.job, _log(files, parent, child), again, simulated_again))
        record = _record(files, parent, child)
    return found[::-1]


def _record(files: Files, parent: Parent, child: str) -> JobRecord:
    try:
        record = load_job(files, parent.job)
    except JobError as gone:
        raise _lost(files, parent, child) from gone
    if record.id != parent.id:
        raise _lost(files, parent, child)
    return record


def _log(files: Files, parent: Parent, child: str) -> WholeLog:
    log = read_whole(files, parent.paths)
    if not log.view.complete:
        raise _lost(files, parent, child)
    return log


def _lost(files: Files, parent: Parent, child: str) -> CorruptRecord:
    return CorruptRecord(
        f"job {child!r} takes rows over from job {parent.job!r}, which was deleted or replaced",
        where=f"{files.url}/{parent.paths.root}",
        hint="restore that folder from a backup or the storage's own history, or submit the study again",
    )


def parts(sources: Iterable[ResultSource], kind: str, output: str | None = None) -> list[PartRows]:
    """Return the rows of one table over all sources, in their order."""
    return [rows for source in sources for rows in source.rows(kind, output)]


def families_of(files: Files, paths: JobPaths, views: Iterable[LogView]) -> Families | None:
    """Return the stored families of a job's columns; None before the first good simulation.

    Parameters
    ----------
    views
        The views of the job's own log and of its ancestors' logs: the job's values must fit those of its ancestors.
    """
    reference = read_reference(files, paths)
    return None if reference is None else join_families(reference, *(view.families for view in views))


def stored_families(files: Files, record: JobRecord, view: LogView) -> Families | None:
    """Return :func:`families_of` for a job and the view of its log."""
    return families_of(files, record.paths, [*(source.log.view for source in ancestors(files, record)), view])


def verify_job(files: Files, job: str) -> list[str]:
    """Check a job's log and parts, and those of every job from which it takes rows over; reads every part.

    Returns
    -------
    list[str]
        One sentence for each problem.

    Raises
    ------
    JobError
        The job does not exist.
    NewerFormat, StorageError
        As for :func:`mops.storage.joblog.verify.verify`.
    """
    record = load_job(files, job)
    problems = verify(files, record.paths, record.n_groups, record.taken_over)
    if record.parent is None:
        return problems
    try:
        _record(files, record.parent, job)
        _log(files, record.parent, job)
        return problems + verify_job(files, record.parent.job)
    except (CorruptRecord, JobError) as bad:
        return [*problems, f"{NamePaths(job).record}: {bad.what}"]
