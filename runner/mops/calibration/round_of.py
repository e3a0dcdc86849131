"""Tells whether a job is the round of a calibration by what it simulates: a user may have used the name ``NAME-rk``."""

from __future__ import annotations

from itertools import pairwise

from mops.calibration.seeds import entries_of
from mops.jobs.job import Job
from mops.storage.calibration_records import Asked, CalibrationRecord
from mops.storage.params_file import load_groups
from mops.study.ids_and_seeds import param_id


def is_round(job: Job, record: CalibrationRecord, asked: Asked) -> bool:
    """Tell whether an existing job is the job of a round of a calibration."""
    return not differs_from_round(job, record, asked)


def differs_from_round(job: Job, record: CalibrationRecord, asked: Asked) -> list[str]:
    """Return what differs between an existing job and the job of a round; empty: it is this job."""
    wanted: dict[str, dict[int, None]] = {}
    for entry in entries_of(asked, record.seed, record.n_replicates):
        wanted.setdefault(param_id(entry["params"]), {})[entry["seed"]] = None
    found: dict[str, dict[int, None]] = {}
    for piece in load_groups(job.files, job.record.paths).pieces():
        seeds, offsets = piece.seeds.tolist(), piece.offsets.tolist()
        for identity, (start, stop) in zip(piece.ids.to_pylist(), pairwise(offsets), strict=True):
            found[identity] = dict.fromkeys(seeds[start:stop])
    return [
        *(["the model, scenario, outputs or targets"] if job.record.spec != record.spec else []),
        *(["the parameter sets"] if found.keys() != wanted.keys() else []),
        *(["the seeds"] if found.keys() == wanted.keys() and found != wanted else []),
    ]
