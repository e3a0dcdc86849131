"""Checks, batch by batch, that nothing of committed groups is left in memory; gives free memory back.

Never an error for the job: what is clean is logged at DEBUG, a leak or a worker that does not answer at WARNING,
with names. Buffers are found by the names of their anonymous files in /proc, so on Linux only.

Then heaps are trimmed: what a batch has freed in between is given back to the system, on every worker and here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from distributed import Client

from mops.attempt.planning.window import Window
from mops.system.heap import trim_heap
from mops.waiting import polls
from mops.worker.result_buffers import held_names
from mops.worker.run_task import child_pids

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
ANSWER_SECONDS = 5.0
TRIM_SECONDS = 10.0
_LOOK_AGAIN_SECONDS = 0.05
_PART = re.compile(r"mops-part-(\S+)\.")
_SHOWN = 5


def check(
    client: Client,
    job: str,
    pool: str,
    batch: int,
    keys: Sequence[str],
    patience_s: float = PATIENCE_SECONDS,
    answer_s: float = ANSWER_SECONDS,
) -> bool:
    """Look until nothing is left of ``keys``, for ``patience_s`` seconds; log what is; return whether it is clean.

    Parameters
    ----------
    pool
        Names the pools whose children are looked at.
    batch
        The batch's number, for the log.
    keys
        Dask keys of tasks whose groups are all committed.
    answer_s
        Seconds in which the scheduler and each worker are to answer, each time.
    """
    for _ in polls(_LOOK_AGAIN_SECONDS, patience_s):
        left = _look(client, pool, frozenset(keys), answer_s)
        if not left:
            logger.debug("%s: batch %d is drained: nothing is left of its %d tasks", job, batch, len(keys))
            return True
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    logger.warning("%s: after batch %d something is left: %s%s", job, batch, "; ".join(left[:_SHOWN]), more)
    return False


class Trimmer:
    """Gives back what is free, from time to time.

    Parameters
    ----------
    every_s
        Not more often: pages that are given back have to be cleared when they are wanted again.
    """

    def __init__(self, every_s: float = TRIM_SECONDS):
        self._every_s = every_s
        self._trimmed = time.monotonic()

    def trim(self, client: Client) -> bool:
        """Trim this process's heap and each worker's, if it is time; return whether it was."""
        if time.monotonic() - self._trimmed < self._every_s:
            return False
        self._trimmed = time.monotonic()
        trim_heap()
        try:
            client.run(trim_worker, on_error="ignore")
        except (OSError, TimeoutError) as gone:  # the connection is lost; whoever finds that out says so
            logger.debug("workers are not trimmed: %r", gone)
        return True


async def trim_worker() -> None:
    """Trim a worker's heap, off its event loop. Runs there."""
    await asyncio.to_thread(trim_heap)


def _look(client: Client, pool: str, keys: frozenset[str], timeout_s: float) -> list[str]:
    workers = list(client.scheduler_info()["workers"])
    left: list[str] = client.sync(_look_everywhere, client, workers, pool, keys, timeout_s)
    return left + list(_buffers("the runner", os.getpid(), keys))


async def _look_everywhere(
    client: Client, workers: list[str], pool: str, keys: frozenset[str], timeout_s: float
) -> list[str]:
    asked = [client.run_on_scheduler(on_scheduler, keys=keys)]
    asked += [client.run(on_worker, workers=[worker], pool=pool, keys=keys) for worker in workers]
    names = ["the scheduler", *workers]
    answers = await asyncio.gather(*(asyncio.wait_for(one, timeout_s) for one in asked), return_exceptions=True)
    return [line for name, answer in zip(names, answers, strict=True) for line in _lines(name, answer)]


def _lines(name: str, answer: Any) -> list[str]:
    if isinstance(answer, TimeoutError):
        return [f"{name} does not answer"]
    if isinstance(answer, BaseException):
        return [f"{name} cannot be asked ({type(answer).__name__}: {answer})"]
    return answer if isinstance(answer, list) else next(iter(answer.values()), [])


def on_scheduler(dask_scheduler: Any, keys: frozenset[str]) -> list[str]:
    """Return what the scheduler still knows of the keys. Runs there."""
    kept = [dask_scheduler.tasks[key] for key in keys if key in dask_scheduler.tasks]
    return [
        f"key {task.key} on the scheduler ({task.state}, wanted by {len(task.who_wants or ())} clients)"
        for task in kept
    ]


def on_worker(dask_worker: Any, pool: str, keys: frozenset[str]) -> list[str]:
    """Return what a worker and its children still hold of the keys. Runs there."""
    kept = {*dask_worker.data, *dask_worker.state.tasks}
    left = [f"key {key} on worker {dask_worker.address}" for key in keys if key in kept]
    parts = {key for name in held_names() for key in _PART.findall(name)}
    left += [f"a buffer of {key} in worker {dask_worker.address}" for key in sorted(parts & keys)]
    for pid in child_pids(pool):
        left += _buffers(f"child {pid} of worker {dask_worker.address}", pid, keys)
    return left


def _buffers(holder: str, pid: int, keys: frozenset[str]) -> Iterator[str]:
    """Yield the parts of these keys that a process maps or has open."""
    process = Path("/proc", str(pid))
    try:
        names = [process.joinpath("maps").read_text(), *(str(fd.readlink()) for fd in process.joinpath("fd").iterdir())]
    except OSError:  # it ended while we looked, or there is no /proc
        return
    for key in sorted({key for name in names for key in _PART.findall(name)} & keys):
        yield f"a buffer of {key} in {holder}"


class Batches:
    """Counts committed groups off in batches, for the drain check.

    Parameters
    ----------
    window
        As many groups as it has are a batch.
    """

    def __init__(self, window: Window):
        self._window = window
        self._groups = self._n = 0
        self._keys: list[str] = []

    def add(self, groups: int, keys: Iterable[str]) -> tuple[int, list[str]] | None:
        """Take a commit; return the batch that it completes and the keys committed since the one before."""
        self._groups += groups
        self._keys += keys
        if self._groups < self._window.size:
            return None
        self._n += self._groups // self._window.size
        self._groups %= self._window.size
        due, self._keys = self._keys, []
        return self._n, due

    def rest(self) -> tuple[int, list[str]] | None:
        """Return the last batch, which may be short; None if it was returned already."""
        due, self._keys = self._keys, []
        return (self._n + 1, due) if due else None
