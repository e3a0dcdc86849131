"""Reads the log of a job and of its compactions whole, for readers of rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mops.storage.files import Files
from mops.storage.joblog.compactions import CompactionLog, CompactionView
from mops.storage.joblog.current_parts import CurrentPart, current_parts
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Commit
from mops.storage.joblog.view import LogView
from mops.storage.paths import JobPaths


@dataclass(frozen=True, eq=False)
class WholeLog:
    """A log with every commit, and the job's compactions. It is large: do not keep it."""

    view: LogView
    commits: tuple[Commit, ...]
    compactions: CompactionView

    @cached_property
    def parts(self) -> list[CurrentPart]:
        """The parts that count, in the order of the commits. Raises CorruptRecord as :func:`current_parts`."""
        return current_parts(self.commits, self.compactions.compacts)


def read_whole(files: Files, paths: JobPaths) -> WholeLog:
    """Read a log to its end with every commit, and then the compactions (rule 21); raises as :meth:`JobLog.read`."""
    log = JobLog(files, paths)
    commits = tuple(record for record in log.records() if isinstance(record, Commit))
    return WholeLog(log.view, commits, read_compactions(files, paths, log.view))


def read_compactions(files: Files, paths: JobPaths, view: LogView) -> CompactionView:
    """Read the compactions of a job with this log; raises as :meth:`CompactionLog.read`."""
    return CompactionLog(files, paths).read() if view.complete else CompactionView()
