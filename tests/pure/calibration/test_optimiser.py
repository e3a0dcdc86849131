"""Optimisers find a known optimum, are told failures as failures, and continue from the records alone."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from dataclasses import replace

import numpy as np
import optuna
import pytest
from rounds_lab import Sets, have_failed, played, read_back

from mops.calibration.optimiser import Optimiser, check_optimiser
from mops.calibration.options import Method
from mops.calibration.rounds import TotalLoss
from mops.errors import UsageError
from mops.storage.calibration_records import Outcome, Round
from mops.study.sampling.space import parse_space

SPACE = {"x": {"min": -10, "max": 10}, "rate": {"min": 0.001, "max": 10, "scale": "log"}, "days": 60}
HAS_TORCH = importlib.util.find_spec("torch") is not None
SINGLE = [Method.TPE, Method.CMAES, pytest.param(Method.GP, marks=pytest.mark.skipif(not HAS_TORCH, reason="no torch"))]


def optimiser(method: Method, space: Sets = SPACE, objectives: tuple[str, ...] = (), seed: int = 0) -> Optimiser:
    return Optimiser(parse_space(space, where="s"), method, seed, TotalLoss(), objectives)


def bowl(params: Sets) -> dict[str, float]:
    """Return a loss whose minimum, 0, is at x=3 and rate=0.1."""
    return {"fit": (params["x"] - 3) ** 2 + 4 * float(np.log10(params["rate"]) + 1) ** 2}


def best(each: Round) -> float:
    return min(sum(outcome.losses.values()) for outcome in each.outcomes if outcome.failure is None)


@pytest.mark.parametrize("method", SINGLE)
def test_a_known_optimum_is_found(method: Method) -> None:
    history = played(optimiser(method), bowl, 32, 8)
    assert min(map(best, history)) < 0.3
    assert best(history[-1]) < best(history[0])
    params = min((set_ for each in history for set_ in each.sets), key=lambda set_: bowl(set_)["fit"])
    assert params["x"] == pytest.approx(3, abs=0.5)
    assert params["rate"] == pytest.approx(0.1, rel=0.9)
    assert list(params) == ["x", "rate", "days"]
    assert params["days"] == 60


def test_the_optimum_is_found_although_half_of_the_space_fails() -> None:
    history = played(optimiser(Method.CMAES), lambda params: bowl(params) if params["x"] > 2 else None, 32, 8)
    assert 15 < sum(have_failed(history[:1])) < 24
    assert best(history[-1]) < 0.5


@pytest.mark.parametrize("method", [Method.TPE, Method.CMAES])
def test_optuna_is_told_failures_as_failures_and_each_loss_of_its_set(method: Method) -> None:
    fitting = optimiser(method)
    history = played(fitting, lambda params: bowl(params) if params["x"] > 0 else None, n=16, rounds=3)
    trials = fitting.replayed(history, 16).trials
    assert len(trials) == 48
    for trial, params, outcome in zip(
        trials,
        (params for each in history for params in each.sets),
        (outcome for each in history for outcome in each.outcomes),
        strict=True,
    ):
        assert trial.params == {name: params[name] for name in ("x", "rate")}
        if outcome.failure is None:
            assert (trial.state, trial.value) == (optuna.trial.TrialState.COMPLETE, outcome.losses["fit"])
        else:
            assert (trial.state, trial.values) == (optuna.trial.TrialState.FAIL, None)


@pytest.mark.parametrize("method", [Method.TPE, Method.CMAES])
def test_records_read_back_from_json_give_the_same_next_sets(method: Method) -> None:
    fitting = optimiser(method, seed=4)
    history = played(fitting, bowl, n=16, rounds=3)
    read = read_back(history)
    assert fitting.ask(read, 16) == fitting.ask(history, 16)
    assert optimiser(method, seed=5).ask(history, 16) != fitting.ask(history, 16)
    assert fitting.ask(history, 16).sets != list(history[-1].sets)


def test_a_sampler_of_another_version_continues_from_the_stored_sets() -> None:
    """CMA-ES learns from the sets that ran, not from those that this version would have asked for."""
    fitting = optimiser(Method.CMAES)
    first = played(fitting, bowl, 32, 1)
    others = [{"x": 3 + i / 100, "rate": 0.1, "days": 60} for i in range(32)]
    outcomes = tuple(Outcome(bowl(params)) for params in others)
    history = [*first, Round(2, "f-r2", tuple(others), {}, outcomes=outcomes)]
    xs = [params["x"] for params in fitting.ask(history, 32).sets]
    assert np.mean(xs) == pytest.approx(3, abs=0.6)
    assert np.std(xs) < 0.7 * np.std([params["x"] for params in fitting.ask(first, 32).sets])


def test_several_objectives_find_the_pareto_set() -> None:
    """The losses are the squared distances of x from 0 and from 2: the Pareto set is between, with y at 5."""

    def losses(params: Sets) -> dict[str, float]:
        far = (params["y"] - 5) ** 2
        return {"left": params["x"] ** 2 + far, "right": (params["x"] - 2) ** 2 + far}

    space = {"x": {"min": -10, "max": 10}, "y": {"min": 0, "max": 20}}
    history = played(optimiser(Method.TPE, space, ("left", "right")), losses, n=40, rounds=8)
    last = [params for params in history[-1].sets if -0.5 < params["x"] < 2.5 and 3.5 < params["y"] < 6.5]
    first = [params for params in history[0].sets if -0.5 < params["x"] < 2.5 and 3.5 < params["y"] < 6.5]
    assert len(last) > 5 > len(first)


def test_integers_and_lists_of_values_keep_their_types() -> None:
    space = {
        "n": {"min": 1, "max": 64, "type": "int", "scale": "log"},
        "kind": {"values": ["a", "b"]},
        "on": {"values": [True, False]},
        "big": {"values": [1, 2**60]},
    }
    history = played(
        optimiser(Method.TPE, space),
        lambda params: {"fit": abs(params["n"] - 8) + (params["kind"] == "a")},
        n=16,
        rounds=4,
    )
    for params in (params for each in history for params in each.sets):
        assert [type(value) for value in params.values()] == [int, str, bool, int]
        assert params["big"] in (1, 2**60)
    assert best(history[-1]) <= 1


def test_rounds_of_one_set_and_of_one_parameter_work() -> None:
    history = played(optimiser(Method.CMAES, {"x": {"min": 0, "max": 1}}), lambda params: {"fit": params["x"]}, 1, 12)
    assert len({each.sets[0]["x"] for each in history}) == 12


def generation_of(each: optuna.trial.FrozenTrial) -> int:
    return next(value for name, value in each.system_attrs.items() if name.endswith("generation"))


def test_an_eighth_of_a_round_may_fail_without_delaying_the_next_generation() -> None:
    fitting, n = optimiser(Method.CMAES), 32
    *before, last = played(fitting, bowl, n=n, rounds=2)
    for n_failed, is_next in ((4, True), (5, False)):
        outcomes = (*[Outcome({}, "error")] * n_failed, *last.outcomes[n_failed:])
        study = fitting.replayed([*before, replace(last, outcomes=outcomes)], n)
        old, new = study.trials[-1], study.ask(fitting._distributions())
        _ = new.relative_params
        assert generation_of(study.trials[new.number]) == generation_of(old) + is_next


def test_optuna_prints_and_warns_nothing(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    level = optuna.logging.get_verbosity()
    with warnings.catch_warnings(action="error"):
        for method in (Method.TPE, Method.CMAES):
            played(optimiser(method), bowl, n=12, rounds=3)
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert optuna.logging.get_verbosity() == level


def test_what_is_not_installed_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    space = parse_space(SPACE, where="s")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("optuna", "torch") else find_spec(name)
    )
    for method, hint in {
        Method.TPE: "pip install 'mops-runner\\[calibrate\\]'",
        Method.CMAES: "needs optuna",
    }.items():
        with pytest.raises(UsageError, match=hint):
            check_optimiser(method, space, "s")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    with pytest.raises(UsageError, match=r"(?s)the method 'gp' needs torch.*hint: pip install torch"):
        check_optimiser(Method.GP, space, "s")
    check_optimiser(Method.IMPORTANCE, space, "s")
    check_optimiser(Method.TPE, space, "s")


def test_cmaes_refuses_lists_of_values() -> None:
    space = parse_space({"x": {"min": 0, "max": 1}, "kind": {"values": ["a", "b"]}}, where="space.json")
    with pytest.raises(UsageError, match="'cmaes' searches ranges only, and 'kind' is a list of values"):
        check_optimiser(Method.CMAES, space, "space.json")
