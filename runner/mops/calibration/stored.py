"""Makes a calibration from its records, lists those of a storage, and finds what a deletion removes."""

from __future__ import annotations

from dataclasses import dataclass

from mops.calibration.calibration import Calibration
from mops.calibration.rounds import comparable, outcomes_of
from mops.errors import CorruptRecord, JobError, MopsError, OtherFormat, similar
from mops.jobs.data import JobData
from mops.jobs.job import Job
from mops.storage.calibration_records import (
    CalibrationRecords,
    calibration_names,
    name_in,
)
from mops.storage.files import Files
from mops.storage.job_records import job_names, load_job
from mops.study.sampling.space import parse_space


def calibration_with(job: Job | JobData) -> Calibration | None:
    """Return the calibration of which a job is a round; None: of none, or no round has ended."""
    # Each call may have another temperature, weights, objectives and smallest effective sample size. The last call
    # counts.
    name = name_in(job.record.round_of)
    records = CalibrationRecords(job.files, name)
    record = records.calibration() if name else None
    if record is None or record.identity != job.record.round_of:
        return None
    rounds, scoring = records.rounds(), records.scoring()
    if not rounds or scoring is None:
        return None
    space = parse_space(record.space, where=f"{job.files.url}/{records.folder}")
    return Calibration(records, record, space, scoring).with_rounds(comparable(rounds, scoring.weights))


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
    # A round's job may have been deleted before, or its name may belong to another job.
    existing = set(job_names(records.files))
    return [records.job(k) for k in records.begun() if records.job(k) in existing and not _is_other_job(records, k)]


def _is_other_job(records: CalibrationRecords, k: int) -> bool:
    try:
        return name_in(load_job(records.files, records.job(k)).round_of) != records.name
    except MopsError:  # a damaged job
        return False
