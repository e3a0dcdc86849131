"""Runs a calibration: rounds of jobs, with a record before and after each, from which every call continues.

A call reads the records, asks the method for the next sets, and runs these sets as a job. If the job of the round
exists, it resumes the job. docs/internals/calibration.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack, cast

from mops.calibration.calibration import Calibration
from mops.calibration.options import CalibrateOptions, Plan, plan_of
from mops.calibration.prepare import Begun, begin
from mops.calibration.rounds import entries_of, kept_seeds, outcomes_in
from mops.errors import JobError, JobFailed
from mops.jobs.job import Job
from mops.jobs.launch import Launch, RunnerOptions, RunOptions, shows_options
from mops.jobs.prepare import with_sets
from mops.jobs.runners import Phases
from mops.jobs.submit import resume, submit_prepared
from mops.storage.calibration_records import Asked, Outcome, Round
from mops.storage.job_records import job_exists

_ENDED = ("succeeded", "partial")


@dataclass(frozen=True)
class RoundProgress:
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
    progress: RoundProgress | None = None,
    **options: Unpack[CalibrateOptions],
) -> Calibration:
    """Fit parameters to data in rounds of jobs, and return the calibration.

    A call with the name of a calibration continues it, also after a kill at any moment. mops repeats no simulation that
    is committed. When connected to a service, the jobs of the rounds run there, and this call waits for each. If the
    call ends, the job continues; the next call waits for it, and then asks for the next round.

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
        keeps the nearest sets. ``"tpe"``, ``"cmaes"`` and ``"gp"``: optimisers of Optuna, which search for the smallest
        loss and give no posterior.
    n : int
        The number of sets in each new round; not given: 256, for an optimiser 32.
    rounds : int
        The most rounds of the calibration, with those that have ended; not given: 8.
    seed : int
        The seed of the draws; not given: 0.
    weights : mapping of str to float
        The weight of each loss that counts, by its label, as for :meth:`mops.Job.best`; not given: the sum of all
        losses.
    objectives : sequence of str
        The losses to minimise as objectives by themselves, by their labels, with ``"tpe"`` or ``"gp"``. Not
        given: the total loss.
    temperature : float
        The total loss is divided by it; not given: 1, so that the total loss is minus the logarithm of the likelihood.
    ess : float
        The effective sample size below which the posterior is rough. With ``"importance"``, the rounds end when it is
        reached. Not given: 200, for ``"abc"`` 50. Optimisers ignore it.
    take_over : bool
        Replace a runner that runs the job of the round.
    trust_data : bool
        Accept that files other than code have changed since the earlier rounds: their losses still compare.
    env, python, pod, settings, local, location, on_progress
        As for :func:`mops.submit`, for the job of each round that this call starts.

    Raises
    ------
    UsageError
        The space, the study or an option is wrong.
    JobError
        A calibration of this name exists and fits something else, or another process runs it. Or data files have
        changed since its earlier rounds, or another job has the name of its next round.
    JobFailed
        No set of a round has a loss, or as for :func:`mops.submit`.
    StorageError, ClusterError, ServiceError, RunnerEnded
        As for :func:`mops.submit`. The same call continues the calibration.

    Examples
    --------
    >>> fit = mops.calibrate("space.json", "study.json", name="fit", n=256, local=True)
    >>> fit.posterior().to_pandas()
    """
    plan = plan_of(options)
    given = {key: value for key, value in options.items() if key in RunnerOptions.__annotations__ and value is not None}
    run_options = cast("RunOptions", given)
    launch = Launch.of(run_options, storage=storage)
    begun = begin(space, study, plan, launch, options, name=name, project=project)
    run_options["location"] = launch.location
    return _Rounds(begun, plan, run_options, progress or RoundProgress()).to_the_end()


@dataclass(frozen=True)
class _Rounds:
    """The rounds of one call: asked of the method, run as jobs, told to the records."""

    begun: Begun
    plan: Plan
    options: RunOptions  # for the job of a round that an earlier call has begun
    progress: RoundProgress

    def to_the_end(self) -> Calibration:
        records, now = self.begun.calibration.records, self._calibration()
        while not self._is_over(now):
            asked = records.asked(len(now.rounds) + 1) or self._ask(now)
            job = self._run(asked)
            if job.status().state not in _ENDED:
                return self._calibration(stopped=job.name)
            outcomes = outcomes_in(job, asked.sets)
            records.tell(asked, job.record.bundle, outcomes)
            now = self._calibration()
            self.progress.round_ended(now)
            _check_losses(now.rounds[-1], outcomes, job)
        return now

    def _is_over(self, now: Calibration) -> bool:
        # A round that has begun must end, even if the rounds before it are enough.
        k = len(now.rounds) + 1
        if k > self.plan.rounds:
            return True
        if k == 1 or self.begun.calibration.records.asked(k) is not None:
            return False
        return now.fitting.is_over(now.rounds, self.plan.scoring.ess)

    def _calibration(self, stopped: str | None = None) -> Calibration:
        """Return the calibration so far, and store how this call weighs its sets."""
        empty = self.begun.calibration
        history = self.plan.comparable(empty.records.rounds())
        if history:
            empty.records.keep_scoring(empty.scoring)
        return empty.with_rounds(history, stopped)

    def _ask(self, now: Calibration) -> Asked:
        self.begun.require_data(trust=self.plan.trust_data)
        k, draw = len(now.rounds) + 1, now.fitting.ask(now.rounds, self.plan.n_sets)
        asked = Asked(k, now.records.job(k), tuple(draw.sets), draw.state, kept_seeds(now.rounds, draw.sets))
        now.records.ask(asked)
        return asked

    def _run(self, asked: Asked) -> Job:
        """Run the job of a round, or what is left of it; raise JobError if its name belongs to another job."""
        begun, record, launch = self.begun, self.begun.calibration.record, self.begun.launch
        job = Job(begun.calibration.records.files, asked.job, local=launch.service is None)

        def starts(*_: object) -> None:
            self.progress.round_starts(asked, job)

        if not job_exists(job.files, job.name):
            begun.require_data(trust=self.plan.trust_data)
            sets = entries_of(asked, record.seed, record.n_replicates)
            pending = [with_sets(begun.prepared, begun.study, sets)]
            # A deterministic model: the jobs of earlier rounds have simulations with the same seeds.
            reuse = bool(asked.kept_seeds) and record.spec.outputs is None
            launch = launch.with_limits(begun.prepared.limits)
            return submit_prepared(
                pending, asked.job, launch, job.files, reuse=reuse, round_of=record.identity, on_start=starts
            )
        if job.record.round_of != record.identity:
            raise JobError(
                f"job {job.name!r} exists and is not a round of calibration {record.calibration!r}",
                where=job.files.url,
                hint="give the calibration another name, or delete the job if you do not need it",
            )
        status = job.status()
        if status.state in _ENDED:
            return job
        if launch.service is not None and not self.plan.take_over:
            # The service still runs the job after a kill of the command that submitted it.
            phases = Phases(job.name, replace(launch.service, results=job.files.url))
            if phases.may_continue(status):
                starts()
                return job.wait(self.options.get("on_progress"))
        return resume(job, take_over=self.plan.take_over, on_start=starts, **self.options)


def _check_losses(compared: Round, outcomes: Sequence[Outcome], job: Job) -> None:
    """Raise JobFailed if no set of a round counts: all have failed, or lack losses that other rounds have."""
    if not all(outcome.failure for outcome in compared.outcomes):
        return
    where = f"job {job.name!r} in {job.files.url}"
    if all(outcome.failure for outcome in outcomes):
        hint = f"find out why: mops jobs status {job.name}"
        raise JobFailed(f"no parameter set of round {compared.k} has a loss", where=where, hint=hint)
    raise JobFailed(
        f"each parameter set of round {compared.k} lacks a loss that sets of earlier rounds have",
        where=where,
        hint="let the targets return the same losses for all parameter sets, and begin a new calibration",
    )
