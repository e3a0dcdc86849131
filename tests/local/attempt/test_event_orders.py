"""Events in any order: every task is settled once, every group is committed once, and the job ends.

An example is a list of numbers. Each number is an action (one of :data:`ACTIONS`) and the task, worker or thread that
the action is about. After the last action all tasks finish, and the job must end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from runner_lab import RunnerLab, SimFuture

from mops.cluster.worker_losses import WorkerLoss
from mops.errors import ClusterError
from mops.study.ranges import Ranges
from mops.task import RunningStep

_names = itertools.count()
LEAST_RAISES = 3
"""An attempt may end early only after so many tasks have raised, or a hundred are lost."""


class EventOrder:
    """Applies actions to a runner."""

    def __init__(self, replicates: list[int], *, targets: bool, workers: int, fuse: bool, long: bool):
        seconds = 30.0 if fuse else 0.0
        url = f"memory://orders-{next(_names)}"
        given = {"checkpoint_seconds": seconds, "batch_size": 5, "task_seconds": 0.1 if long else 1.0}
        self.lab = RunnerLab(url, replicates, targets=targets, slots=2 * workers, workers=workers, **given)
        self.all_futures: list[SimFuture] = []
        self.n_raised = self.n_lost = 0
        self.has_stopped = False

    def apply(self, code: int) -> None:
        """Apply one action."""
        action, which = ACTIONS[code % len(ACTIONS)], code // len(ACTIONS)
        action(self, which)
        assert self.lab.runner._plan.groups_in_flight <= 5
        for future in self.lab.cluster.running:
            if future not in self.all_futures:
                self.all_futures.append(future)

    def some(self, which: int) -> SimFuture | None:
        running = self.lab.cluster.running
        return running[which % len(running)] if running else None

    def turn(self, which: int) -> None:
        self.lab.turn()

    def thread(self, which: int) -> None:
        if due := self.lab.threads.due:
            thread = due[which % len(due)]
            place = which // len(due) % len(self.lab.threads.waiting[thread]) if thread == "fetch" else 0
            self.lab.threads.step(thread, place)

    def settle(self, which: int) -> None:
        """Handle all that waits, so that the next action meets a job that is further on."""
        self.lab.settle()

    def answer(self, which: int) -> None:
        if future := self.some(which):
            self.lab.answer(future)

    def answer_in_part(self, which: int) -> None:
        if future := self.some(which):
            self.lab.answer(future, which % 3, postponed=which % 2 == 0)

    def answer_empty(self, which: int) -> None:
        """Finish a task without results, preferably one with targets only, which is rare."""
        running = self.lab.cluster.running
        targets = [future for future in running if future.request.replicates == ()]
        if found := targets or running:
            self.lab.answer(found[which % len(found)], 0)

    def answer_and_lose(self, which: int) -> None:
        """Lose the worker between the end of a task and the fetch: Dask computes the task again."""
        if future := self.some(which):
            self.lab.answer(future)
            future.status = "pending"

    def lose_result(self, which: int) -> None:
        """Lose the worker with a task's result, and hear of it."""
        if future := self.some(which):
            gone = WorkerLoss("tcp://gone:1", frozenset(), frozenset({future.key}))
            self.lab.cluster.losses.append(gone)

    def answer_twice(self, which: int) -> None:
        """Repeat an old callback, or deliver a late one of a lost connection."""
        if self.all_futures:
            future = self.all_futures[which % len(self.all_futures)]
            if future.result is not None:
                future.come_again()

    def lose(self, which: int) -> None:
        if future := self.some(which):
            self.n_lost += 1
            future.become("cancelled")

    def kill(self, which: int) -> None:
        if future := self.some(which):
            self.lab.kill(future)

    def fail(self, which: int) -> None:
        if future := self.some(which):
            self.n_raised += 1
            workers = self.lab.cluster.all_workers
            self.lab.fail(future, OSError(28, "No space left"), workers[which % len(workers)])

    def cut(self, which: int) -> None:
        self.lab.cluster.cut()

    def half_cut(self, which: int) -> None:
        """Lose the connection before Dask has cancelled the futures."""
        self.lab.cluster.connection.is_open = False

    def come_and_go(self, which: int) -> None:
        workers = self.lab.cluster.all_workers
        if which % 2 or len(workers) == 1:
            workers.append(f"tcp://worker-{len(workers)}-{which}")
        else:
            gone = workers.pop(which % len(workers))
            self.lab.cluster.losses.append(WorkerLoss(gone, frozenset()))

    def hang(self, which: int) -> None:
        """Let a simulation run so long that its task leaves the rest to others."""
        if future := self.some(which):
            request = future.request
            units = [group.index for group in request.groups] if request.replicates is None else request.replicates
            released, group = Ranges.of(units[1 + which % 3 :]).intervals, request.groups[0]
            long = RunningStep(group.index, group.param_id, 0, None, "vm", 20.0, request.number, released)
            self.lab.cluster.steps.append(long)
            self.lab.runner._slow._look_at = 0.0

    def stop(self, which: int) -> None:
        if which % 7 == 0:
            self.has_stopped = True
            self.lab.runner.stop(0.0)


ACTIONS: list[Callable[[EventOrder, int], None]] = [
    *(3 * [EventOrder.turn]),
    *(4 * [EventOrder.thread]),
    *(4 * [EventOrder.settle]),
    *(4 * [EventOrder.answer]),
    EventOrder.answer_empty,
    EventOrder.answer_in_part,
    EventOrder.answer_empty,
    EventOrder.answer_and_lose,
    *(2 * [EventOrder.hang]),
    EventOrder.lose_result,
    EventOrder.answer_twice,
    EventOrder.lose,
    EventOrder.kill,
    EventOrder.fail,
    EventOrder.cut,
    EventOrder.half_cut,
    EventOrder.come_and_go,
    EventOrder.stop,
]


@settings(max_examples=max(2 * settings.default.max_examples, 200))  # type: ignore[union-attr]
@given(
    replicates=st.lists(st.integers(1, 4), min_size=1, max_size=7),
    targets=st.booleans(),
    workers=st.integers(1, 3),
    fuse=st.booleans(),
    long=st.booleans(),
    codes=st.lists(st.integers(0, 100 * len(ACTIONS)), max_size=150),
)
def test_every_task_is_settled_once_and_the_job_ends(
    replicates: list[int], targets: bool, workers: int, fuse: bool, long: bool, codes: list[int]
) -> None:
    events = EventOrder(replicates, targets=targets, workers=workers, fuse=fuse, long=long)
    lab = events.lab
    try:
        for code in codes:
            events.apply(code)
        lab.finish()
    except ClusterError:
        assert events.n_raised >= LEAST_RAISES or events.n_lost > 100
        return
    # The lab checks that no group is committed twice, and the plan that no task is settled twice.
    if not events.has_stopped:
        assert sorted(lab.kept.done) == list(range(len(replicates)))
    assert lab.runner._plan.tasks_in_flight == {}
    assert lab.runner._tasks_in_flight._flights == {}
