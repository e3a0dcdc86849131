"""Runs the jobs of the rounds: in this process, or on the service, where a job continues without this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mops.calibration.options import Plan
from mops.calibration.prepare import Begun
from mops.calibration.round_of import differs_from_round
from mops.calibration.seeds import entries_of
from mops.errors import JobError
from mops.jobs.following import Phases
from mops.jobs.job import Job
from mops.jobs.launch import Launch, RunOptions
from mops.jobs.prepare import listed_files, unpacked, with_sets
from mops.jobs.status import Status
from mops.jobs.submit import resume, submit_prepared
from mops.project.difference import differing_files
from mops.storage.calibration_records import Asked
from mops.storage.job_records import job_exists

ENDED = ("succeeded", "partial")


@dataclass(frozen=True)
class RoundJobs:
    """The jobs of the rounds of one call."""

    begun: Begun
    plan: Plan
    options: RunOptions
    # Called with the sets of a round and its job, when the job exists and before it runs.
    starts: Callable[[Asked, Job], None]

    def run(self, asked: Asked) -> Job:
        """Run the job of a round, or what is left of it; raise JobError if its name belongs to another job."""
        job = Job(self.begun.records.files, asked.job, local=self.begun.service is None)

        def starts(*_: object) -> None:
            self.starts(asked, job)

        if not job_exists(job.files, job.name):
            self._submit(asked, starts)
            return job
        self._refuse_other_job(job, asked)
        status = job.status()
        if status.state in ENDED:
            return job
        if not self.plan.take_over and self._runs_on_service(job, status):
            starts()
            return job.wait(self.options.get("on_progress"))
        return resume(job, take_over=self.plan.take_over, on_start=starts, **self.options)

    def _submit(self, asked: Asked, starts: Callable[..., None]) -> None:
        begun = self.begun
        begun.require_data(trust=self.plan.trust_data)
        sets = entries_of(asked, begun.record.seed, begun.record.n_replicates)
        launch = Launch.of(self.options, storage=begun.records.files.url).with_limits(begun.prepared.limits)
        pending = [with_sets(begun.prepared, begun.study, sets)]
        # A deterministic model: the jobs of earlier rounds have simulations with the same seeds.
        reuse = bool(asked.kept_seeds) and begun.record.spec.outputs is None
        submit_prepared(pending, asked.job, launch, reuse=reuse, on_start=starts)

    def _refuse_other_job(self, job: Job, asked: Asked) -> None:
        begun = self.begun
        different = differs_from_round(job, begun.record, asked)
        if not different and job.record.bundle != begun.prepared.bundle.digest:
            folder = unpacked(job.files, job.record)
            names = [name for name, _ in differing_files(begun.prepared.bundle, folder) if name.endswith(".py")]
            different = [f"the file {name}" for name in names]
        if different:
            raise JobError(
                f"job {job.name!r} exists and is not round {asked.k} of calibration {begun.record.calibration!r}; "
                f"what differs: {listed_files(different)}",
                where=job.files.url,
                hint="give the calibration another name, or delete the job if you do not need it",
            )

    def _runs_on_service(self, job: Job, status: Status) -> bool:
        """Tell whether the service runs the job, as after a kill of the command that submitted it."""
        service = self.begun.service
        if service is None:
            return False
        return Phases(job.name, replace(service, results=job.files.url)).may_continue(status)
