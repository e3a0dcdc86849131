"""The child processes of a worker, of every pool: which there are, which are idle, and how many have started."""

from __future__ import annotations

import threading
from collections import Counter
from fractions import Fraction

from mops.system import process_memory
from mops.worker.child_process import ChildProcess
from mops.worker.slots import PoolSlots, WorkerSlots
from mops.worker.template import Template

TEMPLATES = 2
"""A worker keeps as many templates as it has slots, but at least this many: two jobs on one slot both fork."""

HOW_STARTED = ("forked", "spawned")

REPLACED_DEATHS = {
    "itself": "died",
    "silence": "silent",
    "start": "hung",
    "memory": "memory",
    "timeout": "timeout",
    "reading": "timeout",
}
"""Why a dead child was replaced, by what ended it (:attr:`mops.recovery.Death.by`)."""

LEFTOVERS = ("descriptors", "threads", "processes", "files")
"""What simulations leave and the system has only a limited number of; see the next."""

REPLACED_BETWEEN_SIMULATIONS = ("simulations", "growth", "size", *LEFTOVERS)
"""Why a child was replaced between two simulations (:attr:`mops.child.replacement.ReplacementPolicy.code`)."""

REPLACED_FOR_ROOM = "room"
"""Why an idle child was closed: it made room for another child."""

_counting = threading.Lock()
"""Guards both counts. They belong to this process, because pools end with their jobs."""
_n_started: Counter[str] = Counter()
_n_replaced: Counter[str] = Counter()


def count_started(how: str) -> None:
    """Count a process that has started."""
    with _counting:
        _n_started[how] += 1


def count_replaced(reason: str) -> None:
    """Count a process in whose place a fresh one starts."""
    with _counting:
        _n_replaced[reason] += 1


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """Return how many processes have started, by how, and how many were replaced, by reason."""
    reasons = (*REPLACED_BETWEEN_SIMULATIONS, *REPLACED_DEATHS.values(), REPLACED_FOR_ROOM)
    with _counting:
        return {how: _n_started[how] for how in HOW_STARTED}, {reason: _n_replaced[reason] for reason in reasons}


class ChildRegistry:
    """The children of one worker process. Thread-safe; a pool is named by its :class:`PoolSlots`.

    There are never more children than slots: what a pool of ``n`` slots has counts as n-ths of the worker.
    """

    # A stopped pool gets no child and keeps no idle one. PoolSlots.stop comes before the lists are read here, and each
    # change checks it under the lock, so the thread that stops a pool sees every child that the pool still has.

    def __init__(self) -> None:
        self.slots = WorkerSlots()
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._of: dict[PoolSlots, set[ChildProcess]] = {}
        self._starting: Counter[PoolSlots] = Counter()
        self._idle: dict[ChildProcess, PoolSlots] = {}  # the longest idle first
        self._templates: dict[PoolSlots, Template] = {}  # the longest unused first

    def join(self, pool: PoolSlots) -> None:
        """Add a pool."""
        with self._changed:
            self._of[pool] = set()

    def leave(self, pool: PoolSlots) -> list[ChildProcess]:
        """Remove a pool; return the children that it still has, for the caller to close."""
        with self._changed:
            return list(self._of.pop(pool, ()))

    def await_end(self, pool: PoolSlots, within_s: float) -> None:
        """Wait until a pool has no children."""
        with self._changed:
            self._changed.wait_for(lambda: not self._of.get(pool), timeout=within_s)

    def await_change(self, within_s: float) -> None:
        """Wait until a child becomes idle or is removed."""
        with self._changed:
            self._changed.wait(within_s)

    @property
    def n_pools(self) -> int:
        """How many pools there are, at least one."""
        return max(len(self._of), 1)

    def of(self, pool: PoolSlots) -> list[ChildProcess]:
        """Return a pool's children."""
        with self._changed:
            return list(self._of.get(pool, ()))

    @property
    def any_busy(self) -> bool:
        """Whether a child of any pool is busy."""
        with self._changed:
            return sum(map(len, self._of.values())) > len(self._idle)

    def busy_and_idle(self, pool: PoolSlots) -> tuple[int, int]:
        """Return how many of a pool's children are busy, and how many are idle."""
        with self._changed:
            idle = sum(its is pool for its in self._idle.values())
            return len(self._of.get(pool, ())) - idle, idle

    def pids(self) -> list[int]:
        """Return the process ids of all children and templates."""
        with self._changed:
            living = [child for children in self._of.values() for child in children]
            return [child.pid for child in (*living, *self._templates.values())]

    def resident_bytes(self) -> int:
        """Return the resident memory of all children and templates, with the processes that they have started."""
        return process_memory.tree_bytes(*self.pids())

    def take(self, pool: PoolSlots) -> ChildProcess | None:
        """Return the pool's child that became idle last, which is busy from now on; None: none is idle."""
        with self._changed:
            found = next((child for child, its in reversed(self._idle.items()) if its is pool), None)
            if found is not None:
                del self._idle[found]
            return found

    def reserve(self, pool: PoolSlots) -> list[ChildProcess]:
        """Count a child that a pool is about to start; return idle children that the caller must close first."""
        with self._changed:
            self._starting[pool] += 1
            victims: list[ChildProcess] = []
            while self._used() > 1 and self._idle:
                victims += self._take([next(iter(self._idle))])
            return victims

    def started(self, pool: PoolSlots, child: ChildProcess | None, *, only_targets: bool = False) -> bool:
        """End a reservation; return whether the pool has the child, which is busy then (None: it did not start)."""
        with self._changed:
            self._starting[pool] -= 1
            if child is None or pool.stopped(only_targets=only_targets):
                return False
            self._of[pool].add(child)
            return True

    def mark_idle(self, pool: PoolSlots, child: ChildProcess) -> bool:
        """Keep a child for the pool's next task; return False if all slots are used or the pool is stopped."""
        with self._changed:
            if pool.stopped() or self._used() > 1:
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
        """Remove idle children of a pool (None: of all), for the caller to close; ``above``: leave it this many."""
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

    def template(self, pool: PoolSlots) -> Template | None:
        """Return a pool's template, which counts as used now; None: it has none."""
        with self._changed:
            found = self._templates.pop(pool, None)
            if found is not None:
                self._templates[pool] = found
            return found

    def set_template(self, pool: PoolSlots, template: Template) -> list[Template]:
        """Keep a pool's template; return templates for the caller to close: too many, or of a stopped pool."""
        with self._changed:
            if pool.stopped():
                return [template]
            self._templates[pool] = template
            n_too_many = len(self._templates) - max(TEMPLATES, *(its.n_at_start for its in self._templates))
            return [self._templates.pop(its) for its in self._unused(but=pool)[: max(n_too_many, 0)]]

    def take_template(self, pool: PoolSlots) -> list[Template]:
        """Remove a pool's template, if it has one, for the caller to close."""
        with self._changed:
            found = self._templates.pop(pool, None)
            return [] if found is None else [found]

    def take_unused_templates(self, but: PoolSlots) -> list[Template]:
        """Remove the templates of other pools that run nothing, for the caller to close."""
        with self._changed:
            return [self._templates.pop(its) for its in self._unused(but=but)]

    def template_pids(self) -> list[int]:
        """Return the process ids of all pools' templates."""
        with self._changed:
            return [template.pid for template in self._templates.values()]

    def _unused(self, *, but: PoolSlots) -> list[PoolSlots]:
        # A pool with a child needs its template, which tells how the child ends; one whose task has a slot may fork.
        return [
            pool
            for pool in self._templates
            if not (pool is but or self._of.get(pool) or self._starting[pool] or pool.taken)
        ]
