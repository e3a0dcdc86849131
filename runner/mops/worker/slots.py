"""How many simulations run at once on a worker: a number that may change, and one that has the worker for itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Slots:
    """Places for simulations. Thread-safe.

    Parameters
    ----------
    n
        How many there are (:attr:`there`), whatever may be taken now.
    """

    def __init__(self, n: int):
        self.there = self._most = self._n = n
        self._taken = 0
        self._alone = False
        self._changed = threading.Condition()

    @property
    def n(self) -> int:
        """How many may be taken at once now."""
        return self._n

    def fewer(self) -> bool:
        """Have one place less for good, but at least one; return whether there is one less."""
        with self._changed:
            if self._n == 1:
                return False
            self._most = self._n = self._n - 1
            return True

    def limit(self, n: int) -> None:
        """Use ``n`` of the places that there are, at least one."""
        with self._changed:
            self._n = max(min(n, self._most), 1)
            self._changed.notify_all()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Take a place, when there is one."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and self._taken < self._n)
            self._taken += 1
        try:
            yield
        finally:
            with self._changed:
                self._taken -= 1
                self._changed.notify_all()

    @contextmanager
    def all(self) -> Iterator[None]:
        """Take every place, when nobody has one; no further one is given out meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: not self._taken)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
