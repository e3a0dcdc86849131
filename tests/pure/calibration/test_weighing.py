"""Importance resampling and ABC find posteriors that the tests know, and replay gives the same sets."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from rounds_lab import Losses, Sets, calibration, have_failed, played, played_with_seeds, read_back

from mops.calibration.options import Method
from mops.calibration.rounds import TotalLoss, pooled_sample_size
from mops.calibration.weighing import (
    AbcSmc,
    ImportanceResampling,
    densities,
    inside_the_cube,
    log_mixture,
    log_student,
    normalised,
    tempered,
)
from mops.errors import JobError
from mops.storage.calibration_records import Round
from mops.study.sampling.draw import Floats, sets_at
from mops.study.sampling.space import parse_space

X: Sets = {"x": {"min": 0, "max": 1}}
HUGE = {"a": 1e308, "b": 1.5e308}
BOTH = pytest.mark.parametrize("method", [Method.IMPORTANCE, Method.ABC])


def importance(space: Sets, temperature: float = 1.0, seed: int = 0) -> ImportanceResampling:
    return ImportanceResampling(parse_space(space, where="s"), seed, TotalLoss(), temperature)


def abc(space: Sets, seed: int = 0) -> AbcSmc:
    return AbcSmc(parse_space(space, where="s"), seed, TotalLoss())


def fitting_of(method: Method, space: Sets, seed: int = 0) -> ImportanceResampling | AbcSmc:
    return abc(space, seed) if method is Method.ABC else importance(space, seed=seed)


def test_the_interval_is_that_of_a_known_posterior() -> None:
    """The likelihood is a normal distribution far narrower than the space, with a correlation of 0.8."""
    fitting = importance({"x": {"min": -10, "max": 10}, "y": {"min": -10, "max": 10}})
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
    fitting = importance({"x": {"min": 0, "max": 100}, "y": {"min": 0, "max": 100}})
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
    fitting = importance(space)
    rate, kind, n = calibration(fitting, played(fitting, lambda _: 0.0, 256, 4)).marginals()
    assert rate.median == pytest.approx(0.1, rel=0.15)
    assert kind.shares == pytest.approx(dict.fromkeys("abcd", 0.25), abs=0.04)
    assert n.mean == pytest.approx(2.5, abs=0.15)


def test_a_temperature_divides_the_loss() -> None:
    space = {"x": {"min": -100, "max": 100}}
    cold, hot = importance(space), importance(space, temperature=4)
    history = played(cold, lambda params: 0.5 * params["x"] ** 2, 256, 5)
    (narrow,), (wide,) = (calibration(each, history).marginals() for each in (cold, hot))
    assert narrow.high == pytest.approx(1.96, abs=0.35)
    assert wide.high == pytest.approx(3.92, abs=0.7)


@BOTH
def test_losses_up_to_the_largest_float_are_only_bad(method: Method, subtests: pytest.Subtests) -> None:
    """Regression: an infinite total loss made the proposal NaN, and the draws from it did not end."""
    largest = sys.float_info.max
    models: dict[str, tuple[float, Callable[[Sets], Losses]]] = {
        "a small temperature": (0.5, lambda p: p["x"] if p["x"] < 0.4 else largest),
        "the smallest temperature": (5e-324, lambda p: p["x"]),
        "a sum beyond the largest float": (1.0, lambda p: {"a": p["x"], "b": 0.0} if p["x"] < 0.4 else HUGE),
        "only sums beyond the largest float": (1.0, lambda _: HUGE),
    }
    for name, (temperature, model) in models.items():
        with subtests.test(name):
            fitting = abc(X) if method is Method.ABC else importance(X, temperature)
            history = played(fitting, model, 16, 3)
            weights = [weight or 0.0 for weight in fitting.weights(history)]
            assert sum(weights) == pytest.approx(1)
            if name == "only sums beyond the largest float":
                assert min(weights) > 0, "the sets are equally bad"
                continue
            sets = [params["x"] for each in history for params in each.sets]
            likely = [x for x, weight in zip(sets, weights, strict=True) if weight]
            assert max(likely) < (0.6 if method is Method.ABC else 0.4)


def test_abc_finds_the_posterior_of_a_normal_model_from_distances() -> None:
    """The model adds standard normal noise to x, and the observation is 1: the posterior of x is normal(1, 1)."""
    rng = np.random.default_rng(8)
    fitting = abc({"x": {"min": -10, "max": 10}})
    history = played(fitting, lambda params: abs(params["x"] + rng.standard_normal() - 1), 1_000, 8, to_the_end=True)
    assert fitting.tolerance(history) < 0.5
    (x,) = calibration(fitting, history).marginals()
    assert (x.mean, x.low, x.high) == pytest.approx((1, -0.96, 2.96), abs=0.3)


def test_abc_weighs_sets_drawn_unevenly_back_to_an_even_prior() -> None:
    """All distances below the tolerance are as good, so the posterior is even between 0.2 and 0.4."""
    fitting = abc(X)
    history = played(fitting, lambda params: max(abs(params["x"] - 0.3) - 0.1, 0.0), 400, 5, to_the_end=True)
    (x,) = calibration(fitting, history).marginals()
    assert fitting.tolerance(history) == 0
    assert (x.mean, x.low, x.high) == pytest.approx((0.3, 0.205, 0.395), abs=0.02)


def test_the_tolerance_shrinks_and_the_rounds_end_when_few_sets_come_below_it() -> None:
    fitting = abc({**X, "y": {"min": 0, "max": 1}})
    rng = np.random.default_rng(2)

    def distance(params: Sets) -> float:
        return math.hypot(params["x"] - 0.5, params["y"] - 0.5) + rng.exponential(0.1)

    history = played(fitting, distance, 100, 50, to_the_end=True)
    tolerances = [fitting.tolerance(history[:k]) for k in range(1, len(history) + 1)]
    assert tolerances == sorted(tolerances, reverse=True)
    assert 3 < len(history) < 50


@BOTH
def test_failed_sets_have_no_weight_and_all_weights_have_the_sum_1(method: Method) -> None:
    fitting = fitting_of(method, X)
    history = played(fitting, lambda params: params["x"] if params["x"] <= 0.5 else None, 100, 3)
    weights, failed = fitting.weights(history), have_failed(history)
    assert 20 < sum(failed) < 200
    assert [weight is None for weight in weights] == failed
    assert sum(weight or 0 for weight in weights) == pytest.approx(1)
    if method is Method.ABC:
        assert sum(1 for weight in weights if weight) == 50, "others outside of the population have the weight 0"
    (x,) = calibration(fitting, history).marginals()
    assert x.high is not None
    assert x.high <= 0.5
    nothing = played(fitting, lambda _: None, 8, 2)
    assert fitting.weights(nothing) == [None] * 16


@BOTH
def test_without_enough_losses_the_next_round_is_drawn_from_the_whole_space(method: Method) -> None:
    history = played(fitting_of(method, X), lambda params: 0.0 if params["x"] > 0.99 else None, 64, 2)
    assert "drawn" not in history[1].state
    assert np.ptp(history[1].state["points"]) > 0.8
    assert history[1].sets != history[0].sets


@BOTH
def test_records_read_back_from_json_give_the_same_next_sets(method: Method) -> None:
    fitting = fitting_of(method, {**X, "y": {"min": 1, "max": 2}, "kind": {"values": ["a", "b"]}}, seed=5)
    history = played(fitting, lambda params: 100 * params["x"], 64, 3)
    read = read_back(history)
    assert fitting.ask(read, 64) == fitting.ask(history, 64)
    assert fitting.ask(read[:2], 64).sets == list(history[2].sets)
    assert fitting.weights(read) == fitting.weights(history)
    assert fitting_of(method, X, seed=1).ask([], 8).sets != fitting_of(method, X, seed=2).ask([], 8).sets


def test_points_outside_of_the_cube_are_counted_and_left_out() -> None:
    rng = np.random.default_rng(1)
    found = inside_the_cube(lambda n: rng.normal([0.0, 0.5], 0.01, (n, 2)), 5_000)  # half are outside
    assert found is not None
    points, drawn = found
    assert points.shape == (5_000, 2)
    assert ((points >= 0) & (points < 1)).all()
    assert drawn == pytest.approx(10_000, rel=0.05)


def test_the_draws_end_if_hardly_any_points_are_in_the_cube() -> None:
    n_drawn = 0

    def rarely_inside(n: int) -> Floats:
        nonlocal n_drawn
        n_drawn += n
        return np.where(np.arange(n_drawn - n, n_drawn) % 20_000, 2.0, 0.5)[:, None]

    assert inside_the_cube(rarely_inside, 16) is None
    assert n_drawn < 16 * 20_000


def test_abc_with_many_parameters_draws_from_the_whole_space() -> None:
    """Regression: hardly any set of the normal distribution was in the space, and the draws for round 2 did not end."""
    fitting = abc({f"x{i}": {"min": 0, "max": 1} for i in range(50)})
    history = played(fitting, lambda params: abs(params["x0"] - 0.3), 256, 3)
    assert [sorted(each.state) for each in history] == [["points"]] * 3
    found = calibration(fitting, history)
    assert found.ess == pytest.approx(128), "each set of the population has the same weight"
    first, second, *_ = found.marginals()
    assert first.mean == pytest.approx(0.3, abs=0.05)
    assert second.mean == pytest.approx(0.5, abs=0.1)


def test_the_densities_of_both_methods_have_the_integral_1() -> None:
    student = np.array([0.4, 0.6]), np.array([[0.002, 0.001], [0.001, 0.003]])
    axis = (np.arange(400) + 0.5) / 400 * 4 - 1.5
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    assert np.exp(log_student(grid, *student)).sum() * 0.01**2 == pytest.approx(1, abs=0.01)

    state = played(abc(X), lambda params: params["x"], 400, 2)[1].state
    grid = ((np.arange(4_000) + 0.5) / 4_000)[:, None]
    drawn = state["drawn"] / 400 * len(grid)  # `drawn` belongs to the number of points
    at_grid = Round(2, "j", (), {**state, "points": grid.tolist(), "drawn": drawn}, outcomes=())
    assert densities([at_grid]).mean() == pytest.approx(1, abs=0.05)


def test_the_mixture_counts_every_drawn_point() -> None:
    history = played(importance(X), lambda params: 10 * params["x"], 64, 3)
    grid = np.linspace(0, 1, 2_001)[:-1, None]
    at_grid = [Round(1, "j", (), {"points": grid.tolist()}, outcomes=())]
    even = len(grid)  # the grid counts as an even round of its size, too
    density = np.exp(log_mixture([*at_grid, *history]))[: len(grid)] - even
    assert density.mean() == pytest.approx(3 * 64, rel=0.1)


def test_tempering_reaches_the_wanted_size_and_leaves_good_weights_alone() -> None:
    steep, flat, each = -1_000.0 * np.arange(100), np.zeros(100), np.arange(100)
    assert pooled_sample_size(normalised(steep), each) == pytest.approx(1)
    for draws in (each, each // 2):
        assert pooled_sample_size(tempered(steep, flat, draws, 20), draws) == pytest.approx(20, rel=0.01)
    mild = -0.01 * np.arange(100)
    assert tempered(mild, flat, each, 20) == pytest.approx(normalised(mild))


# Equal sets of a discrete space: each round simulates them with other seeds, and a simulation counts once. Regression:
# equal sets had equal seeds in all rounds, so one simulation counted hundreds of times, and a lucky one of two equal
# policies had a posterior of 100 %.

CALIBRATIONS, SETS, ROUNDS = 24, 32, 6
SPACES: dict[str, tuple[Sets, Callable[[Sets], float]]] = {
    "integers": ({"n": {"min": 1, "max": 12, "type": "int"}}, lambda p: (p["n"] - 4) ** 2 / 8),
    "log integers": ({"n": {"min": 1, "max": 40, "type": "int", "scale": "log"}}, lambda p: abs(p["n"] - 6) / 4),
    "list": ({"n": {"values": ["a", "b", "c"]}}, lambda p: {"a": 0.0, "b": 0.7, "c": 1.5}[p["n"]]),
    "mixed": (
        {"x": {"min": 0, "max": 1}, "n": {"values": ["a", "b"]}},
        lambda p: 40 * (p["x"] - 0.3) ** 2 + 0.8 * (p["n"] == "b"),
    ),
}


def exact_posterior(space: Sets, loss: Callable[[Sets], float]) -> Counter[Any]:
    """Return the posterior of ``n`` from a fine grid over the unit cube, in which the prior is even."""
    axis = (np.arange(200 if "x" in space else 6_000) + 0.5) / (200 if "x" in space else 6_000)
    points = np.stack(np.meshgrid(*[axis] * len(space)), axis=-1).reshape(-1, len(space))
    found: Counter[Any] = Counter()
    for params in sets_at(parse_space(space, where="s"), points).to_pylist():
        found[params["n"]] += math.exp(-loss(params))
    total = sum(found.values())
    return Counter({value: mass / total for value, mass in found.items()})


@BOTH
@pytest.mark.parametrize("kind", SPACES)
def test_the_mean_of_many_posteriors_is_the_exact_one(kind: str, method: Method) -> None:
    """The likelihood is noisy. For ABC, a simulation has the distance 0 with the probability of the likelihood."""
    space, true_loss = SPACES[kind]

    def noisy(params: Sets, seeds: Sequence[int]) -> float:
        rng = np.random.default_rng(seeds[0])
        if method is Method.ABC:
            return float(rng.random() > math.exp(-true_loss(params)))
        return true_loss(params) - (0.6 * rng.standard_normal() - 0.18)  # a factor with the mean 1

    mean: Counter[Any] = Counter()
    for seed in range(CALIBRATIONS):
        fitting = fitting_of(method, space, seed)
        history = played_with_seeds(fitting, noisy, SETS, ROUNDS)
        sets = [params for each in history for params in each.sets]
        for params, weight in zip(sets, fitting.weights(history), strict=True):
            mean[params["n"]] += (weight or 0.0) / CALIBRATIONS
    exact = exact_posterior(space, true_loss)
    apart = sum(abs(mean[value] - exact[value]) for value in exact | mean) / 2
    assert apart < 0.05, (exact, mean)


def test_one_of_two_equal_policies_does_not_win_by_a_lucky_seed() -> None:
    """The likelihood of both is the same, but noisy: 16 simulations are not 2,048 draws."""
    fitting = importance({"policy": {"values": ["a", "b"]}})
    noise = lambda _, seeds: 2 * float(np.random.default_rng(seeds[0]).standard_normal()) ** 2  # noqa: E731
    found = calibration(fitting, played_with_seeds(fitting, noise, 256, 8), least_ess=200)
    assert found.ess <= 16
    assert not found.has_posterior
    (policy,) = found.marginals()
    assert min(policy.shares.values()) > 0.2
    with pytest.raises(JobError, match="2,048 trials share 16 simulations, because the space has 2 different sets"):
        found.posterior()


def test_abc_ends_only_with_a_sufficient_effective_sample_size() -> None:
    """Distances are integers, so none comes below the tolerance 0; the rounds ended with a few simulations."""
    fitting = abc({"n": {"min": 1, "max": 4, "type": "int"}})
    coin = lambda params, seeds: float(np.random.default_rng(seeds[0]).random() > params["n"] / 5)  # noqa: E731
    history = played_with_seeds(fitting, coin, 32, 12)
    assert fitting.tolerance(history) == 0
    sizes = [calibration(fitting, history[:k]).ess for k in range(1, 13)]
    assert sizes[-1] > 15 > 2 * sizes[2], "all sets with the distance 0 belong to the population"
    assert not fitting.is_over(history, sizes[-1] + 1)
    assert fitting.is_over(history, sizes[-1] - 1)
