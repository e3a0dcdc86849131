"""Finds the parts that hold a job's rows: its own and, for a derived job, those of its sources.

docs/internals/storage.md, "Derived jobs", has the rules. :mod:`mops.storage.dataset` filters the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mops.errors import CorruptRecord, JobError
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, Source, load_job, read_reference
from mops.storage.joblog.log import WholeLog, read_whole
from mops.storage.joblog.records import LogView, Part
from mops.storage.joblog.verify import verify
from mops.storage.params_file import load_groups
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
class SourceLog:
    """A job that has rows, and its log."""

    source: Source
    log: WholeLog

    def rows(self, kind: str, output: str | None = None) -> Iterator[PartRows]:
        """Yield the rows of one table; kind and output as for :meth:`JobPaths.part`."""
        counts = self.source.outputs if kind == "outputs" else self.source.losses
        for one in self.log.parts:
            if table_of(one.part.path) == (kind, output):
                without = one.ranges - counts
                if len(without) < len(one.ranges):
                    yield PartRows(one.part, self.source.job, without, one.ranges)


def source_logs(files: Files, record: JobRecord) -> list[SourceLog]:
    """Read the log of each job from which a derived job takes rows over, the oldest job first.

    CorruptRecord: a source is missing, or another job has its name now.
    """
    return [SourceLog(source, _complete(files, source, record.job)[1]) for source in record.sources]


def _complete(files: Files, source: Source, job: str) -> tuple[JobRecord, WholeLog]:
    """Return the record and the log of a source; CorruptRecord: it is not the complete job that ``job`` names."""
    lost = CorruptRecord(
        f"job {job!r} takes rows over from job {source.job!r}, which was deleted or replaced",
        where=f"{files.url}/{source.paths.root}",
        hint="restore that folder from a backup or the storage's own history, or submit the study again",
    )
    # A deletion removes the job's record first, so if that is still there, the log before it was whole.
    log = read_whole(files, source.paths)
    try:
        record = load_job(files, source.job)
    except JobError as gone:
        raise lost from gone
    if record.id != source.id or not log.view.complete:
        raise lost
    return record, log


def part_rows(sources: Iterable[SourceLog], kind: str, output: str | None = None) -> list[PartRows]:
    """Return the rows of one table over all sources, in their order."""
    return [rows for source in sources for rows in source.rows(kind, output)]


def families_of(files: Files, paths: JobPaths, views: Iterable[LogView]) -> Families | None:
    """Return the stored families of a job's columns, which fit its own log and those of its sources.

    None: there is no good simulation yet.
    """
    reference = read_reference(files, paths)
    return None if reference is None else join_families(reference, *(view.families for view in views))


def stored_families(files: Files, record: JobRecord, view: LogView) -> Families | None:
    """Return :func:`families_of` for a job and the view of its log."""
    return families_of(files, record.paths, [*(source.log.view for source in source_logs(files, record)), view])


class FirstReplicates:
    """How many of a group's first replicates a derived job need not run, because their outputs are in its sources."""

    def __init__(self, files: Files, record: JobRecord):
        groups = record.simulated
        some = [(source.outputs & groups, source) for source in reversed(record.sources)]
        self._tables = [(theirs, load_groups(files, source.paths)) for theirs, source in some if theirs]

    def n(self, group: int) -> int:
        """Return the number of them. From any thread."""
        # The newest source that ran the group had all its replicates of then, those of older sources included.
        for groups, table in self._tables:
            if group in groups:
                return table.n_replicates(group)
        return 0


def verify_job(files: Files, job: str) -> list[str]:
    """Check a job and every job from which it takes rows over, as :func:`mops.storage.joblog.verify.verify` does.

    JobError: the job does not exist.
    """
    record = load_job(files, job)
    problems = verify(files, record.paths, record.n_groups, record.taken_over)
    for source in record.sources:
        try:
            its, log = _complete(files, source, job)
            problems += verify(files, source.paths, its.n_groups, its.taken_over)
        except (CorruptRecord, JobError) as bad:
            problems.append(f"{NamePaths(job).record}: {bad.what}")
            continue
        problems += [
            f"{NamePaths(job).record}: takes groups {start} to {stop - 1} over from job {source.job!r}, which has none"
            for start, stop in ((source.losses | source.outputs) - log.view.committed).intervals
        ]
    return problems
