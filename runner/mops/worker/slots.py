"""How many simulations run at once on a worker: a number for each pool, and one worker that all of them share.

A pool of ``n`` places gives a simulation the n-th part of the worker, of its processors as of its memory. The parts
that are taken never make more than the whole, whoever takes them; who waits longest is next.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction


class WorkerSlots:
    """One worker process, shared by its pools. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._taken: Counter[PoolSlots] = Counter()
        self._alone = False

    def taken_by(self, slots: PoolSlots) -> int:
        """Return how many places of a pool are taken."""
        return self._taken[slots]

    @contextmanager
    def taken(self, slots: PoolSlots, over: Callable[[], bool], *, alone: bool) -> Iterator[bool]:
        """Take a part of the worker (or all of it) when there is room; yield whether it is had.

        Parameters
        ----------
        over
            Tells that it is not wanted any more; :meth:`wake` has it asked again.
        """
        with self.changed:
            had = self._wait(slots, over, alone=alone)
        try:
            yield had
        finally:
            if had:
                self._leave(slots, alone=alone)

    def _wait(self, slots: PoolSlots, over: Callable[[], bool], *, alone: bool) -> bool:
        ticket = object()
        self._waiting.append(ticket)
        try:
            self.changed.wait_for(lambda: over() or (self._waiting[0] is ticket and self._fits(slots, alone=alone)))
            if over():
                return False
            self._taken[slots] += 1
            self._alone |= alone
            return True
        finally:
            self._waiting.remove(ticket)
            self.changed.notify_all()

    def _fits(self, slots: PoolSlots, *, alone: bool) -> bool:
        used = sum(Fraction(n, pool.n) for pool, n in self._taken.items())
        return not used if alone else not self._alone and used + Fraction(1, slots.n) <= 1

    def _leave(self, slots: PoolSlots, *, alone: bool) -> None:
        with self.changed:
            self._taken[slots] -= 1
            if not self._taken[slots]:
                del self._taken[slots]
            self._alone &= not alone
            self.changed.notify_all()

    def wake(self) -> None:
        """Let whoever waits look again."""
        with self.changed:
            self.changed.notify_all()


class PoolSlots:
    """The places of one pool. Thread-safe.

    Parameters
    ----------
    n
        How many there are (:attr:`there`), whatever may be taken now.
    places
        The worker; None: nobody else uses it.
    """

    def __init__(self, n: int, places: WorkerSlots | None = None):
        self.there = self._most = self._n = n
        self._places = places or WorkerSlots()

    @property
    def n(self) -> int:
        """How many may be taken at once now."""
        return self._n

    @property
    def taken(self) -> int:
        """How many are taken."""
        return self._places.taken_by(self)

    def fewer(self) -> bool:
        """Have one place less for good, but at least one; return whether there is one less."""
        with self._places.changed:
            if self._n == 1:
                return False
            self._most = self._n = self._n - 1
            return True

    def limit(self, n: int) -> None:
        """Use ``n`` of the places that there are, at least one."""
        with self._places.changed:
            self._n = max(min(n, self._most), 1)
            self._places.changed.notify_all()

    @contextmanager
    def one(self, over: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Take a place, when there is one; yield False where it is ``over`` before."""
        with self._places.taken(self, over, alone=False) as had:
            yield had

    @contextmanager
    def all(self, over: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Take the whole worker, when nobody has a part of it; no further one is given out meanwhile."""
        with self._places.taken(self, over, alone=True) as had:
            yield had

    def wake(self) -> None:
        """Have those who wait look whether it is over."""
        self._places.wake()
