"""Whatever happens to answers, connections and workers, and in whatever order: every task is settled once, every group
enters one commit, and the job ends.

An example is a list of numbers, each of which is one thing that happens (:data:`ACTIONS`), with what it happens to.
When they are over all goes well, and the job has to end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from runner_lab import RunnerLab, SimFuture

from mops.cluster.worker_losses import UNKNOWN, WorkerLoss
from mops.errors import ClusterError

_names = itertools.count()
LEAST_RAISES = 3
"""Without so many tasks that raise, or a hundred that are lost, no attempt may be given up."""


class Orders:
    """A runner to which things happen."""

    def __init__(self, replicates: list[int], *, targets: bool, workers: int, fuse: bool, long: bool):
        seconds = 30.0 if fuse else 0.0
        url = f"memory://orders-{next(_names)}"
        given = {"checkpoint_seconds": seconds, "batch_size": 5, "task_seconds": 0.1 if long else 1.0}
        self.lab = RunnerLab(url, replicates, targets=targets, slots=2 * workers, workers=workers, **given)
        self.all_futures: list[SimFuture] = []
        self.n_raised = self.n_lost = 0
        self.has_stopped = False

    def happens(self, code: int) -> None:
        """Let one thing happen."""
        action, which = ACTIONS[code % len(ACTIONS)], code // len(ACTIONS)
        action(self, which)
        assert self.lab.runner._plan.in_flight <= 5
        for future in self.lab.cluster.running:
            if future not in self.all_futures:
                self.all_futures.append(future)

    def some(self, which: int) -> SimFuture | None:
        running = self.lab.cluster.running
        return running[which % len(running)] if running else None

    def turn(self, which: int) -> None:
        self.lab.turn()

    def lane(self, which: int) -> None:
        if due := self.lab.lanes.due:
            lane = due[which % len(due)]
            place = which // len(due) % len(self.lab.lanes.waiting[lane]) if lane == "fetch" else 0
            self.lab.lanes.step(lane, place)

    def settle(self, which: int) -> None:
        """Let all that waits happen: what comes next meets a job that is further on."""
        self.lab.settle()

    def answer(self, which: int) -> None:
        if future := self.some(which):
            self.lab.answer(future)

    def answer_in_part(self, which: int) -> None:
        if future := self.some(which):
            self.lab.answer(future, which % 3, postponed=which % 2 == 0)

    def answer_empty(self, which: int) -> None:
        """Have a task come back empty: targets, if any are in flight, which are rarer than all else."""
        running = self.lab.cluster.running
        targets = [future for future in running if future.request is not None and future.request.replicates == ()]
        if found := targets or running:
            self.lab.answer(found[which % len(found)], 0)

    def answer_and_lose(self, which: int) -> None:
        """Have a worker go between a task's end and its fetching: Dask computes it again."""
        if future := self.some(which):
            self.lab.answer(future)
            future.status = "pending"

    def answer_twice(self, which: int) -> None:
        """Have an old answer come once more, or a late one of a connection that is gone."""
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
        """Lose the connection, with Dask's futures as they are: it has not come to cancel them."""
        self.lab.cluster.client.status = "connecting"

    def come_and_go(self, which: int) -> None:
        workers = self.lab.cluster.all_workers
        if which % 2 or len(workers) == 1:
            workers.append(f"tcp://worker-{len(workers)}-{which}")
        else:
            gone = workers.pop(which % len(workers))
            self.lab.cluster.departures.append(WorkerLoss(gone, frozenset(), UNKNOWN))

    def stop(self, which: int) -> None:
        if which % 7 == 0:
            self.has_stopped = True
            self.lab.runner.stop(0.0)


ACTIONS: list[Callable[[Orders, int], None]] = [
    *(3 * [Orders.turn]),
    *(4 * [Orders.lane]),
    *(4 * [Orders.settle]),
    *(4 * [Orders.answer]),
    Orders.answer_empty,
    Orders.answer_in_part,
    Orders.answer_empty,
    Orders.answer_and_lose,
    Orders.answer_twice,
    Orders.lose,
    Orders.kill,
    Orders.fail,
    Orders.cut,
    Orders.half_cut,
    Orders.come_and_go,
    Orders.stop,
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
    requests = Orders(replicates, targets=targets, workers=workers, fuse=fuse, long=long)
    lab = requests.lab
    try:
        for code in codes:
            requests.happens(code)
        lab.finish()
    except ClusterError:
        assert requests.n_raised >= LEAST_RAISES or requests.n_lost > 100
        return
    # That no group came twice, the lab looks at each delivery; that no task did, the plan.
    if not requests.has_stopped:
        assert sorted(lab.kept.done) == list(range(len(replicates)))
    assert lab.runner._plan.tasks_in_flight == {}
    assert lab.runner._tasks_in_flight._flights == {}
