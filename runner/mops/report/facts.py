"""Reads the state of a job once, so that all sections of a report tell of the same moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa

from mops.calibration.calibration import Calibration
from mops.calibration.fitted import calibration_with
from mops.errors import CorruptRecord, MopsError
from mops.figures.columns import Flags
from mops.figures.losses import ScoredSets
from mops.figures.timeline import Timeline
from mops.jobs.job import Job
from mops.jobs.plots.figure_data import has_run_of, observed_of, parameters_of, scored_of, timeline_of
from mops.jobs.status import Status
from mops.project.mops_toml import Observed
from mops.report.damage import READING_FAULTS, damage_of
from mops.storage.job_records import JobRecord
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Claim, End, LogView
from mops.storage.progress_record import Progress, read_live


@dataclass(frozen=True)
class Facts:
    """A job at one moment."""

    job: Job
    record: JobRecord
    status: Status
    view: LogView  # what its log says
    # the last sign of life of the last attempt, even if the attempt has ended; None: it gave none
    last_live: Progress | None
    causes: list[dict[str, Any]] | CorruptRecord  # the rows of ``Job.causes``, or why they cannot be read
    at: datetime
    target: str | None = None  # which losses rank the sets: as for ``Job.best``
    weights: Mapping[str, float] | None = None

    @classmethod
    def of(cls, job: Job, target: str | None = None, weights: Mapping[str, float] | None = None) -> Facts:
        """Read a job."""
        record = job.record
        view, status, paths = JobLog(job.files, record.paths).read(), job.status(), record.paths
        live = status.live or (read_live(job.files, paths, view.attempt) if view.attempt else None)
        return cls(job, record, status, view, live, _causes_of(job), datetime.now(UTC), target, weights)

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.job.name

    @property
    def has_ended(self) -> bool:
        """Whether no runner is expected to add results."""
        return self.status.state not in ("submitted", "running")

    @cached_property
    def n_without_loss(self) -> int | None:
        """The number of sets that have run and lack a loss; None: the job has no targets, or the losses are damaged."""
        try:
            return self.scored.n_run - self.n_scored if self.record.spec.targets else None
        except READING_FAULTS:
            return None

    @property
    def claims(self) -> list[Claim]:
        """The start of each attempt."""
        return [mark for mark in self.view.marks if isinstance(mark, Claim)]

    @property
    def end(self) -> End | None:
        """The end of the last attempt; None: it has none."""
        ends = [mark for mark in self.view.marks if isinstance(mark, End) and mark.n == self.view.attempt]
        return ends[-1] if ends else None

    @cached_property
    def scored(self) -> ScoredSets:
        """The parameter sets that have a loss."""
        return scored_of(self.job, self.target, self.weights)

    @property
    def n_scored(self) -> int:
        """The number of parameter sets that have all losses."""
        return self.scored.n_complete

    @cached_property
    def observed(self) -> list[Observed] | MopsError:
        """The data that the project declares for outputs, or why they cannot be read."""
        return observed_of(self.job)

    @cached_property
    def calibration(self) -> Calibration | None:
        """The calibration of which the job is a round; None: it is not one."""
        return calibration_with(self.job)

    @cached_property
    def timeline(self) -> Timeline:
        """The samples of the job."""
        return timeline_of(self.job)

    @cached_property
    def has_run(self) -> Flags:
        """Whether each group has committed results."""
        return has_run_of(self.job)

    @cached_property
    def parameters(self) -> pa.Table:
        """The parameters of each group, a row for each."""
        return parameters_of(self.job)


def _causes_of(job: Job) -> list[dict[str, Any]] | CorruptRecord:
    try:
        return list(job.causes().to_arrow().to_pylist())
    except READING_FAULTS as fault:
        return damage_of(job, fault)
