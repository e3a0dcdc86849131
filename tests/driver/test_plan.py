"""The planner: events in, orders out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.driver.plan import TASKS_PER_SLOT, Batches, Plan, groups_per_task


# A generator and not a range: a plan once closed it between two tasks, and sent empty orders for ever.
def plan(n: int, *, batch_size: int = 200, slots: int = 2, task_seconds: float = 1.0) -> Plan:
    return Plan((i for i in range(n)), n, batch_size=batch_size, slots=slots, task_seconds=task_seconds)


@given(
    n=st.integers(0, 300),
    batch_size=st.integers(1, 60),
    slots=st.integers(1, 8),
    seconds=st.floats(1e-4, 20),
    rng=st.randoms(use_true_random=False),
    gives_back=st.booleans(),
)
def test_every_group_runs_once_and_the_window_is_never_exceeded(
    n: int, batch_size: int, slots: int, seconds: float, rng: random.Random, gives_back: bool
) -> None:
    p = plan(n, batch_size=batch_size, slots=slots)
    flying: dict[int, tuple[int, ...]] = {}
    done: list[int] = []
    while not p.over:
        for order in p.fill(pilot=False):
            assert order.groups
            flying[order.number] = order.groups
        assert sum(map(len, flying.values())) == p.in_flight <= batch_size
        assert len(flying) <= TASKS_PER_SLOT * slots
        number = rng.choice(sorted(flying))
        groups = flying.pop(number)
        finished = groups[: rng.randint(1, len(groups))] if gives_back else groups
        p.finished(number, frozenset(finished), seconds * len(finished))
        done += finished
    assert sorted(done) == list(range(n))


def test_groups_start_in_study_order() -> None:
    p = plan(100)
    p.measured(0.1, 1)
    sent = [group for order in p.fill(pilot=False) for group in order.groups]
    assert sent == list(range(len(sent)))


def test_what_a_task_gives_back_goes_first() -> None:
    p = plan(100, slots=1)
    p.measured(0.1, 1)
    first, *_ = p.fill(pilot=False)
    p.finished(first.number, frozenset({0}), 0.1)
    assert p.fill(pilot=False)[0].groups[0] == 1


def test_the_pilot_is_one_group_alone() -> None:
    p = plan(100)
    (order,) = p.fill(pilot=True)
    assert order.groups == (0,)
    assert p.fill(pilot=True) == []


def test_a_stopped_plan_sends_nothing_and_is_over_when_the_last_task_is_back() -> None:
    p = plan(100)
    order, *others = p.fill(pilot=False)
    p.stop()
    assert p.fill(pilot=False) == []
    assert not p.over
    for sent in (order, *others):
        p.finished(sent.number, frozenset(), 0.0)
    assert p.over


def test_a_study_without_groups_left_is_over() -> None:
    assert plan(0).over


@pytest.mark.parametrize(
    ("left", "seconds_per_group", "expected"),
    [
        (10_000, None, 1),  # nothing measured: one group finds out
        (10_000, 1e-5, 50),  # short groups: two tasks for each slot share the window of 200
        (10_000, 0.1, 10),  # about a second of work
        (10_000, 5.0, 1),  # a long group is a task of its own
        (20, 0.1, 5),  # near the end: what is left, shared
        (20, 1e-3, 30),  # ... but not below 30 ms of work
        (1, 5.0, 1),
    ],
)
def test_size_of_a_task(left: int, seconds_per_group: float | None, expected: int) -> None:
    size = groups_per_task(batch_size=200, slots=2, left=left, seconds_per_group=seconds_per_group, task_seconds=1.0)
    assert size == expected


def test_without_fusion_each_group_is_a_task() -> None:
    size = groups_per_task(batch_size=200, slots=2, left=1000, seconds_per_group=1e-4, task_seconds=0.0)
    assert size == 1


def test_recent_measurements_count_most() -> None:
    p = plan(10)
    p.measured(100.0, 10)
    for _ in range(20):
        p.measured(1.0, 10)
    assert p.seconds_per_group == pytest.approx(0.1, rel=0.3)


def test_batches_are_counted_off_with_the_keys_of_their_commits() -> None:
    batches = Batches(10)
    assert batches.add(6, ["a"]) is None
    assert batches.add(5, ["b"]) == (1, ["a", "b"])
    assert batches.add(8, ["c"]) is None
    assert batches.rest() == (2, ["c"])
    assert batches.rest() is None
    assert batches.add(21, ["d"]) == (4, ["d"])
