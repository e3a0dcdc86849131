"""The weights of importance resampling give the posterior, whatever was drawn, and replay gives the same sets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mops.calibration.calibration import Calibration
from mops.calibration.importance import (
    ImportanceResampling,
    Proposal,
    log_mixture,
    normalised,
    tempered,
)
from mops.calibration.rounds import TotalLoss
from mops.calibration.seeds import pooled_sample_size
from mops.calibration.unit_cube import effective_sample_size, inside_the_cube
from mops.storage.calibration_records import Asked, Outcome, Round, Told
from mops.study.sampling.space import parse_space

Sets = dict[str, Any]


def method(space: dict[str, Any], temperature: float = 1.0, seed: int = 0) -> ImportanceResampling:
    return ImportanceResampling(parse_space(space, where="s"), seed, TotalLoss(), temperature, "s")


def played(fitting: ImportanceResampling, loss: Callable[[Sets], float | None], n: int, rounds: int) -> list[Round]:
    """Run rounds; a loss of None is a failure."""
    history: list[Round] = []
    for k in range(1, rounds + 1):
        draw = fitting.ask(history, n)
        losses = map(loss, draw.sets)
        outcomes = tuple(Outcome({}, "error") if each is None else Outcome({"fit": each}) for each in losses)
        history.append(Round(Asked(k, f"f-r{k}", tuple(draw.sets), draw.state), Told(k, f"f-r{k}", outcomes)))
    return history


def calibration(fitting: ImportanceResampling, history: list[Round]) -> Calibration:
    return Calibration("f", "s", history, fitting.space, TotalLoss(), fitting.weights(history), 100)


def test_the_interval_is_that_of_a_known_posterior() -> None:
    """The likelihood is a normal distribution far narrower than the space, with a correlation of 0.8."""
    fitting = method({"x": {"min": -10, "max": 10}, "y": {"min": -10, "max": 10}})
    precision = np.linalg.inv(np.array([[0.04, 0.016], [0.016, 0.01]]))

    def loss(params: Sets) -> float:
        apart = np.array([params["x"] - 3, params["y"] + 2])
        return float(0.5 * apart @ precision @ apart) + 1_000

    found = calibration(fitting, played(fitting, loss, 256, 6))
    assert found.ess > 400
    x, y = found.marginals()
    for marginal, mean, deviation in ((x, 3, 0.2), (y, -2, 0.1)):
        expected = (mean, mean - 1.96 * deviation, mean, mean + 1.96 * deviation)
        assert (marginal.mean, marginal.low, marginal.median, marginal.high) == pytest.approx(
            expected, abs=0.25 * deviation
        )
    draws = found.posterior(2_000)
    correlation = np.corrcoef(draws["x"].to_numpy(), draws["y"].to_numpy())[0, 1]
    assert correlation == pytest.approx(0.8, abs=0.07)


def test_a_posterior_at_the_border_of_the_space_is_not_cut_short() -> None:
    """The loss x has the posterior exp(-x), at a corner, where a Student distribution is cut off."""
    fitting = method({"x": {"min": 0, "max": 100}, "y": {"min": 0, "max": 100}})
    found = calibration(fitting, played(fitting, lambda params: float(params["x"] + params["y"]), 256, 6))
    for marginal in found.marginals():
        assert marginal.mean == pytest.approx(1, abs=0.25)
        assert marginal.median == pytest.approx(math.log(2), abs=0.25)
        assert marginal.high == pytest.approx(-math.log(0.025), abs=0.6)


def test_the_prior_is_even_in_the_logarithm_on_a_log_scale_and_over_values() -> None:
    """A likelihood that knows nothing returns the prior."""
    space = {
        "rate": {"min": 0.01, "max": 1, "scale": "log"},
        "kind": {"values": ["a", "b", "c", "d"]},
        "n": {"min": 1, "max": 4, "type": "int"},
        "fixed": 3,
    }
    fitting = method(space)
    rate, kind, n = calibration(fitting, played(fitting, lambda _: 0.0, 256, 4)).marginals()
    assert rate.median == pytest.approx(0.1, rel=0.15)
    assert kind.shares == pytest.approx(dict.fromkeys("abcd", 0.25), abs=0.04)
    assert n.mean == pytest.approx(2.5, abs=0.15)


def test_the_shares_of_values_follow_their_likelihood() -> None:
    fitting = method({"kind": {"values": ["a", "b"]}, "x": {"min": 0, "max": 1}})
    history = played(fitting, lambda params: math.log(9) if params["kind"] == "b" else 0.0, 256, 4)
    kind, _ = calibration(fitting, history).marginals()
    assert kind.shares == pytest.approx({"a": 0.9, "b": 0.1}, abs=0.03)


def test_a_temperature_divides_the_loss() -> None:
    space = {"x": {"min": -100, "max": 100}}
    cold, hot = method(space), method(space, temperature=4)
    history = played(cold, lambda params: 0.5 * params["x"] ** 2, 256, 5)
    (narrow,), (wide,) = (calibration(each, history).marginals() for each in (cold, hot))
    assert narrow.high == pytest.approx(1.96, abs=0.35)
    assert wide.high == pytest.approx(3.92, abs=0.7)


def test_failed_sets_have_no_weight_and_all_weights_have_the_sum_1() -> None:
    fitting = method({"x": {"min": 0, "max": 1}})
    history = played(fitting, lambda params: None if params["x"] > 0.5 else 0.0, 64, 3)
    weights = fitting.weights(history)
    failed = [outcome.failure is not None for each in history for outcome in each.told.outcomes]
    assert 20 < sum(failed) < 100
    assert [weight is None for weight in weights] == failed
    assert sum(weight or 0 for weight in weights) == pytest.approx(1)
    (x,) = calibration(fitting, history).marginals()
    assert x.high is not None
    assert x.high <= 0.5


def test_without_enough_losses_the_next_round_is_drawn_from_the_whole_space() -> None:
    fitting = method({"x": {"min": 0, "max": 1}})
    history = played(fitting, lambda params: 0.0 if params["x"] > 0.99 else None, 64, 2)
    assert "drawn" not in history[1].asked.state
    assert np.ptp(history[1].asked.state["points"]) > 0.8
    assert history[1].asked.sets != history[0].asked.sets
    nothing = played(fitting, lambda _: None, 8, 2)
    assert fitting.weights(nothing) == [None] * 16


def test_records_read_back_from_json_give_the_same_next_sets() -> None:
    fitting = method({"x": {"min": 0, "max": 1}, "y": {"min": 1, "max": 2}}, seed=5)
    history = played(fitting, lambda params: 100 * params["x"], 64, 3)
    read = [
        Round(Asked(a.k, a.job, a.sets, json.loads(json.dumps(a.state))), each.told)
        for each in history
        for a in (each.asked,)
    ]
    assert fitting.ask(read, 64) == fitting.ask(history, 64)
    assert fitting.ask(read[:2], 64).sets == list(history[2].asked.sets)
    assert fitting.weights(read) == fitting.weights(history)


def test_another_seed_gives_other_sets() -> None:
    space = {"x": {"min": 0, "max": 1}}
    assert method(space, seed=1).ask([], 8).sets != method(space, seed=2).ask([], 8).sets


def test_points_outside_of_the_cube_are_counted_and_left_out() -> None:
    rng = np.random.default_rng(1)
    points, drawn = inside_the_cube(lambda n: rng.normal([0.0, 0.5], 0.01, (n, 2)), 5_000)  # half are outside
    assert points.shape == (5_000, 2)
    assert ((points >= 0) & (points < 1)).all()
    assert drawn == pytest.approx(10_000, rel=0.05)


def test_the_density_of_a_proposal_has_the_integral_1() -> None:
    proposal = Proposal(np.array([0.4, 0.6]), np.array([[0.002, 0.001], [0.001, 0.003]]), 1)
    axis = (np.arange(400) + 0.5) / 400 * 4 - 1.5
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    assert np.exp(proposal.log_density(grid)).sum() * 0.01**2 == pytest.approx(1, abs=0.01)


def test_the_mixture_counts_every_drawn_point() -> None:
    fitting = method({"x": {"min": 0, "max": 1}})
    history = played(fitting, lambda params: 10 * params["x"], 64, 3)
    grid = np.linspace(0, 1, 2_001)[:-1, None]
    at_grid = [Round(Asked(1, "j", (), {"points": grid.tolist()}), Told(1, "j", ()))]
    even = len(grid)  # the grid counts as an even round of its size, too
    density = np.exp(log_mixture([*at_grid, *history]))[: len(grid)] - even
    assert density.mean() == pytest.approx(3 * 64, rel=0.1)


def test_the_effective_sample_size_is_between_1_and_the_number_of_sets() -> None:
    assert effective_sample_size(np.full(50, 0.02)) == pytest.approx(50)
    assert effective_sample_size(np.array([1.0, 0, 0])) == 1
    assert effective_sample_size(np.zeros(3)) == 0


def test_tempering_reaches_the_wanted_size_and_leaves_good_weights_alone() -> None:
    steep = -1_000.0 * np.arange(100)
    flat = np.zeros(100)
    assert effective_sample_size(normalised(steep)) == pytest.approx(1)
    each = np.arange(100)
    assert effective_sample_size(tempered(steep, flat, each, 20)) == pytest.approx(20, rel=0.01)
    mild = -0.01 * np.arange(100)
    assert tempered(mild, flat, each, 20) == pytest.approx(normalised(mild))
    pairs = each // 2
    assert pooled_sample_size(tempered(steep, flat, pairs, 20), pairs) == pytest.approx(20, rel=0.01)
