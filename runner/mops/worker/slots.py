"""Slots: how many simulations run at a time, for each pool and for the worker that all pools share.

A pool of ``n`` slots gives each simulation the n-th part of the worker, of its processors and of its memory. The parts
in use never add up to more than the whole worker. Waiting tasks take their slots in the order in which they came.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction

from mops.worker.deaths import Death

logger = logging.getLogger(__name__)


class WorkerSlots:
    """One worker process, shared by its pools. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Guards what follows, and the numbers of every :class:`PoolSlots`."""
        self._waiting: deque[object] = deque()
        self._taken: Counter[PoolSlots] = Counter()
        self._alone = False

    def taken_by(self, slots: PoolSlots) -> int:
        """Return how many slots of a pool are in use."""
        return self._taken[slots]

    @contextmanager
    def taken(self, slots: PoolSlots, stopped: Callable[[], bool], *, alone: bool) -> Iterator[bool]:
        """Wait for a part of the worker (``alone``: all of it) and use it in the body; yield whether there is one.

        Parameters
        ----------
        stopped
            Whether to stop waiting; :meth:`wake` makes waiting tasks ask again.
        """
        with self.changed:
            is_taken = self._wait(slots, stopped, alone=alone)
        try:
            yield is_taken
        finally:
            if is_taken:
                with self.changed:
                    self._taken[slots] -= 1
                    if not self._taken[slots]:
                        del self._taken[slots]
                    self._alone &= not alone
                    self.changed.notify_all()

    def _wait(self, slots: PoolSlots, stopped: Callable[[], bool], *, alone: bool) -> bool:
        ticket = object()
        self._waiting.append(ticket)

        def fits() -> bool:
            used = sum(Fraction(n, pool.n) for pool, n in self._taken.items())
            return not used if alone else not self._alone and used + Fraction(1, slots.n) <= 1

        try:
            self.changed.wait_for(lambda: stopped() or (self._waiting[0] is ticket and fits()))
            if stopped():
                return False
            self._taken[slots] += 1
            self._alone |= alone
            return True
        finally:
            self._waiting.remove(ticket)
            self.changed.notify_all()

    def wake(self) -> None:
        """Make waiting tasks check their conditions again."""
        with self.changed:
            self.changed.notify_all()


class PoolSlots:
    """The slots of one pool, and whether the pool still starts anything. Thread-safe.

    Parameters
    ----------
    n
        Slots at the start.
    worker
        The worker; None: no other pool uses it.
    """

    def __init__(self, n: int, worker: WorkerSlots | None = None):
        self.n_at_start = self._most = self._n = n
        self._worker = worker or WorkerSlots()
        self._stopping = self._ended = False

    @property
    def n(self) -> int:
        """How many can be in use at a time now."""
        return self._n

    @property
    def taken(self) -> int:
        """How many are in use."""
        return self._worker.taken_by(self)

    def fewer_after(self, death: Death, job: str) -> None:
        """Use one slot fewer from now on, but at least one, if a process does not end or memory ran out."""
        if not (death.by_kernel or death.is_left):
            return
        with self._worker.changed:
            if self._n == 1:
                return
            self._most = self._n = self._n - 1
        what = f"the kernel killed process {death.pid} because memory ran out"
        if death.is_left:
            what = f"process {death.pid} does not end: it may wait for a file server"
        logger.warning("%s: %s; simulations at a time on this worker: %d", job, what, self._n)

    def limit(self, n: int) -> None:
        """Use ``n`` of the slots, at least one."""
        with self._worker.changed:
            self._n = max(min(n, self._most), 1)
            self._worker.changed.notify_all()

    def use(self, *, alone: bool, only_targets: bool) -> AbstractContextManager[bool]:
        """Wait for a slot (``alone``: all of the worker), use it in the body; yield False if the pool stops first."""
        return self._worker.taken(self, lambda: self.stopped(only_targets=only_targets), alone=alone)

    def stop(self) -> None:
        """Start nothing from now on, except targets of groups whose simulations are done."""
        self._stopping = True
        self._worker.wake()

    def end(self) -> None:
        """Start nothing at all from now on."""
        self._stopping = self._ended = True
        self._worker.wake()

    def stopped(self, *, only_targets: bool = False) -> bool:
        """Tell whether the pool starts nothing any longer.

        Parameters
        ----------
        only_targets
            Whether the task runs targets only. It then also starts during a stop's grace period, because its group
            would be lost without its losses.
        """
        return self._ended if only_targets else self._stopping
