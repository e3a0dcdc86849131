"""The job of this runner: its records, its storage, its log, and how the attempt ends in the log."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from mops.attempt.job_families import JobFamilies
from mops.attempt.stored import StoredSimulations
from mops.errors import ClusterError, MopsError, StorageError, Terminated
from mops.settings import Settings
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, keep_finished
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import LogView, State
from mops.storage.paths import JobPaths
from mops.storage.progress_record import write_error
from mops.storage.sources import PartRows, families_of, part_rows, source_logs
from mops.study.column_families import join_families
from mops.study.groups import GroupTable
from mops.study.ranges import Ranges
from mops.task import JobContext
from mops.verdicts import Counts

logger = logging.getLogger(__name__)

GRACE_SECONDS = 10.0  # how long running simulations may continue after a request to stop


@dataclass
class ClaimedJob:
    """A job that this runner has claimed."""

    files: Files
    record: JobRecord
    groups: GroupTable  # all groups of the study
    log: JobLog  # its last claim is this attempt's
    context: JobContext
    settings: Settings
    name: str = field(init=False)
    paths: JobPaths = field(init=False)
    attempt: int = field(init=False)  # from 1
    inherited: LogView = field(init=False)  # the log at the claim: what earlier attempts committed
    inherited_counts: Counts = field(init=False)  # of ``inherited``, and of what a derived job took over
    todo: Ranges = field(init=False)  # the groups to run
    stored: StoredSimulations = field(init=False)  # the simulations of these groups that need not run
    families: JobFamilies = field(init=False)  # of the columns
    losses_taken_over: list[PartRows] = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.record.job
        self.paths = self.record.paths
        self.inherited = self.log.view
        self.inherited_counts = self.durable_counts
        self.attempt = self.inherited.attempt
        self.todo = self.record.todo(self.inherited.committed)
        sources = source_logs(self.files, self.record)
        own = known = families_of(self.files, self.paths, [self.inherited])
        if own is not None:
            known = join_families(own, *(source.log.view.families for source in sources))
        self.families = JobFamilies(known, own)
        self.losses_taken_over = part_rows(sources, "losses")
        self.stored = StoredSimulations(self.files, self.record, sources, has_targets=bool(self.context.targets))

    def replicates_to_run(self, group: int) -> range:
        """Return the replicates of a group whose rows are not stored in place."""
        return range(self.stored.n_in_place(group), self.groups.n_replicates(group))

    def param_id(self, group: int) -> str:
        """Return the param_id of a group."""
        return str(self.groups.param_ids([group])[0])

    def n_to_run(self, group: int) -> int:
        """Return how many replicates of a group are not stored in place."""
        return len(self.replicates_to_run(group))

    @property
    def durable_counts(self) -> Counts:
        """The counts of committed groups and of what a derived job took over. For the thread that uses the log."""
        return self.record.taken_over_counts + self.log.view.counts

    def record_error(self, error: Exception) -> None:
        """Store the error that ends the attempt, unless the storage refuses it: the command prints it in any case."""
        assert self.inherited.claim is not None
        seconds = time.time() - self.inherited.claim.time
        try:
            write_error(self.files.brief(), self.paths, self.attempt, seconds, error)
        except StorageError as refused:
            logger.debug("%s: the storage lacks the error that ended the attempt: %s", self.name, refused)

    def end_attempt(self, failure: MopsError | None, *, handed_over_by: int | None) -> State:
        """Append the attempt's end to the log, unless the next runner continues the job; return the state, or raise."""
        if isinstance(failure, ClusterError):  # the log has no end, so that the next runner resumes the job
            raise failure
        if failure is not None:
            self.record_error(failure)  # first: who sees the end in the log looks for its reason
            self.log.end("failed", totals=self.log.view.counts)
            raise failure
        state = end_state(self.record, self.log.view)
        # A cancel in the log overrides the signal that stopped the attempt for the next runner.
        if state == "cancelled" and handed_over_by is not None and not self.log.cancelled:
            raise Terminated(self.name, handed_over_by, where=self.files.url)
        self.log.end(state, totals=self.log.view.counts)
        end = self.log.view.end
        if end is not None and end.complete:
            what = "the copy of the job's end, for quick listing,"
            advisory.Writer(self.files).write(what, lambda files: keep_finished(files, self.paths, end))
        return state


def end_state(record: JobRecord, view: LogView) -> State:
    """Return the state with which an attempt ends if nothing went wrong."""
    if record.todo(view.committed):
        return "cancelled"
    return "partial" if (record.taken_over_counts + view.counts).failed else "succeeded"
