"""Makes calibrations from their records, lists those of a storage, and finds what a deletion removes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mops.calibration.calibration import Calibration
from mops.calibration.optimiser import Optimiser
from mops.calibration.options import Method
from mops.calibration.rounds import Fitting, TotalLoss, comparable, differs_from_round, outcomes_of
from mops.calibration.weighing import AbcSmc, ImportanceResampling
from mops.errors import CorruptRecord, JobError, MopsError, OtherFormat, similar
from mops.jobs.job import Job
from mops.storage.calibration_records import (
    CalibrationRecord,
    CalibrationRecords,
    Round,
    Scoring,
    calibration_names,
)
from mops.storage.files import Files
from mops.storage.job_records import job_names
from mops.study.sampling.space import Space, parse_space


@dataclass(frozen=True)
class Fitted:
    """What a calibration fits, and how a call weighs its sets."""

    records: CalibrationRecords
    record: CalibrationRecord
    space: Space
    scoring: Scoring

    def calibration(
        self,
        history: Sequence[Round],  # comparable by the losses that count (`mops.calibration.rounds.comparable`)
        stopped: str | None = None,  # as in `Calibration`
    ) -> Calibration:
        """Return the calibration with these rounds."""
        return Calibration(
            name=self.records.name,
            storage=self.records.files.url,
            rounds=history,
            space=self.space,
            loss=TotalLoss(self.scoring.weights),
            weights=self.fitting(history).weights(history) if history else [],
            least_ess=self.scoring.ess,
            stopped=stopped,
            method=Method(self.record.method),
            objectives=self.scoring.objectives,
            temperature=self.scoring.temperature,
        )

    def fitting(self, history: Sequence[Round]) -> Fitting:
        """Return the method with its options."""
        method, seed, loss = self.record.method, self.record.seed, TotalLoss(self.scoring.weights)
        if method == Method.IMPORTANCE:
            return ImportanceResampling(self.space, seed, loss, self.scoring.temperature)
        if method == Method.ABC:
            return AbcSmc(self.space, seed, loss)
        return Optimiser(self.space, method, seed, loss, self.scoring.objectives)


def calibration_with(job: Job) -> Calibration | None:
    """Return the calibration of which a job is a round; None: of none, or no round has ended."""
    # Each call may have another temperature, weights, objectives and smallest effective sample size. The last call
    # counts.
    name, _, k = job.name.rpartition("-r")
    if not (name and k.isdecimal()):
        return None
    records = CalibrationRecords(job.files, name)
    record, asked = records.calibration(), records.asked(int(k))
    if record is None or asked is None or differs_from_round(job, record, asked):
        return None
    rounds, scoring = records.rounds(), records.scoring()
    if not rounds or scoring is None:
        return None
    space = parse_space(record.space, where=f"{job.files.url}/{records.folder}")
    return Fitted(records, record, space, scoring).calibration(comparable(rounds, scoring.weights))


@dataclass(frozen=True)
class Listed:
    """One calibration of a list."""

    calibration: str
    method: str | None = None
    created: str | None = None  # when it began (UTC, ISO 8601)
    rounds: int | None = None  # that have ended
    scored: int | None = None  # parameter sets of these rounds with losses
    failed: int | None = None  # and without
    open_job: str | None = None  # the job of the round that has begun and not ended
    error: str | None = None  # why the records cannot be read


def list_calibrations(files: Files) -> list[Listed]:
    """Return the calibrations of a storage, newest first; unreadable ones come last."""
    found = [_listed(CalibrationRecords(files, name)) for name in calibration_names(files)]
    return sorted(found, key=lambda one: (one.created or "", one.calibration), reverse=True)


def _listed(records: CalibrationRecords) -> Listed:
    try:
        record, rounds = records.calibration(), records.rounds()
        open_job = records.open_job()
    except (CorruptRecord, OtherFormat) as bad:
        return Listed(records.name, error=str(bad))
    if record is None:
        return Listed(records.name, error="its record calibration.json is missing")
    outcomes = list(outcomes_of(comparable(rounds)))
    n_failed = sum(outcome.failure is not None for outcome in outcomes)
    n_scored = len(outcomes) - n_failed
    return Listed(records.name, record.method, record.created, len(rounds), n_scored, n_failed, open_job)


def stored_calibration(files: Files, name: str) -> CalibrationRecords:
    """Return the records of a calibration; raise JobError with similar names if it does not exist."""
    names = calibration_names(files)
    if name in names:
        return CalibrationRecords(files, name)
    near = similar(name, names, 3) or names[-3:]
    hint = f"use the name of an existing calibration: {', '.join(near)}" if near else "this storage has none"
    raise JobError(f"calibration {name!r} does not exist", where=files.url, hint=hint)


def jobs_of(records: CalibrationRecords) -> list[str]:
    """Return the jobs of the rounds that exist."""
    # A round's job may have been deleted before, or its name may belong to another job, which only readable records
    # tell.
    existing = set(job_names(records.files))
    return [records.job(k) for k in records.begun() if records.job(k) in existing and not _is_other_job(records, k)]


def _is_other_job(records: CalibrationRecords, k: int) -> bool:
    try:
        record, asked = records.calibration(), records.asked(k)
        job = Job(records.files, records.job(k))
        return record is not None and asked is not None and bool(differs_from_round(job, record, asked))
    except MopsError:  # damaged records, or a damaged job
        return False
