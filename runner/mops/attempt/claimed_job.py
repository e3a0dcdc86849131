"""A job, as the runner that has claimed it sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mops.settings import Settings
from mops.storage.files import Files
from mops.storage.job_records import JobRecord
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.view import LogView
from mops.storage.paths import JobPaths
from mops.study.groups import GroupTable
from mops.study.ranges import Ranges
from mops.task import JobContext


@dataclass
class ClaimedJob:
    """What an attempt knows of its job.

    Parameters
    ----------
    files
        The job's storage.
    record
        ``job.json``.
    groups
        All groups of the study.
    log
        The job's log; its last claim is this attempt's.
    context
        What the attempt's tasks share.

    Attributes
    ----------
    attempt
        The attempt's number, from 1.
    inherited
        The log at the claim: what earlier attempts committed.
    todo
        The groups that are left to run.
    """

    files: Files
    record: JobRecord
    groups: GroupTable
    log: JobLog
    context: JobContext
    settings: Settings
    name: str = field(init=False)
    paths: JobPaths = field(init=False)
    attempt: int = field(init=False)
    inherited: LogView = field(init=False)
    todo: Ranges = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.record.job
        self.paths = JobPaths(self.name)
        self.inherited = self.log.view
        self.attempt = self.inherited.attempt
        self.todo = self.record.todo(self.inherited.committed)
