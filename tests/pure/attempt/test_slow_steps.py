"""Which running simulations stand out, and what a terminal says of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.attempt.display import slow_text
from mops.attempt.timing import LEAST_SLOW_SECONDS, TIMES_MEDIAN, RecentTasks, SlowSteps
from mops.task import RunningStep
from mops.units import to_go

STEP = RunningStep(5, "761edf35ca16" + "0" * 52, 2, None, "vm", 0.0, 1)
SECONDS = st.floats(0.0, 1e5)


@given(st.lists(st.floats(1e-3, 1e4)), st.lists(SECONDS, max_size=30))
def test_what_stands_out_ran_much_longer_than_the_median(finished: list[float], running: list[float]) -> None:
    recent = RecentTasks()
    slow = SlowSteps(recent)
    for seconds in finished:
        recent.add(2 * seconds, 2)
    slow.look(1e9, [replace(STEP, group=n, seconds=seconds) for n, seconds in enumerate(running)])
    found = [step.seconds for step in slow.found]
    assert found == sorted((one for one in running if one in found), reverse=True)[:100]
    for step in slow.found:
        assert step.seconds >= LEAST_SLOW_SECONDS
        assert step.times_median is None or step.times_median >= TIMES_MEDIAN
        assert (step.times_median is None) == (not finished)
    if finished and running and max(running) > max(LEAST_SLOW_SECONDS, TIMES_MEDIAN * max(finished)):
        assert found[0] == max(running), "the longest one is always shown"


def test_each_one_is_logged_once_and_not_too_many() -> None:
    recent = RecentTasks()
    slow = SlowSteps(recent)
    recent.add(4.0, 2)
    hung = replace(STEP, seconds=680.0)
    assert slow.is_due(0.0)
    assert [slow_text(step).partition(", since ")[0] for step in slow.look(1e9, [hung])] == [
        "group 5 (761edf35ca16) replicate 2 on vm: 11 min 20 s",
    ]
    assert slow_text(slow.found[0]).endswith(", 340 times the median")
    assert not slow.is_due(1e9 + 1)
    assert slow.look(1e9 + 5, [replace(hung, seconds=685.0)]) == []
    n_logged = sum(len(slow.look(1e9, [replace(hung, group=n)])) for n in range(6, 60))
    assert n_logged == 19
    slow.look(1e9, [replace(STEP, replicate=None, target="t:score", seconds=60.0)])
    assert "target t:score on vm" in slow_text(slow.found[0])
    assert slow.found[0].times_median is None, "the median is that of simulations"


def test_the_estimate_says_that_it_waits(subtests: pytest.Subtests) -> None:
    """Regression: the time to go only grew while a simulation hung."""
    for seconds, n_slow, text in [
        (5.0, 0, "5.0 s to go"),
        (0.0, 0, ""),
        (None, 0, ""),
        (5.0, 1, "5.0 s to go, then waits for 1 slow simulation"),
        (0.0, 2, "waits for 2 slow simulations"),
        (None, 2, "waits for 2 slow simulations"),
    ]:
        with subtests.test(str((seconds, n_slow, text))):
            assert to_go(seconds, n_slow) == text
