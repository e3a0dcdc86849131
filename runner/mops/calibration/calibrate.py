"""Runs a calibration: rounds of jobs, with a record before and after each, from which every call continues.

A call reads the records, asks the method for the next sets, and runs these sets as a job. If the job of the round
exists, it resumes the job. docs/internals/calibration.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, cast

from mops.calibration.abc_smc import AbcSmc
from mops.calibration.calibration import Calibration
from mops.calibration.importance import ImportanceResampling
from mops.calibration.options import CalibrateOptions, Method, Plan
from mops.calibration.outcomes import outcomes_in
from mops.calibration.prepare import Begun, Place, begin
from mops.calibration.rounds import Fitting
from mops.errors import JobFailed
from mops.jobs.job import Job
from mops.jobs.launch import RunOptions, shows_options
from mops.jobs.submit import resume, submit
from mops.storage.calibration_records import Asked, Told
from mops.storage.job_records import job_exists
from mops.study.sampling.draw import varying

_ENDED = ("succeeded", "partial")


@dataclass(frozen=True)
class Progress:
    """What calibrate tells its caller.

    Parameters
    ----------
    round_starts
        Called with the sets of a round and its job, when the job exists and before it runs.
    round_ended
        Called with the calibration so far, after each round.
    """

    round_starts: Callable[[Asked, Job], None] = lambda *_: None
    round_ended: Callable[[Calibration], None] = lambda _: None


@shows_options(CalibrateOptions)
def calibrate(
    space: str | Path | Mapping[str, Any],
    study: str | Path | Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    project: str | Path | None = None,
    storage: str | Path | None = None,
    progress: Progress | None = None,
    **options: Unpack[CalibrateOptions],
) -> Calibration:
    """Fit parameters to data in rounds of jobs, and return the calibration.

    A call with the name of a calibration continues it, also after a kill at any moment. mops repeats no simulation that
    is committed.

    Parameters
    ----------
    space
        The path of a space.json, or a mapping like it: the parameters and their ranges.
    study
        The path of a study.json, or a mapping with its keys, whose parameter sets do not count; None: the options
        below are the study.
    name
        The name of the calibration. Round ``k`` is the job ``NAME-rk``. None: mops makes a name.
    project, storage
        As for :func:`mops.submit`.
    progress
        Functions that mops calls at the start and the end of each round.
    model, targets, replicates, scenario, outputs
        As for :func:`mops.submit`. They replace those of ``study``.
    method : str
        How mops chooses sets. ``"importance"``: a design over the space, then rounds near the best sets; each set gets
        a posterior weight. ``"abc"``: approximate Bayesian computation, which takes the total loss as a distance and
        keeps the nearest sets.
    n : int
        The number of sets in each new round; not given: 256.
    rounds : int
        The most rounds of the calibration, with those that have ended; not given: 8.
    seed : int
        The seed of the draws; not given: 0.
    weights : mapping of str to float
        The weight of each loss that counts, by its label, as for :meth:`mops.Job.best`; not given: the sum of all
        losses.
    temperature : float
        The total loss is divided by it; not given: 1, so that the total loss is minus the logarithm of the likelihood.
    ess : float
        The effective sample size below which there is no posterior. With ``"importance"``, the rounds end when it is
        reached. Not given: 200, for ``"abc"`` 50.
    take_over : bool
        Replace a runner that runs the job of the round.
    env, python, settings, local, on_progress
        As for :func:`mops.submit`.

    Raises
    ------
    UsageError
        The space, the study or an option is wrong; or this machine is connected to a service and ``local`` is not set.
    JobError
        A calibration of this name exists and fits something else, or another process runs it.
    JobFailed
        No set of a round has a loss, or as for :func:`mops.submit`.
    StorageError, ClusterError
        As for :func:`mops.submit`. The same call continues the calibration.

    Examples
    --------
    >>> fit = mops.calibrate("space.json", "study.json", name="fit", n=256, local=True)
    >>> fit.posterior().to_pandas()
    """
    plan = Plan.of(options)
    run_options = {
        key: value for key, value in options.items() if key in RunOptions.__annotations__ and value is not None
    }
    begun = begin(space, study, Place(name, project, storage), plan, options)
    return _Run(begun, plan, progress or Progress(), cast("RunOptions", run_options)).to_the_end()


@dataclass(frozen=True)
class _Run:
    """One call of calibrate."""

    begun: Begun
    plan: Plan
    progress: Progress
    options: RunOptions

    def to_the_end(self) -> Calibration:
        """Run the rounds that are left."""
        while not self._is_over(now := self._calibration()):
            k = len(now.rounds) + 1
            asked = self.begun.records.asked(k) or self._ask(now, k)
            job = Job(self.begun.records.files, asked.job)
            self._run_job(asked, job)
            if job.status().state not in _ENDED:
                return self._calibration(stopped=job.name)
            told = Told(k, job.name, tuple(outcomes_in(job, asked.sets)))
            self.begun.records.tell(told)
            self.progress.round_ended(self._calibration())
            if all(outcome.failure for outcome in told.outcomes):
                raise JobFailed(
                    f"no parameter set of round {k} has a loss",
                    where=f"job {job.name!r} in {job.files.url}",
                    hint=f"find out why: mops jobs status {job.name}",
                )
        return now

    def _is_over(self, now: Calibration) -> bool:
        if len(now.rounds) >= self.plan.rounds:
            return True
        return bool(now.rounds) and self._fitting().is_over(now.rounds, self.plan.ess)

    def _calibration(self, stopped: str | None = None) -> Calibration:
        """Return the calibration so far, from its records."""
        records, plan = self.begun.records, self.plan
        history = records.rounds()
        plan.loss.check(history)
        return Calibration(
            name=records.name,
            storage=records.files.url,
            rounds=history,
            varying=tuple(varying(self.begun.space)),
            loss=plan.loss,
            weights=self._fitting().weights(history) if history else [],
            least_ess=plan.ess,
            stopped=stopped,
        )

    def _fitting(self) -> Fitting:
        plan, space = self.plan, self.begun.space
        if plan.method is Method.ABC:
            return AbcSmc(space, plan.seed, plan.loss, "the space")
        return ImportanceResampling(space, plan.seed, plan.loss, plan.temperature, "the space")

    def _ask(self, now: Calibration, k: int) -> Asked:
        records = self.begun.records
        draw = self._fitting().ask(now.rounds, self.plan.n)
        asked = Asked(k, f"{records.name}-r{k}", tuple(draw.sets), draw.state)
        records.ask(asked)
        return asked

    def _run_job(self, asked: Asked, job: Job) -> None:
        """Run the job of a round, or what is left of it."""

        def starts(*_: object) -> None:
            self.progress.round_starts(asked, job)

        if not job_exists(job.files, job.name):
            study = self.begun.study | {"parameter_sets": list(asked.sets)}
            submit(
                study,
                project=self.begun.root,
                storage=job.files.url,
                name=job.name,
                on_start=starts,
                **self.options,
            )
        elif job.status().state not in _ENDED:
            resume(job, take_over=self.plan.take_over, on_start=starts, **self.options)
