"""The mean and the median of simulations that ended last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.attempt.timing import LEAST_SIMULATIONS, RecentTasks

TASK = st.tuples(st.floats(0.01, 100.0), st.integers(1, 300))


@given(st.lists(TASK, min_size=1), st.integers(1, 20))
def test_at_most_what_is_needed_counts(tasks: list[tuple[float, int]], slots: int) -> None:
    """The mean is that of the last simulations; the task at the border counts in part."""
    recent = RecentTasks()
    for task in tasks:
        recent.add(*task)
    least_n, least_s = max(LEAST_SIMULATIONS, 5 * slots), 2.0 * slots
    left = tasks[slots:] if len(tasks) >= 2 * slots else tasks
    seconds = n = 0.0
    for task_s, task_n in reversed(left):
        part = 1.0 if n < least_n or seconds < least_s else 0.0
        if part and n + task_n > least_n and seconds + task_s > least_s:
            part = max((least_n - n) / task_n, (least_s - seconds) / task_s)
        seconds, n = seconds + part * task_s, n + part * task_n
    recent.forget_old(slots)
    assert recent.mean_s == pytest.approx(seconds / n)
    assert recent.busy_s == pytest.approx(sum(task_s for task_s, _ in tasks))


def test_simulations_that_were_reused_say_nothing() -> None:
    """Regression: a study that grew showed seconds to go for hours, and normal simulations were named as slow."""
    recent = RecentTasks()
    for _ in range(1_000):
        recent.add(0.3, 0, n_reused=200)
    assert (recent.mean_s, recent.median_s) == (None, None)
    recent.add(1.0, 1)
    recent.add(2.0, 2, n_reused=100)
    assert (recent.mean_s, recent.median_s) == (1.0, 1.0)
    recent.add(3.0, 0)
    assert recent.mean_s == 2.0, "a task of targets alone counts"


def test_tasks_in_which_most_failed_are_not_in_the_median() -> None:
    recent = RecentTasks()
    recent.add(121.0, 3, 2)  # two ended at their time limit
    recent.add(2.0, 2)
    assert recent.median_s == 1.0


def test_simulations_that_failed_at_once_are_soon_forgotten_and_not_in_the_median() -> None:
    """Regression: 500 tasks counted, and the first of them had many simulations."""
    recent = RecentTasks()
    for _ in range(50):
        recent.add(0.02, 200, 200)
    assert recent.median_s is None
    for _ in range(LEAST_SIMULATIONS):
        recent.add(60.0, 1)
        recent.forget_old(4)
    assert recent.mean_s == pytest.approx(60.0)
    assert recent.median_s == 60.0


def test_nothing_has_run() -> None:
    recent = RecentTasks()
    recent.forget_old(4)
    assert (recent.mean_s, recent.median_s, recent.task_s) == (None, None, 0.0)
