"""All child processes of a worker, of whichever pool: who has them, which idle, and which make room for another.

It keeps the books; starting, driving and ending a child are :mod:`mops.worker.pool`'s. A child of a pool of ``n``
places counts as the n-th part of the worker, as its simulation does (:mod:`mops.worker.slots`), so that there are never
more children than the worker has slots. The child that has idled longest makes room, of whichever pool it is.
"""

from __future__ import annotations

import threading
from collections import Counter
from fractions import Fraction

from mops.worker.child_process import ChildProcess
from mops.worker.slots import PoolSlots, WorkerSlots

TEMPLATES = 2
"""A worker keeps as many templates as it has slots, but at least so many: two jobs on one slot fork both."""


class ChildRegistry:
    """The children of one worker process. Thread-safe; a pool is named by its :class:`PoolSlots`."""

    def __init__(self) -> None:
        self.places = WorkerSlots()
        self._changed = threading.Condition()
        self._of: dict[PoolSlots, set[ChildProcess]] = {}
        self._starting: Counter[PoolSlots] = Counter()
        self._idle: dict[ChildProcess, PoolSlots] = {}  # the longest idle first
        self._templates: dict[PoolSlots, ChildProcess] = {}  # the longest unused first

    def join(self, pool: PoolSlots) -> None:
        """Note that there is a pool."""
        with self._changed:
            self._of[pool] = set()

    def leave(self, pool: PoolSlots) -> list[ChildProcess]:
        """Note that a pool is no more; return the children that it still has, to be closed."""
        with self._changed:
            return list(self._of.pop(pool, ()))

    def await_end(self, pool: PoolSlots, within_s: float) -> None:
        """Wait until a pool has no children."""
        with self._changed:
            self._changed.wait_for(lambda: not self._of.get(pool), timeout=within_s)

    @property
    def n_pools(self) -> int:
        """How many pools there are, at least one."""
        return max(len(self._of), 1)

    def of(self, pool: PoolSlots) -> list[ChildProcess]:
        """Return a pool's children."""
        with self._changed:
            return list(self._of.get(pool, ()))

    @property
    def any_lent(self) -> bool:
        """Whether a child of any pool is at work."""
        with self._changed:
            return sum(map(len, self._of.values())) > len(self._idle)

    def busy_and_idle(self, pool: PoolSlots) -> tuple[int, int]:
        """Return how many of a pool's children are at work, and how many idle."""
        with self._changed:
            idle = sum(its is pool for its in self._idle.values())
            return len(self._of.get(pool, ())) - idle, idle

    def pids(self) -> list[int]:
        """Return the processes of all children and templates."""
        with self._changed:
            living = [child for children in self._of.values() for child in children]
            return [child.pid for child in (*living, *self._templates.values())]

    def lend(self, pool: PoolSlots) -> ChildProcess | None:
        """Return the pool's child that has idled least, which is at work from now on; None: none idles."""
        with self._changed:
            found = next((child for child, its in reversed(self._idle.items()) if its is pool), None)
            if found is not None:
                del self._idle[found]
            return found

    def reserve(self, pool: PoolSlots) -> list[ChildProcess]:
        """Count a child that a pool is about to start; return those that are to be closed before, to make room."""
        with self._changed:
            self._starting[pool] += 1
            victims: list[ChildProcess] = []
            while self._used() > 1 and self._idle:
                victims += self._take([next(iter(self._idle))])
            return victims

    def started(self, pool: PoolSlots, child: ChildProcess | None) -> None:
        """Note what became of a reservation: a child that is at work; None: it did not start."""
        with self._changed:
            self._starting[pool] -= 1
            if child is not None:
                self._of.setdefault(pool, set()).add(child)

    def rest(self, pool: PoolSlots, child: ChildProcess) -> bool:
        """Let a child idle if there is room for it; return whether there is."""
        with self._changed:
            if self._used() > 1:
                return False
            self._idle[child] = pool
            self._changed.notify_all()
            return True

    def remove(self, pool: PoolSlots, child: ChildProcess) -> None:
        """Forget a child that has ended."""
        with self._changed:
            self._of.get(pool, set()).discard(child)
            self._changed.notify_all()

    def take_idle(self, pool: PoolSlots | None = None, above: int = 0) -> list[ChildProcess]:
        """Take out children that idle, to be closed.

        Parameters
        ----------
        pool
            Whose; None: anybody's.
        above
            Only while the pool has more.
        """
        with self._changed:
            idle = [child for child, its in self._idle.items() if pool in (None, its)]
            if pool is not None:
                idle = idle[: max(len(self._of.get(pool, ())) - above, 0)]
            return self._take(idle)

    def _take(self, idle: list[ChildProcess]) -> list[ChildProcess]:
        for child in idle:
            self._of[self._idle.pop(child)].discard(child)
        return idle

    def _used(self) -> Fraction:
        living = sum((Fraction(len(children), pool.n) for pool, children in self._of.items()), Fraction())
        return living + sum(Fraction(n, pool.n) for pool, n in self._starting.items())

    def await_change(self, within_s: float) -> None:
        """Wait until a child rests or is gone."""
        with self._changed:
            self._changed.wait(within_s)

    def template(self, pool: PoolSlots) -> ChildProcess | None:
        """Return a pool's template, which counts as used now; None: it has none."""
        with self._changed:
            found = self._templates.pop(pool, None)
            if found is not None:
                self._templates[pool] = found
            return found

    def set_template(self, pool: PoolSlots, template: ChildProcess) -> list[ChildProcess]:
        """Keep a pool's template; return those of others that are to be closed because there are too many."""
        with self._changed:
            self._templates[pool] = template
            n_too_many = len(self._templates) - max(TEMPLATES, *(its.there for its in self._templates))
            return [self._templates.pop(its) for its in self._unused(but=pool)[: max(n_too_many, 0)]]

    def take_template(self, pool: PoolSlots) -> list[ChildProcess]:
        """Take out a pool's template, to be closed; nothing where it has none."""
        with self._changed:
            found = self._templates.pop(pool, None)
            return [] if found is None else [found]

    def take_unused_templates(self, but: PoolSlots) -> list[ChildProcess]:
        """Take out the templates of other pools that run nothing, to be closed."""
        with self._changed:
            return [self._templates.pop(its) for its in self._unused(but=but)]

    def templates(self) -> list[int]:
        """Return the processes of all pools' templates."""
        with self._changed:
            return [template.pid for template in self._templates.values()]

    def _unused(self, *, but: PoolSlots) -> list[PoolSlots]:
        # Not where a child is left: its template tells how it ends. And not where a task has a place: it may fork.
        return [
            pool
            for pool in self._templates
            if not (pool is but or self._of.get(pool) or self._starting[pool] or pool.taken)
        ]
