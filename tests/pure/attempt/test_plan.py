"""The planner: events in, orders out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.attempt.drain import Batches
from mops.attempt.planning.plan import Plan
from mops.attempt.planning.task_size import (
    PIECES_PER_SLOT,
    TASKS_PER_SLOT,
    WINDOW_PER_EMBEDDED_SLOT,
    WINDOW_PER_SLOT,
    piece_size,
    task_budget_s,
)
from mops.attempt.planning.window import Window
from mops.task import Task


# A generator and not a range: a plan once closed it between two tasks, and sent empty orders for ever.
def plan(
    n: int,
    *,
    batch_size: int = 200,
    slots: int = 2,
    task_seconds: float = 1.0,
    replicates: Callable[[int], int] = lambda _: 1,
    fuse: bool = True,
    window_per_slot: float = WINDOW_PER_SLOT,
) -> Plan:
    todo = (i for i in range(n))
    window = Window(batch_size)
    how: dict[str, Any] = {"task_seconds": task_seconds, "fuse": fuse, "window_per_slot": window_per_slot}
    return Plan(todo, n, replicates, window=window, slots=slots, **how)


class Cluster:
    """Runs orders as a cluster would: comes back in any order, gives back, loses; keeps what counts."""

    def __init__(self, p: Plan, replicates: Callable[[int], int], seconds: float, rng: random.Random):
        self.plan, self.replicates, self.seconds, self.rng = p, replicates, seconds, rng
        self.postpones = False
        self.tasks_in_flight: dict[int, Task] = {}
        self.settled: dict[int, set[int]] = {}
        self.done: list[int] = []
        self.scored: list[int] = []

    def send(self) -> None:
        for request in self.plan.next_tasks(pilot=False):
            assert request.groups
            beside = [other.alone for other in self.tasks_in_flight.values()]
            assert all(beside) if request.alone else not any(beside), "something else runs"
            assert not request.alone or len(beside) < self.plan.workers
            self.tasks_in_flight[request.number] = request

    def groups_in_flight(self) -> set[int]:
        return {group for request in self.tasks_in_flight.values() for group in request.groups} | set(self.settled)

    def come_back(self, *, gives_back: bool, loses: bool) -> None:
        number = self.rng.choice(sorted(self.tasks_in_flight))
        request = self.tasks_in_flight.pop(number)
        if loses and self.rng.random() < 0.3:
            self.plan.lost(number, blamed=self.blames(request))
        elif request.replicates is None:
            self.whole(request, self.some(request.groups, gives_back))
        else:
            self.piece(request, self.some(request.replicates, gives_back))

    def blames(self, request: Task) -> bool:
        smallest = request.replicates is not None or len(request.groups) == 1 == self.replicates(request.groups[0])
        return not (smallest and request.alone) and self.rng.random() < 0.5

    def some(self, of: tuple[int, ...], gives_back: bool) -> tuple[int, ...]:
        return of[: self.rng.randint(0, len(of))] if gives_back and self.rng.random() < 0.5 else of

    def postponed(self, request: Task, left: set[int]) -> frozenset[int]:
        """Choose what took too much memory, of what is left of an order."""
        chosen = self.postpones and not request.alone and self.rng.random() < 0.3
        return frozenset(number for number in sorted(left) if chosen and self.rng.random() < 0.5)

    def whole(self, request: Task, finished: tuple[int, ...]) -> None:
        postponed = self.postponed(request, {*request.groups} - {*finished})
        self.plan.finished(request.number, frozenset(finished), self.seconds * len(finished), postponed)
        self.done += finished

    def piece(self, request: Task, finished: tuple[int, ...]) -> None:
        (group,) = request.groups
        settled = self.settled.setdefault(group, set())
        assert not settled & set(finished), "a replicate ran twice"
        settled.update(finished)
        postponed = self.postponed(request, {*(request.replicates or (0,))} - {*finished})
        self.plan.piece_finished(request.number, frozenset(finished), self.seconds * len(finished), postponed)
        if request.replicates == () and not postponed:
            self.scored.append(group)
            self.close(group)
        elif len(settled) == self.replicates(group) and finished:
            if group % 2:
                self.plan.targets_due(group)
            else:
                self.close(group)

    def close(self, group: int) -> None:
        del self.settled[group]
        self.plan.closed(group)
        self.done.append(group)


@given(
    n=st.integers(0, 200),
    batch_size=st.integers(1, 60),
    slots=st.integers(1, 8),
    seconds=st.floats(1e-4, 20),
    most_replicates=st.integers(1, 7),
    rng=st.randoms(use_true_random=False),
    gives_back=st.booleans(),
    loses=st.booleans(),
    fuse=st.booleans(),
    postpones=st.booleans(),
)
def test_every_group_runs_once_and_the_window_is_never_exceeded(
    n: int,
    batch_size: int,
    slots: int,
    seconds: float,
    most_replicates: int,
    rng: random.Random,
    gives_back: bool,
    loses: bool,
    fuse: bool,
    postpones: bool,
) -> None:
    def replicates(group: int) -> int:
        return 1 + group % most_replicates

    p = plan(n, batch_size=batch_size, slots=slots, replicates=replicates, fuse=fuse)
    cluster = Cluster(p, replicates, seconds, rng)
    cluster.postpones = postpones
    while not p.over:
        p.slots, p.workers = rng.randint(1, slots), rng.randint(1, 3)  # workers come and go
        cluster.send()
        assert len(cluster.groups_in_flight()) <= p.in_flight <= batch_size
        assert len(cluster.tasks_in_flight) <= TASKS_PER_SLOT * slots + most_replicates
        assert fuse or all(len(request.groups) == 1 for request in cluster.tasks_in_flight.values())
        cluster.come_back(gives_back=gives_back, loses=loses)
    assert sorted(cluster.done) == list(range(n))
    assert all(group % 2 for group in cluster.scored)


def test_groups_start_in_study_order() -> None:
    p = plan(100)
    p.measured(0.1, 1, 1)
    sent = [group for request in p.next_tasks(pilot=False) for group in request.groups]
    assert sent == list(range(len(sent)))


def test_what_a_task_gives_back_goes_first() -> None:
    p = plan(100, slots=1)
    p.measured(0.1, 1, 1)
    first, *_ = p.next_tasks(pilot=False)
    p.finished(first.number, frozenset({0}), 0.1)
    assert p.next_tasks(pilot=False)[0].groups[0] == 1


def test_the_pilot_is_one_simulation_alone_and_the_rest_of_its_group_follows() -> None:
    p = plan(100, replicates=lambda _: 5)
    (request,) = p.next_tasks(pilot=True)
    assert (request.groups, request.replicates) == ((0,), (0,))
    assert p.next_tasks(pilot=True) == []
    p.piece_finished(request.number, frozenset({0}), 1e-3)
    rest, *others = p.next_tasks(pilot=False)
    assert (rest.groups, rest.replicates) == ((0,), (1, 2, 3, 4))
    assert all(request.replicates is None for request in others)


def test_a_long_group_is_run_in_pieces_and_few_are_half_done() -> None:
    p = plan(100, replicates=lambda _: 10, slots=3)
    p.measured(4.0, 1, 10)  # 0.4 s a simulation: two of them are a task of about a second
    requests = p.next_tasks(pilot=False)
    assert [(request.groups, request.replicates) for request in requests] == [
        *[((0,), (i, i + 1)) for i in range(0, 10, 2)],
        ((1,), (0, 1)),
    ]
    for request in requests[:5]:
        p.piece_finished(request.number, frozenset(request.replicates or ()), 0.8)
    p.targets_due(0)
    targets, *pieces = p.next_tasks(pilot=False)
    assert (targets.groups, targets.replicates) == ((0,), ())
    assert {request.groups for request in pieces} == {(1,)}


def test_targets_of_many_groups_that_wait_for_them_are_sent_a_few_at_a_time() -> None:
    """All were sent at once, each with all results of its group: gigabytes, where many groups end together."""
    p = plan(20, replicates=lambda _: 2, slots=2, task_seconds=0.1)
    p.measured(1.0, 1, 2)
    one, other, whole = frozenset({0}), frozenset({1}), set()
    while len(whole) < 20:  # each group waits for its second replicate, which takes too much memory
        for request in p.next_tasks(pilot=False):
            ran = frozenset(request.replicates or ())
            p.piece_finished(
                request.number, ran if request.alone else ran & one, 0.5, frozenset() if request.alone else ran & other
            )
            whole.update(request.groups if request.alone else ())
    for group in whole:
        p.targets_due(group)
    sent = p.next_tasks(pilot=False)
    assert len(sent) <= 2 * PIECES_PER_SLOT
    n_scored = 0
    while sent:
        n_scored += len(sent)
        for request in sent:
            assert request.replicates == ()
            p.piece_finished(request.number, frozenset(), 0.1)
            p.closing(request.groups[0])
            p.closed(request.groups[0])
        sent = p.next_tasks(pilot=False)
    assert n_scored == 20


def test_the_last_groups_of_a_job_are_split_so_that_slots_finish_together() -> None:
    p = plan(2, replicates=lambda _: 4)
    p.measured(0.8, 1, 4)
    assert [len(request.replicates or ()) for request in p.next_tasks(pilot=False)] == [1, 1, 1, 1]


def test_a_task_that_took_down_its_workers_is_cut_down_to_one_simulation_alone() -> None:
    p = plan(3, replicates=lambda group: 2 if group == 1 else 1)
    p.measured(0.01, 1, 1)
    (fused,) = p.next_tasks(pilot=False)
    assert fused.groups == (0, 1, 2)
    p.lost(fused.number, blamed=True)
    first, second, third = p.next_tasks(pilot=False)
    assert [(request.groups, request.suspect) for request in (first, second, third)] == [((i,), True) for i in range(3)]
    assert not fused.suspect
    p.lost(second.number, blamed=True)
    assert p.next_tasks(pilot=False) == [], "others run still"
    p.lost(first.number, blamed=True)
    p.finished(third.number, frozenset({2}), 0.1)
    p.workers = 2
    sent = []
    for settled in ({1}, {0}):
        (alone,) = p.next_tasks(pilot=False)  # one at a time: on a worker that dies with two, which one did it?
        sent.append((alone.groups, alone.replicates, alone.alone))
        p.piece_finished(alone.number, frozenset(settled), 0.1)
    assert sent == [((1,), (1,), True), ((1,), (0,), True)]
    (last,) = p.next_tasks(pilot=False)
    assert (last.groups, last.replicates, last.alone) == ((0,), None, True)
    p.lost(last.number)
    (again,) = p.next_tasks(pilot=False)
    assert again.alone, "a lost connection is no reason to run it beside others"


def test_what_took_too_much_memory_runs_one_on_each_worker() -> None:
    p = plan(3, slots=2)
    p.measured(1.0, 1, 1)
    p.workers = 2
    while not (late := p.next_tasks(pilot=False))[0].alone:
        for request in late:
            p.finished(request.number, frozenset(), 0.0, frozenset(request.groups))
    assert [request.alone for request in late] == [True, True]
    p.finished(late[0].number, frozenset(late[0].groups), 1.0)
    assert [request.alone for request in p.next_tasks(pilot=False)] == [True]


def test_targets_that_are_lost_are_sent_again() -> None:
    p = plan(1, replicates=lambda _: 2)
    pieces = p.next_tasks(pilot=False)
    for request in pieces:
        p.piece_finished(request.number, frozenset(request.replicates or ()), 5.0)
    p.targets_due(0)
    (targets,) = p.next_tasks(pilot=False)
    p.lost(targets.number)
    (again,) = p.next_tasks(pilot=False)
    assert (again.replicates, again.alone) == ((), False)
    p.lost(again.number, blamed=True)
    (again,) = p.next_tasks(pilot=False)
    assert (again.replicates, again.alone) == ((), True)
    p.piece_finished(again.number, frozenset(), 0.1)
    p.closed(0)
    assert p.over


def in_pieces_and_all_there() -> Plan:
    """A plan of one group, all of whose replicates have come back."""
    p = plan(1, replicates=lambda _: 2)
    for request in p.next_tasks(pilot=False):
        p.piece_finished(request.number, frozenset(request.replicates or ()), 5.0)
    return p


def test_a_stopped_plan_is_not_over_while_a_group_is_on_its_way_into_the_checkpoint() -> None:
    p = in_pieces_and_all_there()
    p.closing(0)
    p.stop()
    assert not p.over
    p.closed(0)
    assert p.over


@pytest.mark.parametrize("alone", [False, True])
def test_targets_that_came_back_without_their_input_are_sent_again(alone: bool) -> None:
    p = in_pieces_and_all_there()
    p.targets_again(0, alone=alone)
    (again,) = p.next_tasks(pilot=False)
    assert (again.groups, again.replicates, again.alone) == ((0,), (), alone)
    assert p.next_tasks(pilot=False) == []


@pytest.mark.parametrize("alone", [False, True])
def test_targets_that_come_back_after_a_stop_are_not_sent_again(alone: bool) -> None:
    p = in_pieces_and_all_there()
    p.stop()
    p.targets_again(0, alone=alone)
    assert p.next_tasks(pilot=False) == []
    assert p.over


def test_a_stopped_plan_sends_nothing_and_is_over_when_the_last_task_is_back() -> None:
    p = plan(100)
    request, *others = p.next_tasks(pilot=False)
    p.stop()
    assert p.next_tasks(pilot=False) == []
    assert not p.over
    for sent in (request, *others):
        p.finished(sent.number, frozenset(), 0.0)
    assert p.over


def test_a_study_without_groups_left_is_over() -> None:
    assert plan(0).over


@pytest.mark.parametrize(
    ("n", "seconds", "expected"),
    [
        (10_000, 1e-5, 50),  # short groups: two tasks for each slot share the window of 200
        (10_000, 0.1, 10),  # about a second of work
        (10_000, 5.0, 1),  # a long group is a task of its own
        (20, 0.1, 5),  # near the end: what is left, shared
        (20, 4e-3, 20),  # ... but not below 0.1 s of work
        (1, 5.0, 1),
    ],
)
def test_size_of_a_task(n: int, seconds: float, expected: int) -> None:
    p = plan(n)
    p.measured(seconds, 1, 1)
    assert len(p.next_tasks(pilot=False)[0].groups) == expected


@pytest.mark.parametrize(
    ("per_slot", "sizes"), [(WINDOW_PER_SLOT, [50, 50, 50, 50]), (WINDOW_PER_EMBEDDED_SLOT, [66, 66, 66])]
)
def test_a_window_of_short_groups_is_a_few_full_tasks_and_no_crumb(per_slot: float, sizes: list[int]) -> None:
    p = plan(10_000, window_per_slot=per_slot)
    p.measured(1e-5, 1, 1)
    assert [len(request.groups) for request in p.next_tasks(pilot=False)] == sizes


def test_before_anything_is_measured_one_group_finds_out() -> None:
    assert [request.groups for request in plan(10).next_tasks(pilot=False)] == [(0,), (1,)]


def test_without_fusion_each_group_is_a_task() -> None:
    p = plan(1000, fuse=False)
    p.measured(1e-4, 1, 1)
    assert {len(request.groups) for request in p.next_tasks(pilot=False)} == {1}


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [(1000.0, 1.0), (2.0, 0.5), (0.0, 0.1)],
)
def test_a_task_shrinks_near_the_end_of_the_job(left_s: float, expected: float) -> None:
    assert task_budget_s(task_seconds=1.0, left_s=left_s, slots=2) == expected


@pytest.mark.parametrize(
    ("n_left", "seconds", "expected"),
    [(10, None, 1), (10, 5.0, 1), (10, 0.3, 3), (10, 0.4, 2), (7, 0.25, 4), (3, 1e-6, 3)],
)
def test_pieces_are_even_and_of_about_the_budget(n_left: int, seconds: float | None, expected: int) -> None:
    assert piece_size(n_left, seconds, 1.0) == expected


def test_recent_measurements_count_most() -> None:
    p = plan(10)
    p.measured(100.0, 10, 10)
    for _ in range(20):
        p.measured(1.0, 10, 10)
    assert p.seconds_per_group == pytest.approx(0.1, rel=0.3)


def test_batches_are_counted_off_with_the_keys_of_their_commits() -> None:
    batches = Batches(Window(10))
    assert batches.add(6, ["a"]) is None
    assert batches.add(5, ["b"]) == (1, ["a", "b"])
    assert batches.add(8, ["c"]) is None
    assert batches.rest() == (2, ["c"])
    assert batches.rest() is None
    assert batches.add(21, ["d"]) == (4, ["d"])
    assert batches.add(9, ["e"]) is None
    assert batches.add(1, ["f"]) == (5, ["e", "f"]), "as many as the window has are a batch"


def test_what_took_too_much_memory_runs_alone_when_nothing_else_does() -> None:
    p = plan(8, slots=2)
    p.measured(1.0, 1, 1)
    first, *others = p.next_tasks(pilot=False)
    p.finished(first.number, frozenset(), 0.1, frozenset(first.groups))
    while others:
        request = others.pop()
        assert not request.alone
        p.finished(request.number, frozenset(request.groups), 1.0)
        others += p.next_tasks(pilot=False)
        if others and others[0].alone:
            break
    (alone,) = others
    assert (alone.groups, alone.replicates, alone.alone) == (first.groups, None, True)
    assert not p.over
    p.finished(alone.number, frozenset(alone.groups), 1.0)
    assert p.over


def test_a_replicate_that_took_too_much_memory_waits_for_the_rest_of_the_job() -> None:
    p = plan(2, slots=1, replicates=lambda _: 2)
    p.measured(10.0, 1, 2)
    sent: list[Task] = []
    while not p.over:
        for request in p.next_tasks(pilot=False):
            sent.append(request)
            first = request.groups == (0,) and request.replicates == (0,) and not request.alone
            settled, late = (
                (frozenset(), frozenset({0})) if first else (frozenset(request.replicates or ()), frozenset())
            )
            p.piece_finished(request.number, settled, 5.0, late)
            if (request.groups == (1,) and request.replicates == (1,)) or request.alone:
                p.closed(request.groups[0])
    found = [(request.groups[0], request.replicates, request.alone) for request in sent]
    assert found == [(0, (0,), False), (0, (1,), False), (1, (0,), False), (1, (1,), False), (0, (0,), True)]


def run_all(p: Plan, requests: list[Task], seconds: float) -> None:
    for request in requests:
        p.finished(request.number, frozenset(request.groups), seconds * len(request.groups))


def test_beside_other_jobs_no_more_is_in_flight_than_the_share_and_nothing_is_taken_back() -> None:
    p = plan(1000, slots=8, task_seconds=0.5)
    run_all(p, p.next_tasks(pilot=False), 0.5)
    assert len(p.next_tasks(pilot=False)) == 8 * TASKS_PER_SLOT
    p.slots, p.tasks = 4, 8
    assert p.next_tasks(pilot=False) == []
    flying = list(p.tasks_in_flight.values())
    run_all(p, flying[:24], 0.5)
    assert p.next_tasks(pilot=False) == []
    assert len(p.tasks_in_flight) == 8
    run_all(p, flying[24:25], 0.5)
    assert len(p.next_tasks(pilot=False)) == 1


def test_pieces_of_long_groups_keep_to_the_share() -> None:
    p = plan(3, slots=8, replicates=lambda _: 100)
    p.tasks = 3
    assert len(p.next_tasks(pilot=False)) == 3


def test_what_a_plan_wants_is_what_it_could_run_at_once() -> None:
    p = plan(100, batch_size=6, slots=2)
    assert p.wanted_slots > 1000, "before anything is measured, each group may be long"
    run_all(p, p.next_tasks(pilot=False), 1.0)
    assert p.wanted_slots == 6, "no more than fit into the window"
    p = plan(5, slots=2, task_seconds=1.0)
    run_all(p, p.next_tasks(pilot=False), 3.5)
    assert p.wanted_slots == 3 * 4, "a group of 3.5 s is four pieces"
    p.stop()
    assert p.wanted_slots == 0


def test_an_order_says_what_it_will_take() -> None:
    p = plan(100, slots=1, task_seconds=1.0)
    (first,) = p.next_tasks(pilot=True)
    assert first.seconds == 1.0
    p.finished(first.number, frozenset(first.groups), 0.25)
    assert p.next_tasks(pilot=False)[0].seconds == pytest.approx(1.0)
    assert len(p.tasks_in_flight[2].groups) == 4


def test_an_order_of_a_piece_says_what_its_replicates_will_take() -> None:
    p = plan(100, slots=1, replicates=lambda _: 10)
    p.measured(4.0, 1, 10)
    piece = p.next_tasks(pilot=False)[0]
    assert (piece.replicates, piece.seconds) == ((0, 1), pytest.approx(0.8))


def test_a_group_that_takes_just_the_budget_is_not_cut() -> None:
    p = plan(100, replicates=lambda _: 2)
    p.measured(1.0, 1, 2)
    assert p.next_tasks(pilot=False)[0].replicates is None


def test_the_last_room_of_a_window_takes_a_full_task() -> None:
    p = plan(1000, batch_size=25, slots=2)
    p.measured(0.2, 1, 1)
    assert [len(request.groups) for request in p.next_tasks(pilot=False)] == [5, 5, 5, 5, 5]


def test_a_piece_is_measured_as_a_fraction_of_its_group() -> None:
    p = plan(10, slots=1, replicates=lambda _: 4)
    (first,) = p.next_tasks(pilot=True)
    p.piece_finished(first.number, frozenset({0}), 0.5)
    assert p.seconds_per_group == 2.0


def test_a_task_without_results_or_without_a_time_measures_nothing() -> None:
    p = plan(10, slots=1)
    p.measured(1.0, 1, 1)
    stopped, untimed, *_ = p.next_tasks(pilot=False)
    p.finished(stopped.number, frozenset(), 5.0)
    p.finished(untimed.number, frozenset(untimed.groups), 0.0)
    assert p.seconds_per_group == 1.0


def test_a_piece_without_results_or_without_a_time_measures_nothing() -> None:
    p = plan(10, slots=1, replicates=lambda _: 4)
    p.measured(8.0, 1, 4)
    stopped, untimed, *_ = p.next_tasks(pilot=False)
    p.piece_finished(stopped.number, frozenset(), 5.0)
    p.piece_finished(untimed.number, frozenset(untimed.replicates or ()), 0.0)
    assert p.seconds_per_group == 8.0


def test_two_groups_whose_task_took_down_its_workers_are_sent_one_by_one() -> None:
    p = plan(2, slots=1)
    p.measured(0.01, 1, 1)
    (fused,) = p.next_tasks(pilot=False)
    p.lost(fused.number, blamed=True)
    assert [(request.groups, request.alone) for request in p.next_tasks(pilot=False)] == [((0,), False), ((1,), False)]


def test_a_loss_that_is_nobodys_fault_makes_no_suspects() -> None:
    p = plan(3, slots=1)
    p.measured(0.01, 1, 1)
    (fused,) = p.next_tasks(pilot=False)
    p.lost(fused.number)
    assert [(request.groups, request.suspect) for request in p.next_tasks(pilot=False)] == [((0, 1, 2), False)]


def test_a_suspect_shares_its_task_with_no_other_group() -> None:
    p = plan(100, slots=1)
    p.measured(0.25, 1, 1)
    first, second, third, _ = p.next_tasks(pilot=False)
    p.finished(first.number, frozenset({0, 1}), 0.5)
    p.lost(second.number, blamed=True)
    p.lost(third.number)
    sent = p.next_tasks(pilot=False)
    for request in sent:
        p.finished(request.number, frozenset(request.groups), 0.25 * len(request.groups))
    sent += p.next_tasks(pilot=False)
    assert [request.groups for request in sent] == [(2, 3), (4,), (5,), (6,), (7,), (8, 9, 10, 11)]
    assert [request.suspect for request in sent] == [False, True, True, True, True, False]


def late(p: Plan, request: Task) -> None:
    """Have a piece, or a task of whole groups, come back with nothing but what is to run alone."""
    if request.replicates is None:
        p.finished(request.number, frozenset(), 0.0, frozenset(request.groups))
    else:
        p.piece_finished(request.number, frozenset(), 0.0, frozenset(request.replicates))


def all_late(n: int, **how: Any) -> Plan:
    """A plan of which everything is to run alone, and nothing is in flight."""
    p = plan(n, **how)
    p.measured(5.0, 1, 1)
    while requests := p.next_tasks(pilot=False):
        if requests[0].alone:
            for request in requests:
                p.lost(request.number)
            break
        for request in requests:
            late(p, request)
    return p


def test_as_long_as_nothing_is_known_of_workers_one_thing_runs_alone() -> None:
    assert len(all_late(3).next_tasks(pilot=False)) == 1


def test_no_more_groups_run_alone_than_fit_into_the_window() -> None:
    p = all_late(4, batch_size=2)
    p.workers = 3
    assert len(p.next_tasks(pilot=False)) == 2


def test_replicates_of_one_group_run_alone_on_several_workers() -> None:
    p = all_late(1, replicates=lambda _: 3)
    p.workers = 2
    assert [(request.groups, request.alone) for request in p.next_tasks(pilot=False)] == [((0,), True), ((0,), True)]


def test_a_replicate_that_comes_back_unsettled_from_a_run_alone_runs_alone_again() -> None:
    p = all_late(1, replicates=lambda _: 2)
    (alone,) = p.next_tasks(pilot=False)
    p.piece_finished(alone.number, frozenset(), 0.0)
    assert [request.alone for request in p.next_tasks(pilot=False)] == [True]


def test_nothing_runs_beside_a_suspect_and_a_suspect_runs_beside_nothing() -> None:
    """On a worker that dies with two, which one did it? The others need not wait for it, where they are first."""
    p = plan(3, slots=1, replicates=lambda group: 3 if group == 0 else 2)
    p.measured(10.0, 1, 2)
    while not (requests := p.next_tasks(pilot=False))[0].alone:
        for request in requests:
            if request.groups == (1,):
                p.lost(request.number, blamed=True)
            else:
                late(p, request)
    p.workers = 2
    requests += p.next_tasks(pilot=False)
    sent: list[list[int]] = []
    while requests:
        sent.append([request.groups[0] for request in requests])
        for request in requests:
            p.piece_finished(request.number, frozenset(request.replicates or ()), 1.0)
        requests = p.next_tasks(pilot=False)
    assert sent == [[0, 0], [0, 2], [1], [1], [2]]
