"""Slots: how many simulations run at a time, for each pool and for the worker that all pools share.

A pool of ``n`` slots gives each simulation the n-th part of the worker, of its processors and of its memory. The parts
in use never add up to more than the whole worker. Waiting tasks take their slots in the order in which they came.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from mops.recovery import Death

logger = logging.getLogger(__name__)


class WorkerSlots:
    """What the pools of one worker process share: the slots in use, and the tasks that wait for one."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Guards what follows, and the numbers of every :class:`PoolSlots`."""
        self._waiting: deque[object] = deque()
        self._taken: Counter[PoolSlots] = Counter()
        self._alone = False


class PoolSlots:
    """The slots of one pool, and whether the pool still starts anything. Thread-safe."""

    def __init__(self, n: int, worker: WorkerSlots):
        self.n_at_start = self._most = self.n = n
        """``n``: how many can be in use at a time now."""
        self._worker = worker
        self._stopping = self._ended = False

    @property
    def taken(self) -> int:
        """How many are in use."""
        return self._worker._taken[self]

    @contextmanager
    def use(self, *, alone: bool, only_targets: bool) -> Iterator[bool]:
        """Wait for a slot (``alone``: all of the worker), use it in the body; yield False if the pool stops first."""
        worker, ticket = self._worker, object()

        def fits() -> bool:
            used = sum(Fraction(n, pool.n) for pool, n in worker._taken.items())
            return not used if alone else not worker._alone and used + Fraction(1, self.n) <= 1

        def stopped() -> bool:
            return self.stopped(only_targets=only_targets)

        with worker.changed:
            worker._waiting.append(ticket)
            try:
                worker.changed.wait_for(lambda: stopped() or (worker._waiting[0] is ticket and fits()))
                is_taken = not stopped()
                if is_taken:
                    worker._taken[self] += 1
                    worker._alone |= alone
            finally:
                worker._waiting.remove(ticket)
                worker.changed.notify_all()
        try:
            yield is_taken
        finally:
            if is_taken:
                with worker.changed:
                    worker._taken[self] -= 1
                    if not worker._taken[self]:
                        del worker._taken[self]
                    worker._alone &= not alone
                    worker.changed.notify_all()

    def limit(self, n: int) -> None:
        """Use ``n`` of the slots, at least one."""
        with self._worker.changed:
            self.n = max(min(n, self._most), 1)
            self._worker.changed.notify_all()

    def fewer_after(self, death: Death, job: str) -> None:
        """Use one slot fewer from now on, but at least one, if a process does not end or memory ran out."""
        if not (death.by_kernel or death.is_left):
            return
        with self._worker.changed:
            if self.n == 1:
                return
            self._most = self.n = self.n - 1
        what = f"the kernel killed process {death.pid} because memory ran out"
        if death.is_left:
            what = f"process {death.pid} does not end: it may wait for a file server"
        logger.warning("%s: %s; simulations at a time on this worker: %d", job, what, self.n)

    def stop(self, *, targets_too: bool = False) -> None:
        """Start nothing from now on, except targets (``targets_too``: nothing at all)."""
        self._stopping = True
        if targets_too:
            self._ended = True
        with self._worker.changed:  # for waiting tasks to check their conditions again
            self._worker.changed.notify_all()

    def stopped(self, *, only_targets: bool = False) -> bool:
        """Tell whether the pool starts nothing any longer; ``only_targets``: even no task that runs only targets."""
        # Targets also start during a stop's grace period, because their group would be lost without its losses.
        return self._ended if only_targets else self._stopping
