"""mops removes the state that a simulation or target leaves in its process, as far as possible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mops.study.groups import Group
from mops.study.ids_and_seeds import param_id, target_seed
from mops.task import JobContext, TaskRequest, TaskResult
from mops.worker.pool import Pool

DRAWS = """
import random
import numpy as np

def run(params, seed):
    random.random(), np.random.standard_normal()  # an odd number, so that numpy keeps a second one for the next call
    return {"x": 1}

def first(params, replicates):
    return {"random": random.gauss(0, 1), "numpy": np.random.standard_normal()}

def second(params, replicates):
    return first(params, replicates)
"""
ALARMS = """
import signal, time

def run(params, seed):
    if params["a"] == 0:
        {start}
    else:
        time.sleep(2.5)
    return {{"x": params["a"]}}
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    pools: list[Pool] = []

    def run(code: str, sets: list[dict[str, Any]], n_replicates: int = 1, targets: tuple[str, ...] = ()) -> TaskResult:
        (tmp_path / "model.py").write_text(code)
        context = JobContext(
            "job", "1", "bundle", "storage", "model:run", "baseline", targets, None, slots=1, retries=0
        )
        pools.append(Pool(context, str(tmp_path), 1))
        groups = tuple(Group(i, param_id(s), s, tuple(range(n_replicates))) for i, s in enumerate(sets))
        return pools[-1].run(TaskRequest(context, 1, groups, None, seconds=600.0, bytes=1 << 40))

    yield run
    for pool in pools:
        pool.close()


def losses(result: TaskResult, target: str) -> dict[int, tuple[float, float]]:
    found: dict[int, dict[str, float]] = {}
    for loss in result.losses:
        if loss.target == target:
            found.setdefault(loss.group, {})[loss.name] = loss.loss
    return {group: (named["random"], named["numpy"]) for group, named in found.items()}


def test_a_target_draws_the_same_numbers_after_any_other_target(run: Any) -> None:
    """Regression: a target that uses numpy.random gave another loss in another order of the study."""
    sets = [{"a": 1}, {"a": 2}]
    there = run(DRAWS, sets, targets=("model:first", "model:second"))
    back = run(DRAWS, sets[::-1], n_replicates=3, targets=("model:second", "model:first"))
    for target in ("model:first", "model:second"):
        assert losses(there, target) == dict(zip((0, 1), (losses(back, target)[i] for i in (1, 0)), strict=True))


def test_targets_and_sets_draw_different_numbers(run: Any) -> None:
    result = run(DRAWS, [{"a": 1}, {"a": 2}], targets=("model:first", "model:second"))
    drawn = {*losses(result, "model:first").values(), *losses(result, "model:second").values()}
    assert len(drawn) == 4


def test_the_seed_of_a_target_is_fixed() -> None:
    assert target_seed(param_id({"beta": 0.3, "gamma": 0.1}), "model:score") == 2117364323


@pytest.mark.parametrize(
    "start", ["signal.setitimer(signal.ITIMER_REAL, 2)", "signal.setitimer(signal.ITIMER_REAL, 2, 0.1)"]
)
def test_a_timer_that_a_simulation_left_does_not_end_the_next(run: Any, start: str) -> None:
    """Regression: the timer killed the process in the next simulation, which mops recorded as crashed."""
    result = run(ALARMS.format(start=start), [{"a": 0}, {"a": 1}])
    assert (result.done, result.failures) == ({0, 1}, [])
