"""The tables of a calibration: trials, posterior draws, and trials without a posterior."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from rounds_lab import calibration_of

from mops.calibration import calibrate
from mops.calibration.calibration import Calibration
from mops.calibration.options import CalibrateOptions, Method, Plan, plan_of
from mops.calibration.prepare import Begun
from mops.calibration.rounds import NO_LOSS, outcomes_of
from mops.errors import JobError, UsageError
from mops.storage.calibration_records import Asked, Outcome, Round, Scoring
from mops.study.ids_and_seeds import param_id
from mops.study.sampling.space import parse_space

SETS: tuple[dict[str, Any], ...] = ({"x": 0.5, "loss": "a"}, {"x": 1.5, "loss": "b"}, {"x": 2.5, "loss": "a"})
OUTCOMES = (Outcome({"peak": 1.0, "size": 2.0}), Outcome({}, "oom"), Outcome({"peak": 4.0, "size": 0.5}))
OF_X = parse_space({"x": {"min": 0.0, "max": 9.0}}, where="space.json")
SPACE = OF_X | parse_space({"loss": {"values": ["a", "b"]}}, where="space.json")
HISTORY = [Round(1, "fit-r1", SETS, {}, outcomes=OUTCOMES)]


def calibration(least_ess: float = 1, weights: dict[str, float] | None = None) -> Calibration:
    return calibration_of(HISTORY, SPACE, [0.75, None, 0.25], Scoring(weights, 1.0, least_ess))


def test_the_trials_have_a_row_for_each_set_and_failures_are_null_and_never_infinite() -> None:
    trials = calibration().trials()
    assert trials.schema.field("round").type == pa.int32()
    assert trials.to_pylist() == [
        {"round": 1, "job": "fit-r1", "param_id": param_id(SETS[0]), "failure": None, "loss": 3.0, "weight": 0.75}
        | {"peak": 1.0, "size": 2.0, "x": 0.5, "param.loss": "a"},
        {"round": 1, "job": "fit-r1", "param_id": param_id(SETS[1]), "failure": "oom", "loss": None, "weight": None}
        | {"peak": None, "size": None, "x": 1.5, "param.loss": "b"},
        {"round": 1, "job": "fit-r1", "param_id": param_id(SETS[2]), "failure": None, "loss": 4.5, "weight": 0.25}
        | {"peak": 4.0, "size": 0.5, "x": 2.5, "param.loss": "a"},
    ]
    assert (calibration().n_scored, calibration().n_failed) == (2, 1)


def test_weights_of_losses_leave_out_the_others() -> None:
    assert calibration(weights={"size": 2}).trials()["loss"].to_pylist() == [4.0, None, 1.0]
    with pytest.raises(UsageError, match="no loss has the label 'hight'"):
        plan_of({"weights": {"hight": 1}}).comparable(HISTORY)


def test_the_posterior_has_each_set_as_often_as_its_weight_says() -> None:
    draws = calibration().posterior(1_000)
    assert draws.column_names == ["draw", "job", "param_id", "x", "loss"]
    assert Counter(draws["x"].to_pylist()) == {0.5: 750, 2.5: 250}
    assert calibration().posterior(10, seed=1).equals(calibration().posterior(10, seed=1))
    for n in (0, 10_000_001):
        with pytest.raises(UsageError, match=f"{n:,} is not a possible number of sets"):
            calibration().posterior(n)


def test_with_a_small_effective_sample_size_there_are_rough_intervals_and_no_draws() -> None:
    found = calibration(least_ess=2)
    assert found.ess == pytest.approx(1.6)
    assert found.is_rough
    assert not found.has_posterior
    assert found.marginals() == calibration().marginals()
    with pytest.raises(JobError, match=r"size of 1\.6 is too small for a posterior \(2 is the least\)"):
        found.posterior()
    assert not calibration().is_rough


def test_marginals_are_weighted_and_the_best_trials_come_first() -> None:
    x, loss = calibration().marginals()
    assert (x.mean, x.low, x.median, x.high) == (1.0, 0.5, 0.5, 2.5)
    assert loss.shares == {"a": 1.0, "b": 0.0}
    assert calibration().best(5)["loss"].to_pylist() == [3.0, 4.5], "failures are no trials"
    assert calibration().best(1)["x"].to_pylist() == [0.5]


def test_the_pareto_set_has_the_trials_that_no_other_beats() -> None:
    losses = [(1.0, 5.0), (2.0, 2.0), (2.0, 3.0), (5.0, 1.0), (5.0, 1.0), (6.0, 6.0)]
    outcomes = (*(Outcome({"a": a, "b": b}) for a, b in losses), Outcome({}, "oom"))
    sets = tuple({"x": float(i)} for i in range(len(outcomes)))
    history = [Round(1, "f-r1", sets, {}, outcomes=outcomes)]
    weights = [None] * len(sets)
    found = calibration_of(history, OF_X, weights, Scoring(None, 1.0, 1.0, ("a", "b")), "tpe")
    assert found.pareto()["x"].to_pylist() == [0.0, 1.0, 3.0, 4.0]
    one = calibration_of(history, OF_X, weights, method="tpe")
    assert one.pareto()["x"].to_pylist() == [1.0]  # the smallest sum
    failed = [Round(1, "f-r1", ({"x": 1.0},), {}, outcomes=(Outcome({}, "oom"),))]
    assert calibration_of(failed, OF_X, [None]).pareto().num_rows == 0


def test_an_optimiser_gives_no_posterior() -> None:
    found = calibration_of(HISTORY, SPACE, [None] * 3, method="tpe")
    assert not found.has_posterior
    with pytest.raises(JobError, match="the method 'tpe' searches for the smallest loss and gives no posterior"):
        found.posterior()


def test_objectives_are_those_named() -> None:
    for options, objectives in (
        (CalibrateOptions(method="tpe"), ()),
        (CalibrateOptions(method="tpe", objectives=["size"]), ("size",)),
    ):
        assert calibration_by(plan_of(options)).with_rounds(HISTORY).objectives == objectives
    with pytest.raises(UsageError, match="no loss has the label 'hight'"):
        plan_of({"method": "gp", "objectives": ["hight", "peak"]}).comparable(HISTORY)


def test_an_option_that_is_none_is_not_given() -> None:
    assert plan_of({"n": None, "ess": None}) == plan_of({})  # type: ignore[typeddict-item]


def test_options_that_are_not_possible_are_refused(subtests: pytest.Subtests) -> None:
    for options, said in [
        ({"n": 0}, "n is 0"),
        ({"n": 10_000_001}, "n is 10,000,001"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"ess": -1}, "ess is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"weights": {"fit": float("nan")}}, "the value of fit in weights is nan"),
        ({"method": "magic"}, "the method 'magic' is unknown"),
        ({"method": "cmaes", "objectives": ["a", "b"]}, "the method 'cmaes' has one objective"),
        ({"objectives": ["a", "b"]}, "the method 'importance' has one objective"),
        ({"method": "gp", "objectives": ["a"], "weights": {"a": 2}}, "objectives have no weights"),
        ({"method": "tpe", "objectives": ["a", "a"]}, "a loss is named twice"),
    ]:
        with subtests.test(options=options, said=said), pytest.raises(UsageError, match=said):
            plan_of(options)


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument: sets"):
        plan_of({"sets": []})  # type: ignore[typeddict-unknown-key]


def rounds_of(*rounds: tuple[Outcome, ...]) -> list[Round]:
    sets: list[tuple[dict[str, Any], ...]] = [
        tuple({"x": k + i / 16} for i in range(len(outcomes))) for k, outcomes in enumerate(rounds)
    ]
    state = [{"points": [[one["x"] / 8] for one in each]} for each in sets]
    return [
        Round(k, f"f-r{k}", sets[k - 1], state[k - 1], outcomes=outcomes) for k, outcomes in enumerate(rounds, start=1)
    ]


def calibration_by(plan: Plan) -> Calibration:
    space = parse_space({"x": {"min": 0, "max": 8}}, where="s")
    return calibration_of((), space, scoring=plan.scoring, method=plan.method)


@pytest.mark.parametrize("method", [Method.IMPORTANCE, Method.TPE])
@pytest.mark.parametrize("later", [{"a": 1.0, "b": 2.0}, {"b": 2.0}, {"a": 1.0, "b": 2.0, "c": 3.0}, {"c": 3.0}])
def test_a_set_without_a_loss_of_another_round_has_failed_and_the_calibration_continues(
    method: Method, later: dict[str, float]
) -> None:
    """A loss that only a later round had ended each further call with a KeyError."""
    first = {"a": 1.0, "b": 2.0}
    n = 16
    raw = rounds_of(*((Outcome(losses),) * n for losses in (first, later)))
    plan = plan_of({"method": method})
    history = plan.comparable(raw)
    every = first.keys() | later.keys()
    wanted = [None if losses.keys() == every else NO_LOSS for losses in (first, later) for _ in range(n)]
    assert [outcome.failure for outcome in outcomes_of(history)] == wanted
    found = calibration_by(plan).with_rounds(history)
    assert len(found.fitting.ask(history, n).sets) == n
    assert len(found.weights) == 2 * n
    assert found.n_failed == len(wanted) - wanted.count(None)
    assert found.trials().num_rows == 2 * n
    assert found.pareto().num_rows <= wanted.count(None)


def test_a_calibration_is_one_short_line() -> None:
    """Regression: a notebook showed every set of every round."""
    assert repr(calibration()) == "Calibration('f', method='importance', 1 round, 2 sets scored, 1 failed)"


@pytest.mark.parametrize(("rounds", "has_begun", "is_over"), [(8, False, True), (8, True, False), (1, True, True)])
def test_a_round_that_has_begun_ends_unless_the_rounds_are_fewer(rounds: int, has_begun: bool, is_over: bool) -> None:
    """Regression: the round was abandoned if the effective sample size was reached after the round before it."""
    plan = plan_of({"rounds": rounds, "ess": 1})
    empty = calibration_by(plan)
    if has_begun:
        empty.records.ask(Asked(2, "f-r2", ({"x": 1.0},), {}))
    unused: Any = None
    begun = Begun(empty, [], {}, unused, None)
    now = empty.with_rounds(rounds_of((Outcome({"a": 1.0}),) * 2))
    assert calibrate._Rounds(begun, plan, {}, calibrate.RoundProgress())._is_over(now) is is_over
