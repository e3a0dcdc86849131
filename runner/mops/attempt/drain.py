"""Checks after each batch that nothing of its groups is left in memory, and trims the heaps of runner and workers.

A leak is never an error of the job. A clean batch is logged at DEBUG, and a leak, or a worker that does not answer, at
WARNING. :mod:`mops.cluster.external` looks for keys and buffers.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from mops.attempt.sizing import Window
from mops.cluster.base import Cluster, Connection
from mops.system.process_memory import trim_heap
from mops.waiting import polls
from mops.worker.results import buffers_in

logger = logging.getLogger(__name__)

LEAK_SECONDS = 5.0  # how long data of a batch may stay in memory before it counts as a leak
LAST_SECONDS = 4.0  # how long the end of the attempt waits for the checks that are due
ANSWER_SECONDS = 3.0
TRIM_SECONDS = 10.0
_POLL_SECONDS = 0.05
_SHOWN = 5


class Batch(NamedTuple):
    """As many committed groups as the window has, or several times as many, if a commit completes several batches."""

    number: int  # of the last of them
    keys: Sequence[str]
    n: int = 1


class Batches:
    """Divides committed groups into batches of the window's size."""

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
        n, self._groups = divmod(self._groups, self._window.size)
        self._n += n
        keys, self._keys = self._keys, []
        return Batch(self._n, keys, n)

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
        self._due: set[Future[object]] = set()
        self._closing = threading.Event()

    def committed(self, groups: int, keys: Iterable[str]) -> int:
        """Count a commit, and check the batches that it completes; return how many it completes."""
        batch = self._batches.add(groups, keys)
        if batch is None:
            return 0
        self._check(batch)
        return batch.n

    def finish(self) -> None:
        """Check the last batch, and finish the cluster after that. Do not wait."""
        if (batch := self._batches.last()) is not None:
            self._check(batch)
        self._call(self._cluster.finish)

    def close(self) -> None:
        """Wait for the checks that are due, but not for a cluster that does not answer; finish the cluster."""
        wait(self._due.copy(), LAST_SECONDS)
        self._closing.set()
        self._cluster.finish()
        self._thread.shutdown(cancel_futures=True)

    def _check(self, batch: Batch) -> None:
        connection, pool, stopped = self._cluster.connection, self._cluster.pool_id, self._closing.is_set
        self._call(lambda: check(connection, self._job, pool, batch, stopped=stopped))
        self._call(lambda: self._trimmer.trim(connection))

    def _call(self, function: Callable[[], object]) -> None:
        call = self._thread.submit(function)
        self._due.add(call)
        call.add_done_callback(self._called)

    def _called(self, call: Future[object]) -> None:
        self._due.discard(call)
        if not call.cancelled() and (error := call.exception()) is not None:
            logger.warning("%s: a check for leaks failed; the job continues", self._job, exc_info=error)


def check(
    connection: Connection,
    job: str,
    pool: str,
    batch: Batch,
    leak_s: float = LEAK_SECONDS,
    answer_s: float = ANSWER_SECONDS,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until nothing is left of a batch; after ``leak_s`` seconds log the rest. Return whether it is clean."""
    keys = frozenset(batch.keys)
    left: dict[str, list[str]] | None = None
    for _ in polls(_POLL_SECONDS, leak_s, stopped=stopped):
        # A worker that holds nothing of the batch does not get data of the batch later.
        left = connection.leftovers(keys, pool, answer_s, left)
        found = itertools.chain(*left.values(), buffers_in("the runner", os.getpid(), keys))
        lines = list(dict.fromkeys(found))  # a large buffer is counted, and mapped too
        if not lines:
            logger.debug("%s: batch %d is drained: nothing is left of its %d tasks", job, batch.number, len(batch.keys))
            return True
    more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    logger.warning(
        "%s: the check for leaks after batch %d found: %s%s", job, batch.number, "; ".join(lines[:_SHOWN]), more
    )
    return False


class Trimmer:
    """Trims heaps, but not often: the kernel clears pages that were given back before their next use."""

    def __init__(self, every_s: float = TRIM_SECONDS):
        self._every_s = every_s
        self._trimmed_at = time.monotonic()

    def trim(self, connection: Connection) -> bool:
        """Trim the heaps of this process and of each worker, if it is time; return whether it was."""
        if time.monotonic() - self._trimmed_at < self._every_s:
            return False
        self._trimmed_at = time.monotonic()
        trim_heap()
        connection.trim()
        return True
