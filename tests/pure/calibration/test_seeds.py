"""Equal sets of a discrete space: each round simulates them with other seeds, and a simulation counts once.

The posteriors of small noisy models are known. Regression: equal sets had equal seeds in all rounds, so one simulation
counted hundreds of times, and a lucky one of two equal policies had a posterior of 100 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mops.calibration.abc_smc import AbcSmc
from mops.calibration.calibration import Calibration
from mops.calibration.importance import ImportanceResampling
from mops.calibration.options import Method
from mops.calibration.rounds import Fitting, TotalLoss
from mops.calibration.seeds import LEAST_REPEATS, draws_that_tell, entries_of, is_deterministic, kept_seeds
from mops.errors import JobError
from mops.storage.calibration_records import Asked, Outcome, Round, Told
from mops.study.ids_and_seeds import param_id, round_seed
from mops.study.sampling.draw import sets_at
from mops.study.sampling.space import parse_space

Sets = dict[str, Any]
Loss = Callable[[Sets, Sequence[int]], float | None]

CALIBRATIONS, SETS, ROUNDS = 24, 32, 6
SPACES: dict[str, tuple[dict[str, Any], Callable[[Sets], float]]] = {
    "integers": ({"n": {"min": 1, "max": 12, "type": "int"}}, lambda p: (p["n"] - 4) ** 2 / 8),
    "log integers": ({"n": {"min": 1, "max": 40, "type": "int", "scale": "log"}}, lambda p: abs(p["n"] - 6) / 4),
    "list": ({"n": {"values": ["a", "b", "c"]}}, lambda p: {"a": 0.0, "b": 0.7, "c": 1.5}[p["n"]]),
    "mixed": (
        {"x": {"min": 0, "max": 1}, "n": {"values": ["a", "b"]}},
        lambda p: 40 * (p["x"] - 0.3) ** 2 + 0.8 * (p["n"] == "b"),
    ),
}


def fitting_of(method: Method, space: dict[str, Any], seed: int = 0) -> ImportanceResampling | AbcSmc:
    parsed = parse_space(space, where="s")
    if method is Method.ABC:
        return AbcSmc(parsed, seed, TotalLoss(), "s")
    return ImportanceResampling(parsed, seed, TotalLoss(), 1.0, "s")


def played(fitting: Any, loss: Loss, n: int, rounds: int, n_replicates: int = 1) -> list[Round]:
    """Run rounds, each different set once with the seeds of its entries; a loss of None is a failure."""
    history: list[Round] = []
    for k in range(1, rounds + 1):
        draw = fitting.ask(history, n)
        asked = Asked(k, f"f-r{k}", tuple(draw.sets), draw.state, kept_seeds(history, draw.sets))
        seeds: dict[str, list[int]] = {}
        for entry in entries_of(asked, fitting.seed, n_replicates):
            seeds.setdefault(param_id(entry["params"]), []).append(entry["seed"])
        found = {
            identity: loss(params, seeds[identity])
            for identity, params in zip(asked.param_ids, asked.sets, strict=True)
        }
        losses = [found[identity] for identity in asked.param_ids]
        outcomes = tuple(Outcome({}, "error") if each is None else Outcome({"fit": each}) for each in losses)
        history.append(Round(asked, Told(k, asked.job, outcomes)))
    return history


def calibration(fitting: Fitting, history: list[Round], least_ess: float = 1) -> Calibration:
    space = fitting.space  # type: ignore[attr-defined]
    return Calibration("f", "s", history, space, TotalLoss(), fitting.weights(history), least_ess)


def exact_posterior(space: dict[str, Any], loss: Callable[[Sets], float]) -> Counter[Any]:
    """Return the posterior of ``n`` from a fine grid over the unit cube, in which the prior is even."""
    axis = (np.arange(200 if "x" in space else 6_000) + 0.5) / (200 if "x" in space else 6_000)
    points = np.stack(np.meshgrid(*[axis] * len(space)), axis=-1).reshape(-1, len(space))
    found: Counter[Any] = Counter()
    for params in sets_at(parse_space(space, where="s"), points).to_pylist():
        found[params["n"]] += math.exp(-loss(params))
    total = sum(found.values())
    return Counter({value: mass / total for value, mass in found.items()})


@pytest.mark.parametrize("method", [Method.IMPORTANCE, Method.ABC])
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
        history = played(fitting, noisy, SETS, ROUNDS)
        sets = [params for each in history for params in each.asked.sets]
        for params, weight in zip(sets, fitting.weights(history), strict=True):
            mean[params["n"]] += (weight or 0.0) / CALIBRATIONS
    exact = exact_posterior(space, true_loss)
    apart = sum(abs(mean[value] - exact[value]) for value in exact | mean) / 2
    assert apart < 0.05, (exact, mean)


def test_one_of_two_equal_policies_does_not_win_by_a_lucky_seed() -> None:
    """The likelihood of both is the same, but noisy: 16 simulations are not 2,048 draws."""
    fitting = fitting_of(Method.IMPORTANCE, {"policy": {"values": ["a", "b"]}})
    noise = lambda _, seeds: 2 * float(np.random.default_rng(seeds[0]).standard_normal()) ** 2  # noqa: E731
    found = calibration(fitting, played(fitting, noise, 256, 8), least_ess=200)
    assert found.ess <= 16
    assert not found.has_posterior
    (policy,) = found.marginals()
    assert min(policy.shares.values()) > 0.2
    with pytest.raises(JobError, match="2,048 trials share 16 simulations, because the space has 2 different sets"):
        found.posterior()


def test_the_effective_sample_size_adds_the_weights_of_one_simulation() -> None:
    sets = ({"n": 1}, {"n": 2}, {"n": 1})
    outcomes = tuple(Outcome({"fit": 1.0 + params["n"]}) for params in sets)
    history = [Round(Asked(k, f"f-r{k}", sets, {}), Told(k, f"f-r{k}", outcomes)) for k in (1, 2)]
    assert draws_that_tell(history).tolist() == [0, 1, 0, 2, 3, 2]
    space = parse_space({"n": {"min": 1, "max": 2, "type": "int"}}, where="s")
    found = Calibration("f", "s", history, space, TotalLoss(), [0.2, 0.1, 0.2, 0.2, 0.1, 0.2], 1)
    assert found.ess == pytest.approx(1 / (0.4**2 + 0.1**2 + 0.4**2 + 0.1**2))


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

    fitting = fitting_of(Method.IMPORTANCE, {"n": {"min": 1, "max": 16, "type": "int"}})
    history = played(fitting, loss, 64, 5)
    assert is_deterministic(history)
    different = {params["n"] for each in history for params in each.asked.sets}
    kept = [set(each.asked.kept_seeds.values()) for each in history]
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
    history = [
        Round(Asked(k, f"f-r{k}", sets, {}), Told(k, f"f-r{k}", tuple(Outcome({"fit": each}) for each in two)))
        for k, two in enumerate(losses, 1)
    ]
    assert (n_repeats >= LEAST_REPEATS and other is None) == expected
    assert is_deterministic(history) == expected
    assert kept_seeds(history, sets) == ({param_id(params): 1 for params in sets} if expected else {})


def test_abc_ends_only_with_a_sufficient_effective_sample_size() -> None:
    """Distances are integers, so none comes below the tolerance 0; the rounds ended with a few simulations."""
    fitting = fitting_of(Method.ABC, {"n": {"min": 1, "max": 4, "type": "int"}})
    coin = lambda params, seeds: float(np.random.default_rng(seeds[0]).random() > params["n"] / 5)  # noqa: E731
    history = played(fitting, coin, 32, 12)
    assert fitting.tolerance(history) == 0
    sizes = [calibration(fitting, history[:k]).ess for k in range(1, 13)]
    assert sizes[-1] > 15 > 2 * sizes[2], "all sets with the distance 0 belong to the population"
    assert not fitting.is_over(history, sizes[-1] + 1)
    assert fitting.is_over(history, sizes[-1] - 1)
