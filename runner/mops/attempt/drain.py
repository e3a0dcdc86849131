"""Checks after each batch that nothing of its groups is left in memory, and gives free memory back.

A leak is never an error of the job. A clean batch is logged at DEBUG, and a leak, or a worker that does not answer, at
WARNING. Buffers are found by the names of their anonymous files in /proc, so on Linux only.

Then the heaps of the runner and of every worker are trimmed, which returns the batch's memory to the system.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Client

from mops.attempt.planning.window import Window
from mops.cluster.base import Cluster
from mops.system.heap import trim_heap
from mops.waiting import polls
from mops.worker.results.result_buffers import held_names
from mops.worker.run_task import child_pids

logger = logging.getLogger(__name__)

LEAK_SECONDS = 5.0
"""How long data of a batch may stay in memory before it counts as a leak."""

ANSWER_SECONDS = 5.0
TRIM_SECONDS = 10.0
_POLL_SECONDS = 0.05
_PART = re.compile(r"mops-part-(\S+)\.")
_SHOWN = 5


class Batch(NamedTuple):
    """As many committed groups as the window has: its number, and the Dask keys of its tasks."""

    number: int
    keys: Sequence[str]


class Batches:
    """Divides committed groups into batches.

    Parameters
    ----------
    window
        Its size is the number of groups in a batch.
    """

    def __init__(self, window: Window):
        self._window = window
        self._groups = self._n = 0
        self._keys: list[str] = []

    def add(self, groups: int, keys: Iterable[str]) -> Batch | None:
        """Count a commit; return the batch that it completes."""
        self._groups += groups
        self._keys += keys
        if self._groups < self._window.size:
            return None
        self._n += self._groups // self._window.size
        self._groups %= self._window.size
        keys, self._keys = self._keys, []
        return Batch(self._n, keys)

    def last(self) -> Batch | None:
        """Return the last batch, which may be short; None without a commit after the previous batch."""
        keys, self._keys = self._keys, []
        return Batch(self._n + 1, keys) if keys else None


class DrainThread:
    """Makes the checks one after the other in a thread, so that the loop does not wait for them."""

    def __init__(self, cluster: Cluster, job: str, window: Window):
        self._cluster, self._job = cluster, job
        self._batches, self._trimmer = Batches(window), Trimmer()
        self._thread = ThreadPoolExecutor(1, "mops-drain")

    def committed(self, groups: int, keys: Iterable[str]) -> bool:
        """Count a commit, and check the batch that it completes; return whether it completes one."""
        batch = self._batches.add(groups, keys)
        if batch is not None:
            self._check(batch)
        return batch is not None

    def finish(self, then: Callable[[], object]) -> None:
        """Check the last batch, and call a function after that. Do not wait."""
        if (batch := self._batches.last()) is not None:
            self._check(batch)
        self._call(then)

    def close(self) -> None:
        """Wait for the checks that are due."""
        self._thread.shutdown()

    def _check(self, batch: Batch) -> None:
        client, pool = self._cluster.client, self._cluster.pool
        self._call(lambda: check(client, self._job, pool, batch))
        self._call(lambda: self._trimmer.trim(client))

    def _call(self, function: Callable[[], object]) -> None:
        self._thread.submit(function).add_done_callback(self._log_error)

    def _log_error(self, called: Future[object]) -> None:
        if (error := called.exception()) is not None:
            logger.warning("%s: a check for leaks failed; the job continues", self._job, exc_info=error)


def check(
    client: Client, job: str, pool: str, batch: Batch, leak_s: float = LEAK_SECONDS, answer_s: float = ANSWER_SECONDS
) -> bool:
    """Wait until nothing is left of a batch; after ``leak_s`` seconds log the rest. Return whether the batch is clean.

    Parameters
    ----------
    pool
        The name of the pools whose child processes are checked.
    answer_s
        How long the scheduler and each worker have to answer, each time.
    """
    keys = frozenset(batch.keys)
    left: dict[str, list[str]] | None = None
    for _ in polls(_POLL_SECONDS, leak_s):
        # A worker that holds nothing of the batch does not get data of the batch later.
        workers = [worker for worker in client.scheduler_info()["workers"] if left is None or worker in left]
        left = dict(client.sync(_look_everywhere, client, workers, pool, keys, answer_s))
        lines = [*itertools.chain(*left.values()), *_buffers("the runner", os.getpid(), keys)]
        if not lines:
            logger.debug("%s: batch %d is drained: nothing is left of its %d tasks", job, batch.number, len(batch.keys))
            return True
    more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    logger.warning(
        "%s: the check for leaks after batch %d found: %s%s", job, batch.number, "; ".join(lines[:_SHOWN]), more
    )
    return False


class Trimmer:
    """Trims heaps from time to time.

    Parameters
    ----------
    every_s
        The least seconds between two trims, because pages that are given back must be cleared before their next use.
    """

    def __init__(self, every_s: float = TRIM_SECONDS):
        self._every_s = every_s
        self._trimmed_at = time.monotonic()

    def trim(self, client: Client) -> bool:
        """Trim the heaps of this process and of each worker, if it is time; return whether it was."""
        if time.monotonic() - self._trimmed_at < self._every_s:
            return False
        self._trimmed_at = time.monotonic()
        trim_heap()
        try:
            client.run(trim_worker, on_error="ignore")
        except (OSError, TimeoutError) as error:  # the connection broke, which the loop will notice
            logger.debug("cannot trim the heaps of workers: %r", error)
        return True


async def trim_worker() -> None:
    """Trim a worker's heap, outside of its event loop. Runs on the worker."""
    await asyncio.to_thread(trim_heap)


async def _look_everywhere(
    client: Client, workers: list[str], pool: str, keys: frozenset[str], timeout_s: float
) -> dict[str, list[str]]:
    """Return what the scheduler and the workers hold for these keys, by holder. Runs in the client's event loop."""
    asked = [client.run_on_scheduler(on_scheduler, keys=keys)]
    asked += [client.run(on_worker, workers=[worker], pool=pool, keys=keys) for worker in workers]
    names = ["the scheduler", *workers]
    answers = await asyncio.gather(*(asyncio.wait_for(one, timeout_s) for one in asked), return_exceptions=True)
    found = {name: _lines(name, answer) for name, answer in zip(names, answers, strict=True)}
    return {name: lines for name, lines in found.items() if lines}


def _lines(name: str, answer: Any) -> list[str]:
    if isinstance(answer, TimeoutError):
        return [f"{name} does not answer"]
    if isinstance(answer, BaseException):
        return [f"{name} cannot be asked ({type(answer).__name__}: {answer})"]
    return answer if isinstance(answer, list) else next(iter(answer.values()), [])


def on_scheduler(dask_scheduler: Any, keys: frozenset[str]) -> list[str]:
    """Describe what the scheduler still holds for these keys. Runs on the scheduler."""
    kept = [dask_scheduler.tasks[key] for key in keys if key in dask_scheduler.tasks]
    return [
        f"key {task.key} on the scheduler ({task.state}, wanted by {len(task.who_wants or ())} clients)"
        for task in kept
    ]


def on_worker(dask_worker: Any, pool: str, keys: frozenset[str]) -> list[str]:
    """Describe what a worker and its child processes still hold for these keys. Runs on the worker."""
    kept = {*dask_worker.data, *dask_worker.state.tasks}
    left = [f"key {key} on worker {dask_worker.address}" for key in keys if key in kept]
    parts = {key for name in held_names() for key in _PART.findall(name)}
    left += [f"a buffer of {key} in worker {dask_worker.address}" for key in sorted(parts & keys)]
    for pid in child_pids(pool):
        left += _buffers(f"child {pid} of worker {dask_worker.address}", pid, keys)
    return left


def _buffers(holder: str, pid: int, keys: frozenset[str]) -> Iterator[str]:
    """Describe the buffers of these keys that a process has mapped or open."""
    process, names = Path("/proc", str(pid)), []
    with contextlib.suppress(OSError):  # the process has ended, or there is no /proc
        names.append(process.joinpath("maps").read_text())
        for fd in process.joinpath("fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile, which says nothing about the others
                names.append(str(fd.readlink()))
    for key in sorted({key for name in names for key in _PART.findall(name)} & keys):
        yield f"a buffer of {key} in {holder}"
