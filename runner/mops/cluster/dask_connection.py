"""A connection to a Dask scheduler: sends tasks, and asks scheduler and workers about them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Any, cast

from dask.base import annotate
from distributed import CancelledError, Client, Future, KilledWorker
from distributed.client import ClosedClientError

from mops.cluster.base import SentTask, WorkersDied
from mops.cluster.connect import FETCH_SECONDS
from mops.cluster.leftovers import on_scheduler, on_worker
from mops.cluster.scheduler_plugin import AVOID, SECONDS, SUSPECT
from mops.system.heap import trim_heap
from mops.task import ResultBuffer, Task, TaskRequest
from mops.worker.run_task import run_task

logger = logging.getLogger(__name__)

CONNECTION_ERRORS = (ClosedClientError, CancelledError, OSError, TimeoutError, ValueError)
"""Dask's errors when the connection to a scheduler or to a worker breaks."""


class DaskConnection:
    """As :class:`mops.cluster.base.Connection`, by a client of Dask."""

    errors = CONNECTION_ERRORS

    def __init__(self, client: Client):
        self._client = client

    def submit(self, task: Task, request: TaskRequest, given: object, avoid: frozenset[str]) -> SentTask:
        """As :meth:`mops.cluster.base.Connection.submit`."""
        with annotate(**annotations_of(task, avoid)):
            arguments = () if given is None else (given,)
            future = self._client.submit(run_task, request, *arguments, key=request.key, pure=False)
        return cast("SentTask", future)

    def send_input(self, request: TaskRequest, results: list[ResultBuffer]) -> object:
        """As :meth:`mops.cluster.base.Connection.send_input`.

        With a timeout, because a silent worker would hold up all other targets.
        """
        try:
            return self._client.sync(self._scatter, request.input_key, results)
        except (KeyError, RuntimeError) as left:  # of the scheduler, if the worker has just left
            raise ConnectionError(repr(left)) from left

    async def _scatter(self, key: str, results: list[ResultBuffer]) -> Future[Any]:
        scattering = self._client.scatter({key: results}, hash=False, asynchronous=True)
        futures = await asyncio.wait_for(scattering, FETCH_SECONDS)
        return cast("Future[Any]", futures[key])

    def error_of(self, sent: SentTask, task: Task) -> BaseException:
        """As :meth:`mops.cluster.base.Connection.error_of`."""
        future = cast("Future[Any]", sent)
        # Not result(), because the traceback of a raised error keeps every future alive.
        error = future.exception()
        if future.status != "error" or error is None:  # the connection broke meanwhile
            raise CancelledError(future.key)
        if isinstance(error, KilledWorker):
            # run_task notes in the scheduler's metadata that a task runs alone.
            n_running = len(self._client.get_metadata([future.key], {})) if task.alone else 0
            return WorkersDied(error.last_worker.address, n_running)
        return cast("BaseException", error)

    def release(self, sent: Sequence[SentTask]) -> None:
        """As :meth:`mops.cluster.base.Connection.release`.

        Dask sends a release after two turns of the client's event loop, and a task after one. Without a turn between
        them the next tasks would reach the scheduler first, which would then hold more than the window.
        """
        try:
            for future in sent:
                cast("Future[Any]", future).release()
            self._client.sync(asyncio.sleep, 0)
        except Exception as error:
            # A closed or reconnecting client has nothing to release.
            if self._client.status == "running" and not isinstance(error, CONNECTION_ERRORS):
                raise

    def leftovers(
        self, keys: frozenset[str], pool: str, answer_s: float, holders: Collection[str] | None = None
    ) -> dict[str, list[str]]:
        """As :meth:`mops.cluster.base.Connection.leftovers`."""
        workers = [each for each in self._client.scheduler_info()["workers"] if holders is None or each in holders]
        return cast("dict[str, list[str]]", self._client.sync(self._leftovers, workers, pool, keys, answer_s))

    async def _leftovers(
        self, workers: list[str], pool: str, keys: frozenset[str], answer_s: float
    ) -> dict[str, list[str]]:
        asked = [self._client.run_on_scheduler(on_scheduler, keys=keys)]
        asked += [self._client.run(on_worker, workers=[worker], pool=pool, keys=keys) for worker in workers]
        names = ["the scheduler", *workers]
        answers = await asyncio.gather(*(asyncio.wait_for(one, answer_s) for one in asked), return_exceptions=True)
        found = {name: _lines(name, answer) for name, answer in zip(names, answers, strict=True)}
        return {name: lines for name, lines in found.items() if lines}

    def trim(self) -> None:
        """As :meth:`mops.cluster.base.Connection.trim`."""
        try:
            self._client.run(_trim_worker, on_error="ignore")
        except (OSError, TimeoutError) as error:  # the connection broke, which the loop will notice
            logger.debug("cannot trim the heaps of workers: %r", error)


def annotations_of(task: Task, avoid: frozenset[str]) -> dict[str, Any]:
    """Return what tells the plugin on the scheduler about a task."""
    annotations: dict[str, Any] = {SECONDS: task.seconds}
    if task.suspect:
        annotations[SUSPECT] = True
    if avoid:
        annotations[AVOID] = sorted(avoid)
    return annotations


async def _trim_worker() -> None:
    """Trim a worker's heap, outside of its event loop. Runs on the worker."""
    await asyncio.to_thread(trim_heap)


def _lines(name: str, answer: Any) -> list[str]:
    if isinstance(answer, TimeoutError):
        return [f"{name} does not answer"]
    if isinstance(answer, BaseException):
        return [f"{name} cannot be asked ({type(answer).__name__}: {answer})"]
    return answer if isinstance(answer, list) else next(iter(answer.values()), [])
