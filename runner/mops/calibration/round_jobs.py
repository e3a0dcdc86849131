"""Starts, watches and stops the jobs of the rounds.

If rounds do not overlap, this process runs the job of a round, or waits for the service that runs it. If rounds
overlap, each job has a runner in another process. docs/internals/calibration.md has the reasons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from mops.attempt.reporting.display import displayed
from mops.attempt.reporting.progress import Snapshot
from mops.calibration.options import Plan
from mops.calibration.prepare import Begun
from mops.calibration.round_of import differs_from_round, is_round
from mops.calibration.seeds import entries_of
from mops.errors import JobError, RunnerEnded
from mops.jobs.following.phases import Phases
from mops.jobs.following.wait import POLL_SECONDS, raise_failure, wait_for
from mops.jobs.job import Job
from mops.jobs.launch import Launch, RunOptions
from mops.jobs.prepare import listed_files, unpacked, with_sets
from mops.jobs.status import Status
from mops.jobs.submit import resume, submit_prepared
from mops.project.bundle import differing_files
from mops.service.service import Service
from mops.storage.calibration_records import Asked
from mops.storage.job_records import job_exists

ENDED = ("succeeded", "partial")


@dataclass(frozen=True)
class RoundJobs:
    """The jobs of the rounds of one call.

    Parameters
    ----------
    starts
        Called with the sets of a round and its job, when the job exists and before it runs.
    """

    begun: Begun
    plan: Plan
    options: RunOptions
    starts: Callable[[Asked, Job], None]
    _attempts_before: dict[str, int] = field(default_factory=dict)
    """The last attempt of each job before this call started it."""

    def start(self, asked: Asked) -> Job:
        """Run the job of a round, or what is left of it. If rounds overlap, only start it.

        A second call for the same round does nothing.

        Raises
        ------
        JobError
            A job has the name of the round's job, and is another one.
        """
        job = self._job(asked.job)
        if job.name in self._attempts_before:
            return job

        def starts(*_: object) -> None:
            self.starts(asked, job)

        status = job.status() if job_exists(job.files, job.name) else None
        if status is not None:
            self._refuse_other_job(job, asked)
        self._attempts_before[job.name] = 0
        if status is None:
            self._submit(asked, starts)
        elif status.state in ENDED:
            pass
        elif self._runs_elsewhere(job, status):
            starts()
            if not self.plan.overlaps:
                job.wait(self.options.get("on_progress"))
        else:
            self._attempts_before[job.name] = status.attempt
            self._resume(job, starts)
        return job

    def start_and_check(self, asked: Asked) -> Callable[[], None]:
        """Start the job of a round. Return a function that raises the error of the job if the job has failed."""
        job = self.start(asked)
        status = job.follower()

        def check() -> None:
            if self._has_failed(now := status()):
                raise_failure(job, now)

        return check

    def one_has_failed(self) -> bool:
        """Tell whether a job of this call has failed."""
        return any(self._has_failed(job.status()) for job in self._existing(self._attempts_before))

    def wait(self, job: Job, look: Callable[[Snapshot], None]) -> None:
        """Wait for the end of a job that this call has started elsewhere; raises as :meth:`mops.jobs.job.Job.wait`.

        Parameters
        ----------
        look
            Called about once a second with the progress of the job.
        """
        shown = self.options.get("on_progress")
        phases = Phases(job.name, self._service(job), self._attempts_before[job.name])
        with nullcontext(shown) if shown else displayed() as show:

            def show_and_look(now: Snapshot) -> None:
                show(now)
                look(now)

            wait_for(job, phases, show_and_look)

    def stop(self) -> None:
        """Cancel the jobs of all rounds that have not ended, and wait until their runners have stopped."""
        records = self.begun.records
        asked = [one for k in records.open_rounds() if (one := records.asked(k)) is not None]
        jobs = [job for one in asked for job in self._existing([one.job]) if is_round(job, self.begun.record, one)]
        stopping = [job for job in jobs if job.status().state in ("submitted", "running")]
        for job in stopping:
            job.cancel()
        while any(job.status().state == "running" for job in stopping):
            time.sleep(POLL_SECONDS)

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
        """Raise if a job with the name of the round's job is not the round."""
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

    def _resume(self, job: Job, starts: Callable[..., None]) -> None:
        try:
            resume(job, take_over=self.plan.take_over, on_start=starts, **self.options)
        except (JobError, RunnerEnded):
            # A command that was killed may have left a detached runner, which has claimed the job since we looked.
            now = job.status()
            if not (self.plan.overlaps and (now.state in ENDED or self._runs_elsewhere(job, now))):
                raise

    def _has_failed(self, now: Status) -> bool:
        """Tell whether a job has failed since this call started it."""
        return now.state == "failed" and now.attempt > self._attempts_before[now.job]

    def _runs_elsewhere(self, job: Job, status: Status) -> bool:
        """Tell whether a runner in another process runs the job, and continues without us."""
        if self.plan.take_over:
            return False
        if self.begun.service is None:
            return self.plan.overlaps and status.state == "running"
        return Phases(job.name, self._service(job)).may_continue(status)

    def _job(self, name: str) -> Job:
        return Job(self.begun.records.files, name, local=self.begun.service is None)

    def _existing(self, names: Iterable[str]) -> list[Job]:
        return [self._job(name) for name in names if job_exists(self.begun.records.files, name)]

    def _service(self, job: Job) -> Service | None:
        service = self.begun.service
        return replace(service, results=job.files.url) if service else None
