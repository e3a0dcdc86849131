"""Approximate Bayesian computation finds the posterior of a model without its likelihood, which the tests know."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mops.calibration.abc_smc import AbcSmc, densities
from mops.calibration.calibration import Calibration
from mops.calibration.rounds import TotalLoss
from mops.storage.calibration_records import Asked, Outcome, Round, Told
from mops.study.sampling.space import parse_space

Sets = dict[str, Any]


def method(space: dict[str, Any], seed: int = 0) -> AbcSmc:
    return AbcSmc(parse_space(space, where="s"), seed, TotalLoss(), "s")


def played(fitting: AbcSmc, distance: Callable[[Sets], float | None], n: int, rounds: int) -> list[Round]:
    history: list[Round] = []
    for k in range(1, rounds + 1):
        draw = fitting.ask(history, n)
        distances = map(distance, draw.sets)
        outcomes = tuple(Outcome({}, "oom") if each is None else Outcome({"d": each}) for each in distances)
        history.append(Round(Asked(k, f"f-r{k}", tuple(draw.sets), draw.state), Told(k, f"f-r{k}", outcomes)))
        if fitting.is_over(history, 0):
            break
    return history


def calibration(fitting: AbcSmc, history: list[Round]) -> Calibration:
    return Calibration("f", "s", history, fitting.space, TotalLoss(), fitting.weights(history), 50)


def test_the_posterior_of_a_normal_model_is_found_from_distances() -> None:
    """The model adds standard normal noise to x, and the observation is 1: the posterior of x is normal(1, 1)."""
    rng = np.random.default_rng(8)
    fitting = method({"x": {"min": -10, "max": 10}})
    history = played(fitting, lambda params: abs(params["x"] + rng.standard_normal() - 1), 1_000, 8)
    assert fitting.tolerance(history) < 0.5
    (x,) = calibration(fitting, history).marginals()
    assert (x.mean, x.low, x.high) == pytest.approx((1, -0.96, 2.96), abs=0.3)


def test_sets_drawn_unevenly_are_weighed_back_to_an_even_prior() -> None:
    """All distances below the tolerance are as good, so the posterior is even between 0.2 and 0.4."""
    fitting = method({"x": {"min": 0, "max": 1}})
    history = played(fitting, lambda params: max(abs(params["x"] - 0.3) - 0.1, 0.0), 400, 5)
    (x,) = calibration(fitting, history).marginals()
    assert fitting.tolerance(history) == 0
    assert (x.mean, x.low, x.high) == pytest.approx((0.3, 0.205, 0.395), abs=0.02)


def test_the_tolerance_shrinks_and_the_rounds_end_when_few_sets_come_below_it() -> None:
    fitting = method({"x": {"min": 0, "max": 1}, "y": {"min": 0, "max": 1}})
    rng = np.random.default_rng(2)

    def distance(params: Sets) -> float:
        return math.hypot(params["x"] - 0.5, params["y"] - 0.5) + rng.exponential(0.1)

    history = played(fitting, distance, 100, 50)
    tolerances = [fitting.tolerance(history[:k]) for k in range(1, len(history) + 1)]
    assert tolerances == sorted(tolerances, reverse=True)
    assert 3 < len(history) < 50


def test_failed_sets_have_no_weight_and_others_outside_of_the_population_have_the_weight_0() -> None:
    fitting = method({"x": {"min": 0, "max": 1}})
    history = played(fitting, lambda params: None if params["x"] < 0.5 else params["x"], 100, 2)
    weights = fitting.weights(history)
    failed = [outcome.failure is not None for each in history for outcome in each.told.outcomes]
    assert any(failed)
    assert [weight is None for weight in weights] == failed
    assert sum(weight or 0 for weight in weights) == pytest.approx(1)
    assert sum(1 for weight in weights if weight) == 50
    nothing = played(fitting, lambda _: None, 10, 3)
    assert fitting.weights(nothing) == [None] * 10 * len(nothing)


def test_records_read_back_from_json_give_the_same_next_sets() -> None:
    fitting = method({"x": {"min": 0, "max": 1}, "y": {"values": ["a", "b"]}}, seed=4)
    history = played(fitting, lambda params: params["x"], 40, 3)
    read = [
        Round(Asked(a.k, a.job, a.sets, json.loads(json.dumps(a.state))), each.told)
        for each in history
        for a in (each.asked,)
    ]
    assert fitting.ask(read, 40) == fitting.ask(history, 40)
    assert fitting.weights(read) == fitting.weights(history)


def test_the_density_of_a_round_has_the_integral_1_in_the_cube() -> None:
    fitting = method({"x": {"min": 0, "max": 1}})
    drawn = played(fitting, lambda params: params["x"], 400, 2)[1].asked
    grid = ((np.arange(4_000) + 0.5) / 4_000)[:, None]
    share = drawn.state["drawn"] / 400  # `drawn` belongs to the number of points
    state = drawn.state | {"points": grid.tolist(), "drawn": share * len(grid)}
    at_grid = Round(Asked(2, "j", (), state), Told(2, "j", ()))
    assert densities([at_grid]).mean() == pytest.approx(1, abs=0.05)
