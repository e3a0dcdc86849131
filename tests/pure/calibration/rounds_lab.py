"""Rounds as `mops.calibrate` makes them, without jobs: a function stands for the model and its targets."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mops.calibration.calibration import Calibration
from mops.calibration.rounds import Fitting, entries_of, kept_seeds
from mops.project.project import ModelSpec
from mops.storage.calibration_records import (
    Asked,
    CalibrationRecord,
    CalibrationRecords,
    Outcome,
    Round,
    Scoring,
)
from mops.storage.files import Files
from mops.study.ids_and_seeds import param_id
from mops.study.sampling.space import Space

Sets = dict[str, Any]
PLAIN = Scoring(None, 1.0, 1.0)
Losses = float | dict[str, float] | None  # None: the set has failed


def played_with_seeds(
    fitting: Any, model: Callable[[Sets, Sequence[int]], Losses], n: int, rounds: int, *, to_the_end: bool = False
) -> list[Round]:
    """Run rounds, each different set once with its seed; ``to_the_end``: only until the method has enough."""
    history: list[Round] = []
    for k in range(1, rounds + 1):
        draw = fitting.ask(history, n)
        asked = Asked(k, f"f-r{k}", tuple(draw.sets), draw.state, kept_seeds(history, draw.sets))
        found = {
            param_id(entry["params"]): outcome_of(model(entry["params"], [entry["seed"]]))
            for entry in entries_of(asked, fitting.seed, 1)
        }
        outcomes = tuple(found[identity] for identity in asked.param_ids)
        history.append(Round(k, asked.job, asked.sets, asked.state, asked.kept_seeds, outcomes=outcomes))
        if to_the_end and fitting.is_over(history, 0):
            break
    return history


def played(fitting: Any, model: Callable[[Sets], Losses], n: int, rounds: int, **options: bool) -> list[Round]:
    return played_with_seeds(fitting, lambda params, _: model(params), n, rounds, **options)


def outcome_of(losses: Losses) -> Outcome:
    if losses is None:
        return Outcome({}, "error")
    return Outcome(losses if isinstance(losses, dict) else {"fit": losses})


def read_back(history: Sequence[Round]) -> list[Round]:
    """Return the rounds as the storage gives them back."""
    return [
        replace(each, sets=tuple(json.loads(json.dumps(each.sets))), state=json.loads(json.dumps(each.state)))
        for each in history
    ]


def calibration_of(
    history: Sequence[Round],
    space: Space,
    weights: Sequence[float | None] = (),
    scoring: Scoring = PLAIN,
    method: str = "importance",
) -> Calibration:
    record = CalibrationRecord("f", "2026-11-25", method, 0, {}, ModelSpec("model:run", "baseline", (), None), 1)
    records = CalibrationRecords(Files.open(f"memory://{uuid.uuid4().hex}"), "f")
    return Calibration(records, record, space, scoring, history, weights)


def calibration(fitting: Fitting, history: list[Round], least_ess: float = 1) -> Calibration:
    space = fitting.space  # type: ignore[attr-defined]
    return calibration_of(history, space, fitting.weights(history), Scoring(None, 1.0, least_ess))


def have_failed(history: Sequence[Round]) -> list[bool]:
    return [outcome.failure is not None for each in history for outcome in each.outcomes]
