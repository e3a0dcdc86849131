"""The seeds of the sets of a round, which trials count, and the losses that rounds must have."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from rounds_lab import Sets, calibration, calibration_of, outcome_of, played_with_seeds

from mops.calibration.rounds import (
    LEAST_REPEATS,
    NO_LOSS,
    TotalLoss,
    comparable,
    draws_that_tell,
    entries_of,
    is_deterministic,
    kept_seeds,
    outcomes_of,
    pooled_sample_size,
)
from mops.calibration.weighing import ImportanceResampling
from mops.storage.calibration_records import Asked, Outcome, Round
from mops.study.ids_and_seeds import param_id, round_seed
from mops.study.sampling.space import parse_space


def test_seeds_depend_on_the_set_the_calibration_the_round_and_the_replicate() -> None:
    sets = ({"n": 1}, {"n": 2}, {"n": 1})
    first, second = (entries_of(Asked(k, "j", sets, {}), 7, 3) for k in (1, 2))
    assert [entry["params"]["n"] for entry in first] == [1, 1, 1, 2, 2, 2], "equal sets are one"
    other = entries_of(Asked(1, "j", sets, {}), 8, 3)
    assert len({entry["seed"] for entry in [*first, *second, *other]}) == 18
    assert first == entries_of(Asked(1, "j", sets, {}), 7, 3), "a resumed round has the same seeds"
    assert first[1]["seed"] == round_seed(param_id({"n": 1}), 7, 1, 1) == 2_062_261_154


def test_a_deterministic_model_keeps_its_seeds_and_each_draw_counts() -> None:
    simulated: Counter[tuple[int, int]] = Counter()

    def loss(params: Sets, seeds: Sequence[int]) -> float:
        simulated.update((params["n"], seed) for seed in seeds)
        return float((params["n"] - 9) ** 2)

    space = parse_space({"n": {"min": 1, "max": 16, "type": "int"}}, where="s")
    fitting = ImportanceResampling(space, 0, TotalLoss(), 1.0)
    history = played_with_seeds(fitting, loss, 64, 5)
    assert is_deterministic(history)
    different = {params["n"] for each in history for params in each.sets}
    kept = [set(each.kept_seeds.values()) for each in history]
    assert kept[:2] == [set(), set()]
    assert all(rounds <= {1, 2} for rounds in kept[2:])
    assert len(simulated) <= 2 * len(different), "a later round simulates only new sets"
    found = calibration(fitting, history)
    weights = np.array(found.weights, float)
    assert found.ess == pytest.approx(1 / (weights**2).sum())
    (n,) = found.marginals()
    assert n.median == 9


@pytest.mark.parametrize(
    ("n_rounds", "other", "expected"),
    [(7, None, True), (6, None, False), (7, 5.0, False)],
    ids=["12 repeats", "10 repeats", "one differs"],
)
def test_few_equal_repeats_or_one_that_differs_are_no_deterministic_model(
    n_rounds: int, other: float | None, expected: bool
) -> None:
    sets, n_repeats = ({"n": 1}, {"n": 2}), 2 * (n_rounds - 1)
    losses = [[1.0, 2.0] for _ in range(n_rounds)]
    losses[3][1] = other or losses[3][1]
    history = [Round(k, "j", sets, {}, outcomes=tuple(map(outcome_of, two))) for k, two in enumerate(losses, 1)]
    assert (n_repeats >= LEAST_REPEATS and other is None) == expected
    assert is_deterministic(history) == expected
    assert kept_seeds(history, sets) == ({param_id(params): 1 for params in sets} if expected else {})


def test_the_effective_sample_size_adds_the_weights_of_one_simulation() -> None:
    sets = ({"n": 1}, {"n": 2}, {"n": 1})
    outcomes = tuple(outcome_of(1.0 + params["n"]) for params in sets)
    history = [Round(k, f"f-r{k}", sets, {}, outcomes=outcomes) for k in (1, 2)]
    assert draws_that_tell(history).tolist() == [0, 1, 0, 2, 3, 2]
    space = parse_space({"n": {"min": 1, "max": 2, "type": "int"}}, where="s")
    found = calibration_of(history, space, [0.2, 0.1, 0.2, 0.2, 0.1, 0.2])
    assert found.ess == pytest.approx(1 / (0.4**2 + 0.1**2 + 0.4**2 + 0.1**2))
    for weights, size in ((np.full(50, 0.02), 50), (np.array([1.0, 0, 0]), 1), (np.zeros(3), 0)):
        assert pooled_sample_size(weights, np.arange(len(weights))) == pytest.approx(size)


def test_only_losses_with_a_weight_must_be_there() -> None:
    sets = ({"x": 1.0}, {"x": 2.0})
    outcomes = (Outcome({"a": 1.0, "b": 2.0}), Outcome({"b": 2.0}))
    history = [Round(1, "j", sets[:1], {}, outcomes=(Outcome({"a": 1.0}),)), Round(2, "j", sets, {}, outcomes=outcomes)]
    for needed, failures in (({"a"}, [None, None, NO_LOSS]), (None, [NO_LOSS, None, NO_LOSS])):
        assert [outcome.failure for outcome in outcomes_of(comparable(history, needed))] == failures


@pytest.mark.parametrize(
    ("weights", "formula"),
    [(None, "near + far"), ({"far": 1.0}, "far"), ({"far": 0.5, "near": 2.0}, "0.5 far + 2 near")],
)
def test_the_total_loss_is_shown_as_a_sum(weights: dict[str, float] | None, formula: str) -> None:
    """Losses of several targets were added, and no line said so."""
    assert TotalLoss(weights).formula(["near", "far"]) == formula


def test_a_total_loss_beyond_the_largest_float_is_the_largest_float() -> None:
    """Regression: the sum was infinite, or NaN with a negative weight."""
    of = TotalLoss({"a": 2.0, "b": -1.0}).of
    assert of(Outcome({"a": 1.5e308, "b": 1.5e308})) == 1.5e308
    assert of(Outcome({"a": 1.5e308, "b": 0.0})) == sys.float_info.max
    assert of(Outcome({"a": -1.5e308, "b": 0.0})) == -sys.float_info.max
    assert TotalLoss().of(Outcome({"a": 1e308, "b": 1.5e308})) == sys.float_info.max
