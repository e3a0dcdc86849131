"""Makes a calibration from its records, for the call that runs it and for reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mops.calibration.abc_smc import AbcSmc
from mops.calibration.calibration import Calibration
from mops.calibration.importance import ImportanceResampling
from mops.calibration.optimiser import Optimiser
from mops.calibration.options import Method
from mops.calibration.round_of import is_round
from mops.calibration.rounds import Fitting, TotalLoss, comparable, labels_of
from mops.jobs.job import Job
from mops.storage.calibration_records import CalibrationRecord, CalibrationRecords, Round, Scoring
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
            objectives=self._objectives(history),
            temperature=self.scoring.temperature,
        )

    def fitting(self, history: Sequence[Round]) -> Fitting:
        """Return the method with its options."""
        method, seed, loss = Method(self.record.method), self.record.seed, TotalLoss(self.scoring.weights)
        match method:
            case Method.IMPORTANCE:
                return ImportanceResampling(self.space, seed, loss, self.scoring.temperature, "the space")
            case Method.ABC:
                return AbcSmc(self.space, seed, loss, "the space")
        return Optimiser(self.space, method, seed, loss, self._objectives(history), "the space")

    def _objectives(self, history: Sequence[Round]) -> tuple[str, ...]:
        if self.record.method == Method.NSGA2 and not self.scoring.objectives:
            return tuple(labels_of(history))
        return self.scoring.objectives


def calibration_with(job: Job) -> Calibration | None:
    """Return the calibration of which a job is a round; None: of none, or no round has ended."""
    # Each call may have another temperature, weights, objectives and smallest effective sample size. The last call
    # counts.
    name, _, k = job.name.rpartition("-r")
    if not (name and k.isdecimal()):
        return None
    records = CalibrationRecords(job.files, name)
    record, asked = records.calibration(), records.asked(int(k))
    if record is None or asked is None or not is_round(job, record, asked):
        return None
    rounds, scoring = records.rounds(), records.scoring()
    if not rounds or scoring is None:
        return None
    space = parse_space(record.space, where=f"{job.files.url}/{records.folder}")
    return Fitted(records, record, space, scoring).calibration(comparable(rounds, scoring.weights))
