"""The plan: events in, tasks out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.attempt.drain import Batches
from mops.attempt.plan import Plan
from mops.attempt.sizing import (
    SPLIT_TASKS_PER_SLOT,
    TASKS_PER_SLOT,
    WINDOW_PER_EMBEDDED_SLOT,
    WINDOW_PER_SLOT,
    TaskSizer,
    Window,
    limit_bytes,
)
from mops.cluster.shares import Share
from mops.study.ranges import Ranges
from mops.task import Task


def plan(
    n: int,
    *,
    batch_size: int = 200,
    slots: int = 2,
    task_seconds: float = 1.0,
    replicates: Callable[[int], int] = lambda _: 1,
    fuse: bool = True,
    window_per_slot: float = WINDOW_PER_SLOT,
    task_share: Callable[[int], float] = lambda _: 0.0,
) -> Plan:
    sizer = TaskSizer(task_seconds, fuse=fuse, window_per_slot=window_per_slot)
    share = Share(slots, workers=1)
    to_run = lambda group: range(replicates(group))  # noqa: E731
    return Plan(Ranges.of(range(n)), to_run, window=Window(batch_size), sizer=sizer, share=share, task_share=task_share)


def send(p: Plan) -> list[Task]:
    return p.next_tasks()


def finish(
    p: Plan, *tasks: Task, seconds: float = 1.0, done: Iterable[int] | None = None, postponed: Iterable[int] = ()
) -> None:
    """Let tasks come back after ``seconds``, with everything or with what is ``done`` and ``postponed``."""
    for task in tasks:
        whole = task.replicates is None
        ran = (task.groups if whole else task.replicates) if done is None else done
        take = p.task_finished if whole else p.split_task_finished
        take(task.number, frozenset(ran or ()), seconds, frozenset(postponed))


def postpone(p: Plan, *tasks: Task) -> None:
    """Let tasks come back without results: everything in them used too much memory."""
    for task in tasks:
        finish(p, task, seconds=0.0, done=(), postponed=task.groups if task.replicates is None else task.replicates)


class Cluster:
    """Runs tasks as a cluster does: in any order, in part, or not at all; keeps what counts."""

    def __init__(self, p: Plan, replicates: Callable[[int], int], seconds: float, rng: random.Random):
        self.plan, self.replicates, self.seconds, self.rng = p, replicates, seconds, rng
        self.postpones = False
        self.tasks_in_flight: dict[int, Task] = {}
        self.settled: dict[int, set[int]] = {}
        self.done: list[int] = []
        self.scored: list[int] = []

    def send(self) -> None:
        for request in send(self.plan):
            assert request.groups
            beside = [other.alone for other in self.tasks_in_flight.values()]
            assert all(beside) if request.alone else not any(beside), "something else runs"
            assert not request.alone or len(beside) < self.plan.share.workers
            self.tasks_in_flight[request.number] = request

    def groups_in_flight(self) -> set[int]:
        return {group for request in self.tasks_in_flight.values() for group in request.groups} | set(self.settled)

    def come_back(self, *, gives_back: bool, loses: bool) -> None:
        number = self.rng.choice(sorted(self.tasks_in_flight))
        request = self.tasks_in_flight.pop(number)
        if loses and self.rng.random() < 0.3:
            self.plan.task_lost(number, blamed=self.blames(request))
        elif request.replicates is None:
            self.whole(request, self.some(request.groups, gives_back))
        else:
            self.piece(request, self.some(request.replicates, gives_back))

    def release(self) -> None:
        """Let a task leave some of what it has to others."""
        number = self.rng.choice(sorted(self.tasks_in_flight))
        task = self.tasks_in_flight[number]
        released = frozenset(task.units[self.rng.randint(1, len(task.units)) :] if task.units else ())
        self.tasks_in_flight[number] = task.without(released)
        self.plan.release(number, released)
        assert self.plan.tasks_in_flight[number].units == self.tasks_in_flight[number].units

    def blames(self, request: Task) -> bool:
        smallest = request.replicates is not None or len(request.groups) == 1 == self.replicates(request.groups[0])
        return not (smallest and request.alone) and self.rng.random() < 0.5

    def some(self, of: tuple[int, ...], gives_back: bool) -> tuple[int, ...]:
        return of[: self.rng.randint(0, len(of))] if gives_back and self.rng.random() < 0.5 else of

    def postponed(self, request: Task, left: set[int]) -> frozenset[int]:
        """Choose what used too much memory, of what is left of a task."""
        chosen = self.postpones and not request.alone and self.rng.random() < 0.3
        return frozenset(number for number in sorted(left) if chosen and self.rng.random() < 0.5)

    def whole(self, request: Task, finished: tuple[int, ...]) -> None:
        postponed = self.postponed(request, {*request.groups} - {*finished})
        self.plan.task_finished(request.number, frozenset(finished), self.seconds * len(finished), postponed)
        self.done += finished

    def piece(self, request: Task, finished: tuple[int, ...]) -> None:
        (group,) = request.groups
        settled = self.settled.setdefault(group, set())
        assert not settled & set(finished), "a replicate ran twice"
        settled.update(finished)
        postponed = self.postponed(request, {*(request.replicates or (0,))} - {*finished})
        self.plan.split_task_finished(request.number, frozenset(finished), self.seconds * len(finished), postponed)
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
        self.plan.group_finished(group)
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
    releases=st.booleans(),
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
    releases: bool,
) -> None:
    def replicates(group: int) -> int:
        return 1 + group % most_replicates

    p = plan(n, batch_size=batch_size, slots=slots, replicates=replicates, fuse=fuse)
    cluster = Cluster(p, replicates, seconds, rng)
    cluster.postpones = postpones
    while not p.finished:
        p.share = Share(rng.randint(1, slots), rng.randint(1, 3))  # workers come and go
        cluster.send()
        assert len(cluster.groups_in_flight()) <= p.groups_in_flight <= batch_size
        assert len(cluster.tasks_in_flight) <= TASKS_PER_SLOT * slots + most_replicates
        assert fuse or all(len(request.groups) == 1 for request in cluster.tasks_in_flight.values())
        if releases and rng.random() < 0.3:
            cluster.release()
            cluster.send()
        cluster.come_back(gives_back=gives_back, loses=loses)
    assert sorted(cluster.done) == list(range(n))
    assert all(group % 2 for group in cluster.scored)


def test_groups_start_in_study_order() -> None:
    assert [task.groups for task in send(plan(10))] == [(0,), (1,)], "before anything is measured"
    p = plan(100)
    p.sizer.add(0.1, 1, 1)
    sent = [group for task in send(p) for group in task.groups]
    assert sent == list(range(len(sent)))


def test_groups_that_a_task_gives_back_are_sent_first() -> None:
    p = plan(100, slots=1)
    p.sizer.add(0.1, 1, 1)
    finish(p, send(p)[0], done={0})
    assert send(p)[0].groups[0] == 1


def test_a_task_that_is_back_releases_nothing() -> None:
    p = plan(4)
    first, *others = send(p)
    finish(p, first, done=())
    p.release(first.number, frozenset(first.groups))
    finish(p, *others)
    groups = [group for task in others for group in task.groups]
    while tasks := send(p):
        groups += [group for task in tasks for group in task.groups]
        finish(p, *tasks)
    assert sorted(groups) == list(range(4))
    assert p.finished


def test_the_first_tasks_are_single_simulations_on_all_slots() -> None:
    """Regression: nothing else ran until the first simulation had succeeded."""
    p = plan(100, slots=4, replicates=lambda _: 5)
    first = send(p)
    assert [(task.groups, task.replicates) for task in first] == [((0,), (replicate,)) for replicate in range(5)]
    finish(p, first[0], seconds=1e-3)
    assert all(task.replicates is None for task in send(p))


def test_a_long_group_is_run_in_pieces_and_few_groups_are_half_done() -> None:
    p = plan(100, replicates=lambda _: 10, slots=3)
    p.sizer.add(4.0, 1, 10)  # 0.4 s a simulation: two of them are a task of about a second
    tasks = send(p)
    first_group = [((0,), (i, i + 1)) for i in range(0, 10, 2)]
    assert [(task.groups, task.replicates) for task in tasks] == [*first_group, ((1,), (0, 1))]
    finish(p, *tasks[:5], seconds=0.8)
    p.targets_due(0)
    targets, *pieces = send(p)
    assert (targets.groups, targets.replicates) == ((0,), ())
    assert {task.groups for task in pieces} == {(1,)}


def test_targets_of_many_groups_are_sent_a_few_at_a_time() -> None:
    """All were sent at once, each with all results of its group: gigabytes when many groups finish together."""
    p = plan(20, replicates=lambda _: 2, slots=2, task_seconds=0.1)
    p.sizer.add(1.0, 1, 2)
    whole: set[int] = set()
    while len(whole) < 20:  # each group waits for its second replicate, which uses too much memory
        for task in send(p):
            if task.alone:
                finish(p, task, seconds=0.5)
                whole.update(task.groups)
            else:
                finish(p, task, seconds=0.5, done={*task.replicates} & {0}, postponed={*task.replicates} & {1})
    for group in whole:
        p.targets_due(group)
    n_scored = 0
    while tasks := send(p):
        assert len(tasks) <= 2 * SPLIT_TASKS_PER_SLOT
        n_scored += len(tasks)
        for task in tasks:
            assert task.replicates == ()
            finish(p, task, seconds=0.1)
            p.group_delivering(task.groups[0])
            p.group_finished(task.groups[0])
    assert n_scored == 20


def test_the_last_groups_of_a_job_are_split_so_that_slots_finish_together() -> None:
    p = plan(2, replicates=lambda _: 4)
    p.sizer.add(0.8, 1, 4)
    assert [len(task.replicates or ()) for task in send(p)] == [1, 1, 1, 1]


def test_a_task_that_killed_its_workers_is_cut_down_to_one_simulation_alone() -> None:
    p = plan(3, replicates=lambda group: 2 if group == 1 else 1)
    p.sizer.add(0.01, 1, 1)
    (fused,) = send(p)
    assert (fused.groups, fused.suspect) == ((0, 1, 2), False)
    p.task_lost(fused.number, blamed=True)
    first, second, third = send(p)
    assert [(task.groups, task.suspect) for task in (first, second, third)] == [((i,), True) for i in range(3)]
    p.task_lost(second.number, blamed=True)
    assert send(p) == [], "other tasks are still running"
    p.task_lost(first.number, blamed=True)
    finish(p, third, seconds=0.1)
    p.share = replace(p.share, workers=2)
    sent = []
    for replicate in (1, 0):
        (alone,) = send(p)  # one at a time: if a worker dies with two, either may be the cause
        sent.append((alone.groups, alone.replicates, alone.alone))
        finish(p, alone, seconds=0.1, done={replicate})
    assert sent == [((1,), (1,), True), ((1,), (0,), True)]
    (last,) = send(p)
    assert (last.groups, last.replicates, last.alone) == ((0,), None, True)
    p.task_lost(last.number)
    assert send(p)[0].alone, "after a lost connection it must still run alone"


def all_replicates_are_back() -> Plan:
    """Return a plan of one group whose replicates have all come back."""
    p = plan(1, replicates=lambda _: 2)
    finish(p, *send(p), seconds=5.0)
    return p


def test_targets_that_are_lost_are_sent_again_and_alone_if_they_killed_their_worker() -> None:
    p = all_replicates_are_back()
    p.targets_due(0)
    (targets,) = send(p)
    p.task_lost(targets.number)
    (again,) = send(p)
    assert (again.replicates, again.alone) == ((), False)
    p.task_lost(again.number, blamed=True)
    (again,) = send(p)
    assert (again.replicates, again.alone) == ((), True)
    finish(p, again, seconds=0.1)
    p.group_finished(0)
    assert p.finished


def test_a_stopped_plan_is_not_over_while_a_group_is_on_its_way_into_the_checkpoint() -> None:
    p = all_replicates_are_back()
    p.group_delivering(0)
    p.stop()
    assert not p.finished
    p.group_finished(0)
    assert p.finished


def test_targets_that_came_back_without_their_input_are_sent_again_unless_the_plan_was_stopped(
    subtests: pytest.Subtests,
) -> None:
    for alone in [False, True]:
        for stopped in [False, True]:
            with subtests.test(str((alone, stopped))):
                p = all_replicates_are_back()
                if stopped:
                    p.stop()
                p.targets_unfinished(0, alone=alone)
                sent = [(task.groups, task.replicates, task.alone) for task in send(p)]
                assert (sent, p.finished) == (([], True) if stopped else ([((0,), (), alone)], False))


def test_a_stopped_plan_sends_nothing_and_is_over_when_the_last_task_is_back() -> None:
    p = plan(100)
    tasks = send(p)
    p.stop()
    assert send(p) == []
    assert not p.finished
    finish(p, *tasks, seconds=0.0, done=())
    assert p.finished


EMBEDDED = {"window_per_slot": WINDOW_PER_EMBEDDED_SLOT}


def test_a_task_holds_the_groups_that_take_about_a_second(subtests: pytest.Subtests) -> None:
    for n, how, seconds, sizes in [
        (10_000, {}, 1e-5, [50] * 4),  # short groups: two tasks for each slot share the window of 200
        (10_000, EMBEDDED, 1e-5, [66] * 3),
        (10_000, {}, 0.1, [10] * 8),  # about a second
        (10_000, {}, 5.0, [1] * 8),  # a long group fills a task
        (20, {}, 0.1, [5, 3, 3, 2, 1, 1, 1, 1]),  # near the end: the slots share what is left
        (20, {}, 4e-3, [20]),  # ... but a task takes at least 0.1 s
        (1, {}, 5.0, [1]),
        (1000, {"batch_size": 25}, 0.2, [5] * 5),  # the last room of a window takes a full task
        (1000, {"fuse": False}, 1e-4, [1] * 8),
        (10, {}, None, [1, 1]),
        (0, {}, None, []),
    ]:
        with subtests.test(str((n, how, seconds, sizes))):
            p = plan(n, **how)
            assert p.finished is (n == 0)
            if seconds is not None:
                p.sizer.add(seconds, 1, 1)
            assert [len(task.groups) for task in send(p)] == sizes
            assert p.finished is (n == 0)


def test_a_task_shrinks_near_the_end_of_the_job(subtests: pytest.Subtests) -> None:
    for n_left, expected in [(1000, 1.0), (2, 0.5), (0, 0.1)]:
        with subtests.test(str((n_left, expected))):
            sizer = TaskSizer(1.0, fuse=True, window_per_slot=WINDOW_PER_SLOT)
            sizer.add(1.0, n_groups=1, n_simulations=1)
            assert sizer.budget_s(n_left, slots=2) == expected


def test_tasks_on_many_slots_are_so_long_that_the_runner_keeps_up(subtests: pytest.Subtests) -> None:
    for slots, most, least in [(2, 1.0, 0.1), (150, 2.0, 0.375), (900, 12.0, 2.25)]:
        with subtests.test(str((slots, most, least))):
            sizer = TaskSizer(1.0, fuse=True, window_per_slot=WINDOW_PER_SLOT)
            sizer.add(1.0, n_groups=1, n_simulations=1)
            assert (sizer.budget_s(10**6, slots), sizer.budget_s(0, slots)) == (most, least)
            assert sizer.limit_s(slots) == 2 * most


def test_a_task_may_return_its_share_of_a_checkpoint(subtests: pytest.Subtests) -> None:
    for slots, shares in [(1, 2), (16, 32), (160, 64), (1000, 64)]:
        with subtests.test(str((slots, shares))):
            assert limit_bytes(64 << 20, slots) == (64 << 20) // shares
            assert limit_bytes(1, slots) == 1


def test_pieces_are_even_and_of_about_the_budget(subtests: pytest.Subtests) -> None:
    for n_left, seconds, expected in [
        (10, None, 1),
        (10, 5.0, 1),
        (10, 0.3, 3),
        (10, 0.4, 2),
        (7, 0.25, 4),
        (3, 1e-6, 3),
    ]:
        with subtests.test(str((n_left, seconds, expected))):
            sizer = TaskSizer(1.0, fuse=True, window_per_slot=WINDOW_PER_SLOT)
            if seconds is not None:
                sizer.add(seconds, n_groups=1, n_simulations=1)
            assert sizer.replicates_per_task(n_left, n_left=10**9, slots=1) == expected


def test_recent_measurements_count_most() -> None:
    p = plan(10)
    p.sizer.add(100.0, 10, 10)
    for _ in range(20):
        p.sizer.add(1.0, 10, 10)
    assert p.sizer.seconds_per_group == pytest.approx(0.1, rel=0.3)


def test_a_batch_is_full_with_as_many_groups_as_the_window_and_has_the_keys_of_their_tasks() -> None:
    batches = Batches(Window(10))
    assert batches.add(6, ["a"]) is None
    assert batches.add(5, ["b"]) == (1, ["a", "b"], 1)
    assert batches.add(8, ["c"]) is None
    assert batches.last() == (2, ["c"], 1)
    assert batches.last() is None
    assert batches.add(21, ["d"]) == (4, ["d"], 3)
    assert batches.add(9, ["e"]) is None
    assert batches.add(1, ["f"]) == (5, ["e", "f"], 1)


def test_a_group_that_used_too_much_memory_runs_alone_when_nothing_else_runs() -> None:
    p = plan(8, slots=2)
    p.sizer.add(1.0, 1, 1)
    first, *others = send(p)
    postpone(p, first)
    while not others[0].alone:
        finish(p, others.pop())
        others += send(p)
    (alone,) = others
    assert (alone.groups, alone.replicates) == (first.groups, None)
    assert not p.finished
    finish(p, alone)
    assert p.finished


def test_a_replicate_that_used_too_much_memory_waits_for_the_rest_of_the_job() -> None:
    p = plan(2, slots=1, replicates=lambda _: 2)
    p.sizer.add(10.0, 1, 2)
    sent: list[tuple[int, Any, bool]] = []
    while not p.finished:
        for task in send(p):
            sent.append((task.groups[0], task.replicates, task.alone))
            if sent[-1] == (0, (0,), False):
                postpone(p, task)
            else:
                finish(p, task, seconds=5.0)
            if task.alone or sent[-1] == (1, (1,), False):
                p.group_finished(task.groups[0])
    assert sent == [(0, (0,), False), (0, (1,), False), (1, (0,), False), (1, (1,), False), (0, (0,), True)]


def test_next_to_other_jobs_no_more_is_sent_than_the_share_allows() -> None:
    p = plan(1000, slots=8, task_seconds=0.5)
    finish(p, *send(p), seconds=0.5)
    tasks = send(p)
    assert len(tasks) == 8 * TASKS_PER_SLOT
    p.share = Share(4, 1, tasks=8)
    finish(p, *tasks[:24], seconds=0.5)
    assert send(p) == [], "what is in flight stays in flight"
    assert len(p.tasks_in_flight) == 8
    finish(p, tasks[24], seconds=0.5)
    assert len(send(p)) == 1


def test_pieces_of_long_groups_keep_to_the_share() -> None:
    p = plan(3, slots=8, replicates=lambda _: 100)
    p.share = Share(8, 1, tasks=3)
    assert len(send(p)) == 3


def test_a_plan_wants_a_slot_for_each_simulation_that_could_run_now() -> None:
    p = plan(100, batch_size=6, slots=2)
    assert p.wanted_slots > 1000, "before anything is measured, each group may be long"
    finish(p, *send(p))
    assert p.wanted_slots == 6, "no more than fit into the window"
    p = plan(5, slots=2, task_seconds=1.0)
    finish(p, *send(p), seconds=3.5)
    assert p.wanted_slots == 3 * 4, "a group of 3.5 s is four pieces"
    p.stop()
    assert p.wanted_slots == 0


def test_a_task_has_the_seconds_that_its_groups_will_take() -> None:
    p = plan(100, slots=1, task_seconds=1.0)
    (first,) = send(p)
    assert first.seconds == 1.0, "nothing is measured yet"
    finish(p, first, seconds=0.25)
    task = send(p)[0]
    assert (len(task.groups), task.seconds) == (4, pytest.approx(1.0))


def test_a_piece_has_the_seconds_that_its_replicates_will_take() -> None:
    p = plan(100, slots=1, replicates=lambda _: 10)
    p.sizer.add(4.0, 1, 10)
    piece = send(p)[0]
    assert (piece.replicates, piece.seconds) == ((0, 1), pytest.approx(0.8))


def test_a_group_that_takes_exactly_the_budget_is_not_split() -> None:
    p = plan(100, replicates=lambda _: 2)
    p.sizer.add(1.0, 1, 2)
    assert send(p)[0].replicates is None


def test_a_piece_is_measured_as_a_fraction_of_its_group() -> None:
    p = plan(10, slots=1, replicates=lambda _: 4)
    first, _ = send(p)
    finish(p, first, seconds=0.5)
    assert p.sizer.seconds_per_group == 2.0


@pytest.mark.parametrize("n_replicates", [1, 4], ids=["groups", "pieces"])
def test_a_task_without_results_or_without_a_time_measures_nothing(n_replicates: int) -> None:
    p = plan(10, slots=1, replicates=lambda _: n_replicates)
    p.sizer.add(2.0 * n_replicates, 1, n_replicates)
    stopped, untimed, *_ = send(p)
    finish(p, stopped, seconds=5.0, done=())
    finish(p, untimed, seconds=0.0)
    assert p.sizer.seconds_per_group == 2.0 * n_replicates


@pytest.mark.parametrize(
    ("blamed", "sent"), [(True, [((0,), True), ((1,), True)]), (False, [((0, 1), False)])], ids=["blamed", "lost"]
)
def test_groups_of_a_lost_task_are_sent_one_by_one_only_if_the_task_killed_its_workers(
    blamed: bool, sent: list[tuple[tuple[int, ...], bool]]
) -> None:
    p = plan(2, slots=1)
    p.sizer.add(0.01, 1, 1)
    (fused,) = send(p)
    p.task_lost(fused.number, blamed=blamed)
    again = send(p)
    assert [(task.groups, task.suspect) for task in again] == sent
    assert not any(task.alone for task in again)


def test_a_suspect_shares_its_task_with_no_other_group() -> None:
    p = plan(100, slots=1)
    p.sizer.add(0.25, 1, 1)
    first, second, third, _ = send(p)
    finish(p, first, seconds=0.5, done={0, 1})
    p.task_lost(second.number, blamed=True)
    p.task_lost(third.number)
    sent = send(p)
    for task in sent:
        finish(p, task, seconds=0.25 * len(task.groups))
    sent += send(p)
    assert [task.groups for task in sent] == [(2, 3), (4,), (5,), (6,), (7,), (8, 9, 10, 11)]
    assert [task.suspect for task in sent] == [False, True, True, True, True, False]


def all_postponed(n: int, **how: Any) -> Plan:
    """Return a plan that has postponed everything, with nothing in flight."""
    p = plan(n, **how)
    p.sizer.add(5.0, 1, 1)
    while not (tasks := send(p))[0].alone:
        postpone(p, *tasks)
    for task in tasks:
        p.task_lost(task.number)
    return p


def test_a_postponed_group_has_a_worker_to_itself() -> None:
    p = all_postponed(3)
    (first,) = send(p)
    p.share = replace(p.share, workers=2)
    (second,) = send(p)
    finish(p, first)
    (third,) = send(p)
    assert (first.alone, second.alone, third.alone) == (True, True, True)


def test_no_more_groups_run_alone_than_fit_into_the_window() -> None:
    p = all_postponed(4, batch_size=2)
    p.share = replace(p.share, workers=3)
    assert len(send(p)) == 2


def test_replicates_of_one_group_run_alone_on_several_workers() -> None:
    p = all_postponed(1, replicates=lambda _: 3)
    p.share = replace(p.share, workers=2)
    assert [(task.groups, task.alone) for task in send(p)] == [((0,), True), ((0,), True)]


def test_a_replicate_that_ran_alone_and_has_no_result_runs_alone_again() -> None:
    p = all_postponed(1, replicates=lambda _: 2)
    (alone,) = send(p)
    finish(p, alone, seconds=0.0, done=())
    assert [task.alone for task in send(p)] == [True]


def test_a_suspect_that_runs_alone_is_the_only_task_in_flight() -> None:
    """If a worker dies with two tasks, either may be the cause. It comes last, because it may end the attempt."""
    p = plan(3, slots=1, replicates=lambda group: 3 if group == 0 else 2)
    p.sizer.add(10.0, 1, 2)
    while not (tasks := send(p))[0].alone:
        for task in tasks:
            if task.groups == (1,):
                p.task_lost(task.number, blamed=True)
            else:
                postpone(p, task)
    p.share = replace(p.share, workers=2)
    tasks += send(p)
    sent: list[list[int]] = []
    while tasks:
        sent.append([task.groups[0] for task in tasks])
        finish(p, *tasks)
        tasks = send(p)
    assert sent == [[0, 0], [0, 2], [2], [1], [1]]


def test_a_task_carries_few_stored_rows_whatever_the_size_of_the_groups() -> None:
    """Most groups have no stored row, some a fifth of what a task may carry, and two more than it may."""
    shares = dict.fromkeys(range(20, 40), 0.2) | {50: 3.0, 51: 3.0}
    p = plan(100, task_share=lambda group: shares.get(group, 0.0))
    groups: list[int] = []
    tasks = []
    while new := send(p):
        tasks += [task.groups for task in new]
        groups += [group for task in new for group in task.groups]
        finish(p, *new, seconds=0.001)
    assert sorted(groups) == list(range(100))
    assert max(map(len, tasks)) > 5
    for task in tasks:
        carried = [shares.get(group, 0.0) for group in task]
        assert sum(carried) <= 1.0 + 1e-9 or max(carried) == carried[0] == 3.0
        assert carried.count(3.0) < 2
