"""A connection to a Dask scheduler: sends tasks, and asks scheduler and workers about them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Any, cast

from dask.base import annotate
from distributed import CancelledError, Future, KilledWorker

from mops.cluster.base import SentTask, WorkersDied
from mops.cluster.dask_calls import CONNECTION_ERRORS, DaskCalls
from mops.cluster.scheduler_plugin import AVOID, SECONDS, SUSPECT
from mops.errors import NoAnswer
from mops.system.process_memory import trim_heap
from mops.task import ResultBuffer, Task, TaskRequest
from mops.worker.run_task import buffers_left, run_task

logger = logging.getLogger(__name__)


class DaskConnection:
    """A :class:`mops.cluster.base.Connection` by the calls of a client of Dask."""

    errors = CONNECTION_ERRORS

    def __init__(self, calls: DaskCalls):
        self._calls, self._client = calls, calls.client

    def submit(self, task: Task, request: TaskRequest, given: object, avoid: frozenset[str]) -> SentTask:
        with annotate(**annotations_of(task, avoid)):
            arguments = () if given is None else (given,)
            future = self._client.submit(run_task, request, *arguments, key=request.key, pure=False)
        return cast("SentTask", future)

    def send_input(self, request: TaskRequest, results: list[ResultBuffer]) -> object:
        try:
            return self._calls.scatter(request.input_key, results)
        except (KeyError, RuntimeError) as left:  # of the scheduler, if the worker has just left
            raise ConnectionError(repr(left)) from left

    def error_of(self, sent: SentTask, task: Task) -> BaseException:
        future = cast("Future[Any]", sent)
        error = self._calls.error_of(future)
        if future.status != "error" or error is None:  # the connection broke meanwhile
            raise CancelledError(future.key)
        if isinstance(error, KilledWorker):
            # run_task notes in the scheduler's metadata that a task runs alone.
            n_running = len(self._calls.metadata([future.key])) if task.alone else 0
            return WorkersDied(error.last_worker.address, n_running)
        return error

    def release(self, sent: Sequence[SentTask]) -> None:
        # Dask sends a release after two turns of the client's event loop, and a task after one. Without a turn between
        # them the next tasks would reach the scheduler first, which would then hold more than the window.
        try:
            for future in sent:
                cast("Future[Any]", future).release()
            self._calls.take_turn()
        except Exception as error:
            # A closed or reconnecting client has nothing to release.
            if self._client.status == "running" and not isinstance(error, CONNECTION_ERRORS):
                raise

    def leftovers(
        self, keys: frozenset[str], pool: str, answer_s: float, holders: Collection[str] | None = None
    ) -> dict[str, list[str]]:
        try:
            workers = [worker for worker in self._calls.threads(answer_s) if holders is None or worker in holders]
            found = {"the scheduler": self._calls.on_scheduler(_left_on_scheduler, answer_s, keys=keys)}
            answers = self._calls.on_workers(_left_on_worker, only=workers, within_s=answer_s, pool=pool, keys=keys)
        except NoAnswer:
            return {"the scheduler": ["the scheduler does not answer"]}
        found |= {worker: _lines(worker, answer) for worker, answer in answers.items()}
        return {name: lines for name, lines in found.items() if lines}

    def trim(self) -> None:
        try:
            self._calls.on_workers(_trim_worker)
        except CONNECTION_ERRORS as error:  # the loop will notice
            logger.debug("cannot trim the heaps of workers: %r", error)


def annotations_of(task: Task, avoid: frozenset[str]) -> dict[str, Any]:
    """Return what tells the plugin on the scheduler about a task."""
    annotations: dict[str, Any] = {SECONDS: task.seconds}
    if task.suspect:
        annotations[SUSPECT] = True
    if avoid:
        annotations[AVOID] = sorted(avoid)
    return annotations


def _left_on_scheduler(dask_scheduler: Any, keys: frozenset[str]) -> list[str]:
    """Describe what the scheduler still holds for these keys. Runs there."""
    tasks = [dask_scheduler.tasks[key] for key in keys if key in dask_scheduler.tasks]
    return [
        f"key {task.key} on the scheduler ({task.state}, wanted by {len(task.who_wants or ())} clients)"
        for task in tasks
    ]


def _left_on_worker(dask_worker: Any, pool: str, keys: frozenset[str]) -> list[str]:
    """Describe what a worker and its child processes still hold for these keys. Runs there."""
    worker = f"worker {dask_worker.address}"
    kept = {*dask_worker.data, *dask_worker.state.tasks}
    return [f"key {key} on {worker}" for key in keys if key in kept] + buffers_left(worker, pool, keys)


async def _trim_worker() -> None:
    """Trim a worker's heap, outside of its event loop. Runs on the worker."""
    await asyncio.to_thread(trim_heap)


def _lines(worker: str, answer: list[str] | Exception) -> list[str]:
    if isinstance(answer, NoAnswer):
        return [f"{worker} does not answer"]
    if isinstance(answer, Exception):
        return [f"{worker} cannot be asked ({type(answer).__name__}: {answer})"]
    return answer
