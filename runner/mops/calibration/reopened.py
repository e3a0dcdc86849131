"""Opens the calibration to which a job belongs, for figures."""

from __future__ import annotations

from collections.abc import Sequence

from mops.calibration.abc_smc import AbcSmc
from mops.calibration.calibration import Calibration
from mops.calibration.importance import ImportanceResampling
from mops.calibration.options import Method
from mops.calibration.rounds import TotalLoss, comparable
from mops.jobs.job import Job
from mops.storage.calibration_records import CalibrationRecord, CalibrationRecords, Round, Scoring
from mops.study.sampling.space import Space, parse_space


def calibration_with(job: Job) -> Calibration | None:
    """Return the calibration of which a job is a round; None: of none, or no round has ended.

    Each call may have another temperature, other weights of losses and another smallest effective sample size. Those
    of the call that ended the last round count.
    """
    name, _, k = job.name.rpartition("-r")
    records = CalibrationRecords(job.files, name)
    record = records.calibration() if name and k.isdecimal() else None
    rounds = records.rounds() if record is not None else []
    if record is None or not rounds:
        return None
    scoring = rounds[-1].told.scoring
    rounds = comparable(rounds, scoring.weights)
    method = Method(record.method)
    space = parse_space(record.space, where=f"{job.files.url}/{records.folder}")
    return Calibration(
        name=name,
        storage=job.files.url,
        rounds=rounds,
        space=space,
        loss=TotalLoss(scoring.weights),
        weights=_weights(record, space, rounds, scoring),
        least_ess=scoring.ess,
        method=method,
    )


def _weights(record: CalibrationRecord, space: Space, rounds: Sequence[Round], scoring: Scoring) -> list[float | None]:
    """Return the posterior weight of each set; None of each if the method gives no posterior."""
    loss = TotalLoss(scoring.weights)
    if record.method == Method.ABC:
        return AbcSmc(space, record.seed, loss, "the space").weights(rounds)
    if record.method == Method.IMPORTANCE:
        return ImportanceResampling(space, record.seed, loss, scoring.temperature, "the space").weights(rounds)
    return [None for each in rounds for _ in each.asked.sets]
