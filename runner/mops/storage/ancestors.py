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
    """The rows of a part, without those of some groups."""

    part: Part
    job: str  # the job that wrote the part
    without: Ranges  # groups of the part whose rows do not count; empty: the whole part counts
    groups: Ranges  # of the records that committed the part; no other group has rows in it


@dataclass(frozen=True)
class ResultSource:
    """A job that has rows: its log, and what ran again in jobs derived from it."""

    job: str
    log: WholeLog
    again: Ranges = field(default_factory=Ranges)  # groups whose losses and failures do not count
    simulated_again: Ranges = field(default_factory=Ranges)  # those of them whose outputs do not count either

    def rows(self, kind: str, output: str | None = None) -> Iterator[PartRows]:
        """Yield the rows of one table; kind and output as for :meth:`JobPaths.part`."""
        again = self.simulated_again if kind == "outputs" else self.again
        for one in self.log.parts:
            if table_of(one.part.path) == (kind, output):
                without = one.ranges & again
                if len(without) < len(one.ranges):
                    yield PartRows(one.part, self.job, without, one.ranges)


def ancestors(files: Files, record: JobRecord) -> list[ResultSource]:
    """Return the jobs from which a derived job takes rows over, the oldest first.

    CorruptRecord: a parent is missing, or another job has its name now.
    """
    found, again, simulated_again = [], Ranges(), Ranges()
    while record.parent is not None:
        parent, child = record.parent, record.job
        again, simulated_again = again | parent.groups, simulated_again | parent.simulated_again
        record, log = _complete(files, parent, child)
        found.append(ResultSource(parent.job, log, again, simulated_again))
    return found[::-1]


def _complete(files: Files, parent: Parent, child: str) -> tuple[JobRecord, WholeLog]:
    """Return the record and the log of a parent; CorruptRecord: it is not the complete job that the child names."""
    lost = CorruptRecord(
        f"job {child!r} takes rows over from job {parent.job!r}, which was deleted or replaced",
        where=f"{files.url}/{parent.paths.root}",
        hint="restore that folder from a backup or the storage's own history, or submit the study again",
    )
    # A deletion removes the job's record first, so if that is still there, the log before it was whole.
    log = read_whole(files, parent.paths)
    try:
        record = load_job(files, parent.job)
    except JobError as gone:
        raise lost from gone
    if record.id != parent.id or not log.view.complete:
        raise lost
    return record, log


def parts(sources: Iterable[ResultSource], kind: str, output: str | None = None) -> list[PartRows]:
    """Return the rows of one table over all sources, in their order."""
    return [rows for source in sources for rows in source.rows(kind, output)]


def families_of(files: Files, paths: JobPaths, views: Iterable[LogView]) -> Families | None:
    """Return the stored families of a job's columns, which fit its own log and those of its ancestors.

    None: there is no good simulation yet.
    """
    reference = read_reference(files, paths)
    return None if reference is None else join_families(reference, *(view.families for view in views))


def stored_families(files: Files, record: JobRecord, view: LogView) -> Families | None:
    """Return :func:`families_of` for a job and the view of its log."""
    return families_of(files, record.paths, [*(source.log.view for source in ancestors(files, record)), view])


def verify_job(files: Files, job: str) -> list[str]:
    """Check a job and every job from which it takes rows over, as :func:`mops.storage.joblog.verify.verify` does.

    JobError: the job does not exist.
    """
    record = load_job(files, job)
    problems = verify(files, record.paths, record.n_groups, record.taken_over)
    if record.parent is None:
        return problems
    try:
        _complete(files, record.parent, job)
        return problems + verify_job(files, record.parent.job)
    except (CorruptRecord, JobError) as bad:
        return [*problems, f"{NamePaths(job).record}: {bad.what}"]
