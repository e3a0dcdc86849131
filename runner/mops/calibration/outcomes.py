"""Reads the outcome of each parameter set from the job of a round: its losses, or why it has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mops.calibration.rounds import NO_LOSS
from mops.jobs.job import Job
from mops.jobs.ranking import loss_labels
from mops.storage.calibration_records import Outcome
from mops.study.ids_and_seeds import param_id


def outcomes_in(job: Job, sets: Sequence[dict[str, Any]]) -> list[Outcome]:
    """Return the outcome of each set, in the order of the sets. A set with a failed simulation or target has failed."""
    # The other losses of a failed set would not compare with the losses of complete sets.
    losses = job.losses().to_arrow()
    labels = {pair: label for label, pair in loss_labels(losses).items()}
    of_set: dict[str, dict[str, float]] = {}
    for row in losses.to_pylist():
        of_set.setdefault(row["param_id"], {})[labels[row["target"], row["name"]]] = row["loss"]
    verdicts: dict[str, str] = {}
    for row in job.failures(columns=["param_id", "target", "reason"]).to_arrow().to_pylist():
        if row["target"] != "*":  # the consequence of a failed simulation
            verdicts.setdefault(row["param_id"], row["reason"])
    return [_outcome(of_set.get(each, {}), verdicts.get(each), len(labels)) for each in map(param_id, sets)]


def _outcome(losses: dict[str, float], verdict: str | None, n_labels: int) -> Outcome:
    if verdict is None and losses and len(losses) == n_labels:
        return Outcome(losses)
    return Outcome({}, verdict or NO_LOSS)
