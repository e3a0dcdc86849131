"""The tables of a calibration: trials, posterior draws, and when there is no posterior."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from mops.calibration.calibration import Calibration
from mops.calibration.options import CalibrateOptions, Plan
from mops.calibration.rounds import TotalLoss
from mops.errors import JobError, UsageError
from mops.storage.calibration_records import Asked, Outcome, Round, Told
from mops.study.ids_and_seeds import param_id

SETS: tuple[dict[str, Any], ...] = ({"x": 0.5, "loss": "a"}, {"x": 1.5, "loss": "b"}, {"x": 2.5, "loss": "a"})
OUTCOMES = (Outcome({"peak": 1.0, "size": 2.0}), Outcome({}, "oom"), Outcome({"peak": 4.0, "size": 0.5}))
HISTORY = [Round(Asked(1, "fit-r1", SETS, {}), Told(1, "fit-r1", OUTCOMES))]


def calibration(least_ess: float = 1, weights: dict[str, float] | None = None) -> Calibration:
    return Calibration("fit", "storage", HISTORY, ("x", "loss"), TotalLoss(weights), [0.75, None, 0.25], least_ess)


def test_the_trials_have_a_row_for_each_set_and_failures_are_null_and_never_infinite() -> None:
    trials = calibration().trials()
    assert trials.schema.field("round").type == pa.int32()
    assert trials.to_pylist() == [
        {"round": 1, "job": "fit-r1", "param_id": param_id(SETS[0]), "failure": None, "loss": 3.0, "weight": 0.75}
        | {"peak": 1.0, "size": 2.0, "x": 0.5, "loss.param": "a"},
        {"round": 1, "job": "fit-r1", "param_id": param_id(SETS[1]), "failure": "oom", "loss": None, "weight": None}
        | {"peak": None, "size": None, "x": 1.5, "loss.param": "b"},
        {"round": 1, "job": "fit-r1", "param_id": param_id(SETS[2]), "failure": None, "loss": 4.5, "weight": 0.25}
        | {"peak": 4.0, "size": 0.5, "x": 2.5, "loss.param": "a"},
    ]
    assert (calibration().n_scored, calibration().n_failed) == (2, 1)


def test_weights_of_losses_leave_out_the_others() -> None:
    assert calibration(weights={"size": 2}).trials()["loss"].to_pylist() == [4.0, None, 1.0]
    with pytest.raises(UsageError, match="no loss has the label 'hight'"):
        TotalLoss({"hight": 1}).check(HISTORY)


def test_the_posterior_has_each_set_as_often_as_its_weight_says() -> None:
    draws = calibration().posterior(1_000)
    assert draws.column_names == ["draw", "job", "param_id", "x", "loss"]
    assert Counter(draws["x"].to_pylist()) == {0.5: 750, 2.5: 250}
    assert calibration().posterior(10, seed=1).equals(calibration().posterior(10, seed=1))


def test_a_small_effective_sample_size_is_no_posterior() -> None:
    found = calibration(least_ess=2)
    assert found.ess == pytest.approx(1.6)
    assert not found.has_posterior
    for read in (found.posterior, found.marginals):
        with pytest.raises(JobError, match=r"size of 1\.6 is too small for a posterior \(2 is the least\)"):
            read()


def test_marginals_are_weighted() -> None:
    x, loss = calibration().marginals()
    assert (x.mean, x.low, x.median, x.high) == (1.0, 0.5, 0.5, 2.5)
    assert loss.shares == {"a": 1.0, "b": 0.0}


def test_an_option_that_is_none_is_not_given() -> None:
    assert Plan.of({"n": None, "ess": None}) == Plan.of({})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 0}, "n is 0"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"ess": -1}, "ess is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"weights": {"fit": float("nan")}}, "the weight of fit is nan"),
        ({"method": "magic"}, "the method 'magic' is unknown"),
    ],
)
def test_options_that_are_not_possible_are_refused(options: CalibrateOptions, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Plan.of(options)


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument: sets"):
        Plan.of({"sets": []})  # type: ignore[typeddict-unknown-key]
