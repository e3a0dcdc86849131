"""What the sections of a report tell of: a job at one moment, and how its sets are ranked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from mops.calibration.calibration import Calibration
from mops.calibration.stored import calibration_with
from mops.errors import CorruptRecord, UsageError
from mops.figures.choices import Course, choose_course
from mops.figures.losses import ScoredSets
from mops.jobs.data import JobData, verify
from mops.jobs.figure_data import course_of, declared, is_single_row, scored_of
from mops.jobs.job import Job
from mops.jobs.summary import JobSummary, command, reasons_in, summary_of
from mops.storage.dataset import part_damaged

# What reading a damaged part raises. Changed bytes may still be pages that Arrow reads, with values that are wrong.
READING_FAULTS = (CorruptRecord, pa.ArrowException, UnicodeDecodeError)


def damage_of(fault: Exception, *several: JobData) -> CorruptRecord:
    """Return what is damaged of these jobs. Raises the fault again if all parts are as mops has written them."""
    if isinstance(fault, CorruptRecord):
        return fault
    for data in several:
        if problems := verify(data.files, data.name):
            return part_damaged(data.name, problems[0])
    raise fault


@dataclass(frozen=True)
class Facts:
    """A job at one moment; ``target`` and ``weights`` say which losses rank the sets, as for ``Job.best``."""

    data: JobData
    target: str | None = None
    weights: Mapping[str, float] | None = None

    @classmethod
    def of(cls, job: Job, target: str | None = None, weights: Mapping[str, float] | None = None) -> Facts:
        """Read a job."""
        return cls(JobData.read(job.files, job.name), target, weights)

    @cached_property
    def causes(self) -> list[dict[str, Any]]:
        """The rows of ``Job.causes``."""
        return list(self.data.cause_table.to_pylist())

    @cached_property
    def summary(self) -> JobSummary:
        """The job in words."""
        reasons, place = reasons_in(self.causes)
        now, last = self.data.status, self.data.last_live
        n = len(self.data.groups_run) - self.scored.n_complete if self.data.record.spec.targets else 0
        return summary_of(now, self.data.time_s, reasons=reasons, place=place, n_lacking=n, last=last)

    def command(self, *verb: str) -> str:
        """Return a command for the job. It names the storage, because a report is read anywhere."""
        return command(verb, self.data.name, "--storage", self.data.files.url)

    def data_of(self, job: str) -> JobData:
        """Return a job of the calibration at one moment."""
        if job == self.data.name:
            return self.data
        if job not in self._of_rounds:
            self._of_rounds[job] = JobData.read(self.data.files, job)
        return self._of_rounds[job]

    @property
    def read(self) -> list[JobData]:
        """The jobs that were read."""
        return [self.data, *self._of_rounds.values()]

    @cached_property
    def _of_rounds(self) -> dict[str, JobData]:
        return {}

    @property
    def has_ended(self) -> bool:
        """Whether no runner is expected to add results."""
        return self.data.state not in ("submitted", "running")

    @cached_property
    def scored(self) -> ScoredSets:
        """The parameter sets that have a loss."""
        return scored_of(self.data, self.target, self.weights)

    @cached_property
    def course_of_each(self) -> dict[str, Course | UsageError | None]:
        """The course of each output, those with data first; an error: why it has no figure; None: no course."""
        data = declared(self.data.observed)
        with_data = {output for output, *_ in data}
        found: dict[str, Course | UsageError | None] = {}
        for name in sorted(self.data.output_names, key=lambda name: name not in with_data):
            # Without data, a result with one row for each simulation, such as ``{"time": 3.5}``, has no course.
            has_course = choose_course({name: self.data.dataset("outputs", name).schema}, data=data) is not None
            if not has_course or (name not in with_data and is_single_row(self.data, name)):
                found[name] = None
                continue
            try:
                found[name] = course_of(self.data, name, places=data)
            except UsageError as several:
                found[name] = several
        return found

    @cached_property
    def calibration(self) -> Calibration | None:
        """The calibration of which the job is a round; None: it is not one."""
        return calibration_with(self.data)
