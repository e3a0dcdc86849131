"""The cluster in the runner's own process: a thread for each slot, which waits for a child process.

It does without Dask: docs/internals/decisions.md has the reasons and the figures.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from mops.cluster.base import Outcomes, SentTask, ShareRequest
from mops.cluster.worker_losses import UNKNOWN, WorkerLoss
from mops.errors import ClusterError
from mops.task import ResultBuffer, RunningStep, Task, TaskRequest, TaskResult
from mops.verdicts import LossCause
from mops.worker.run_task import THIS_MACHINE, buffers_left, leave_pool, long_steps, run_task, stop_pool

logger = logging.getLogger(__name__)


class LocalTask:
    """A :class:`mops.cluster.base.SentTask` that a thread runs."""

    def __init__(self, request: TaskRequest, given: Sequence[ResultBuffer]):
        self.key, self.status = request.key, "pending"
        self.request: TaskRequest | None = request
        self._given = given
        self._outcome: TaskResult | BaseException | None = None
        self._callbacks: list[Callable[[LocalTask], object]] = []
        self._lock = threading.Lock()

    def add_done_callback(self, fn: Callable[[LocalTask], object], /) -> None:
        with self._lock:
            if self.status == "pending":
                self._callbacks.append(fn)
                return
        fn(self)

    def run(self) -> None:
        """Run the task in this thread, unless it is forgotten."""
        if self.request is None:
            return
        try:
            self._outcome, status = run_task(self.request, self._given), "finished"
        except BaseException as error:  # noqa: BLE001 - the runner decides; a thread that ends would be a lost slot
            self._outcome, status = error, "error"
        self._given = ()
        with self._lock:
            # A Future of the standard library keeps its callbacks, which refer to it until the garbage is collected.
            self.status, callbacks, self._callbacks = status, self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                logger.exception("a callback of task %s failed", self.key)

    def take_outcome(self) -> TaskResult | BaseException:  # the task does not keep it
        outcome, self._outcome = self._outcome, None
        assert outcome is not None
        return outcome

    def forget(self) -> None:
        self.request = self._outcome = None
        self._given = ()
        self._callbacks = []


class EmbeddedCluster:
    """A :class:`mops.cluster.base.Cluster` and its only connection; ``run_id`` names the attempt."""

    is_connected = True
    timeout_s = math.inf
    workers = 1
    addresses = frozenset({THIS_MACHINE})
    errors: tuple[type[Exception], ...] = ()

    def __init__(self, run_id: str, slots: int):
        self.slots, self.pool_id = slots, run_id
        # Tasks with input first, as Dask does: they finish groups, whose results need room until then.
        self._waiting: queue.PriorityQueue[tuple[bool, int, LocalTask | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._is_closed = False

    def run_tasks(self) -> None:
        """Run tasks until the cluster is closed: the program of a thread."""
        while (task := self._waiting.get()[-1]) is not None and not self._is_closed:
            task.run()
            task = None  # or its result would stay in memory until the next task comes

    def close(self) -> None:
        """Start no more tasks, and let the threads end after their current ones; do not wait."""
        self._is_closed = True
        with contextlib.suppress(queue.Empty):
            while (task := self._waiting.get_nowait()[-1]) is not None:
                task.forget()
        for _ in range(self.slots):
            self._waiting.put((False, next(self._numbers), None))

    @property
    def connection(self) -> EmbeddedCluster:
        return self

    def submit(self, task: Task, request: TaskRequest, given: object, avoid: frozenset[str]) -> SentTask:
        sent = LocalTask(request, cast("Sequence[ResultBuffer]", given or ()))
        self._waiting.put((not request.has_input, next(self._numbers), sent))
        return sent

    def send_input(self, request: TaskRequest, results: list[ResultBuffer]) -> object:
        return results

    def error_of(self, sent: SentTask, task: Task) -> BaseException:
        return cast("BaseException", cast("LocalTask", sent).take_outcome())

    def release(self, sent: Sequence[SentTask]) -> None:
        for each in sent:
            cast("LocalTask", each).forget()

    def leftovers(
        self, keys: frozenset[str], pool_id: str, answer_s: float, holders: Collection[str] | None = None
    ) -> dict[str, list[str]]:
        lines = buffers_left("the runner", pool_id, keys)
        return {THIS_MACHINE: lines} if lines else {}

    def trim(self) -> None:
        pass  # there are no workers in other processes

    def other_jobs(self, request: ShareRequest) -> list[ShareRequest]:
        return []

    def results(self, sent: Sequence[SentTask], given_up: Callable[[SentTask], bool]) -> Iterator[Outcomes]:
        for each in sent:
            yield [(each, cast("TaskResult", cast("LocalTask", each).take_outcome()))]

    def worker_that_raised(self, key: str) -> str:
        return THIS_MACHINE

    def avoid(self, workers: frozenset[str]) -> None:
        pass  # there is only one worker

    def worker_losses(self) -> list[WorkerLoss]:
        return []  # the worker ends with this process only

    def loss_cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> LossCause:
        return UNKNOWN

    def long_steps(self) -> Sequence[RunningStep]:
        return long_steps(self.pool_id)

    def reconnect(self) -> None:
        pass  # the connection cannot break

    def stop(self, grace_s: float) -> None:
        stop_pool(self.pool_id, grace_s)

    def finish(self) -> None:
        leave_pool(self.pool_id)  # the processes end while the runner writes the job's end


@contextmanager
def start_embedded(run_id: str, slots: int) -> Iterator[EmbeddedCluster]:
    """Start the threads for the body of a ``with`` statement; ClusterError: the system starts no more threads."""
    cluster = EmbeddedCluster(run_id, slots)
    try:
        try:
            for n in range(slots):
                threading.Thread(target=cluster.run_tasks, name=f"mops-slot-{n}", daemon=True).start()
        except RuntimeError as refused:
            what = f"the system does not start a thread for each of {slots} slots ({refused})"
            raise ClusterError(what, hint="set MODELOPS_JOB_SLOTS to fewer simulations at once") from refused
        yield cluster
    finally:
        cluster.close()
