"""The slots, the child processes and the memory of one worker process, of all its pools: what runs, lives and is idle.

A pool of ``n`` slots gives each simulation the n-th part of the worker, of its processors and of its memory. The parts
of all running simulations never add up to more than the whole worker, and neither do those of all child processes.
Waiting tasks take their slots in the order in which they came. docs/internals/limits.md has the rules for memory.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from mops.recovery import Death
from mops.system import process_memory, resources
from mops.system.clock import monotonic
from mops.system.process_memory import kept_bytes, resident_bytes
from mops.worker.child_process import ChildProcess
from mops.worker.template import Template

logger = logging.getLogger(__name__)

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

LEFTOVERS = ("descriptors", "threads", "processes", "files", "limits")
"""What simulations leave and the system has only a limited number of, and limits that they lower; see the next."""

REPLACED_BETWEEN_SIMULATIONS = ("simulations", "growth", "size", *LEFTOVERS)
"""Why a child was replaced between two simulations (:attr:`mops.child.leftovers.ReplacementPolicy.code`)."""

_FOR_ROOM = "room"  # an idle child was closed to make room for another child

_MEMORY_SECONDS = 0.25  # between two looks at all processes of the worker, while they are far from its limit
_PAUSE_SHARE = 0.85  # of the worker's limit: above it, no simulation starts while another one runs

_counting = threading.Lock()
_counts: Counter[str] = Counter()  # of this process, because pools end with their jobs


def count(what: str) -> None:
    """Count a process that has started, by how, or was replaced, by the reason."""
    with _counting:
        _counts[what] += 1


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """Return how many processes have started, by how, and how many were replaced, by reason."""
    reasons = (*REPLACED_BETWEEN_SIMULATIONS, *REPLACED_DEATHS.values(), _FOR_ROOM)
    with _counting:
        return {how: _counts[how] for how in HOW_STARTED}, {reason: _counts[reason] for reason in reasons}


def fits(parts: Iterable[tuple[int, int]]) -> bool:
    """Tell whether parts of one worker add up to at most the whole; (2, 3) is two thirds."""
    parts = list(parts)
    whole = math.lcm(*(n for _, n in parts))
    return sum(k * (whole // n) for k, n in parts) <= whole


def close_all(children: Iterable[ChildProcess]) -> None:
    """Kill children, then wait for their ends: they end side by side, the kernel takes milliseconds for each."""
    children = list(children)
    for child in children:
        child.kill()
    for child in children:
        child.close()


class WorkerSlots:
    """What the pools of one worker process share. Thread-safe."""

    def __init__(self) -> None:
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        """Guards what follows, and all of a :class:`PoolSlots`. Notified when slots become free or a child ends."""
        self._freed = threading.Condition(lock)
        """Notified when memory may become free: a child is no longer busy, or a pool stops."""
        self._pools: list[PoolSlots] = []
        self._waiting: deque[object] = deque()
        self._idle: dict[ChildProcess, PoolSlots] = {}  # the longest idle first
        self._templates: dict[PoolSlots, Template] = {}  # the longest unused first

    @property
    def n_pools(self) -> int:
        """How many pools there are, at least one."""
        return max(len(self._pools), 1)

    @property
    def any_busy(self) -> bool:
        """Whether a child of any pool is busy."""
        with self.changed:
            return sum(len(pool._children) for pool in self._pools) > len(self._idle)

    def pids(self) -> list[int]:
        """Return the process ids of all children and templates."""
        with self.changed:
            living = [child for pool in self._pools for child in pool._children]
            return [child.pid for child in (*living, *self._templates.values())]

    def template_pids(self) -> list[int]:
        """Return the process ids of all templates."""
        with self.changed:
            return [template.pid for template in self._templates.values()]

    def resident_bytes(self) -> int:
        """Return the resident memory of all children and templates, with the processes that they have started."""
        return process_memory.tree_bytes(*self.pids())

    def await_freed(self, within_s: float) -> None:
        """Wait until a child becomes idle or is removed, or a pool stops."""
        with self._freed:
            self._freed.wait(within_s)

    def _take_idle(self, idle: list[ChildProcess]) -> list[ChildProcess]:
        for child in idle:
            self._idle.pop(child)._children.discard(child)
        return idle

    def _take_unused_templates(self, but: PoolSlots, most: int | None = None) -> list[Template]:
        # A pool with a child needs its template, which tells how the child ends; one whose task has a slot may fork.
        used = {but, *(pool for pool in self._templates if pool._children or pool._n_starting or pool._n_taken)}
        unused = [pool for pool in self._templates if pool not in used]
        return [self._templates.pop(pool) for pool in unused[:most]]


class PoolSlots:
    """The slots, the children and the template of one pool, and whether the pool still starts anything. Thread-safe."""

    # A stopped pool gets no child and keeps no idle one: each change checks it under the lock, so the thread that stops
    # a pool sees every child that the pool still has. Children are closed without the lock, because that takes long.

    def __init__(self, n: int, worker: WorkerSlots):
        self.n_at_start = self._most = self.n = n
        """``n``: how many can be in use at a time now."""
        self.worker = worker
        self._n_taken = self._n_starting = 0
        self._children: set[ChildProcess] = set()
        self._stopping = self._ended = False
        with worker.changed:
            worker._pools.append(self)

    @contextmanager
    def use(self, *, alone: bool, only_targets: bool) -> Iterator[bool]:
        """Wait for a slot (``alone``: all of the worker), use it in the body; yield False if the pool stops first."""
        worker, ticket = self.worker, object()

        def has_turn() -> bool:
            if worker._waiting[0] is not ticket:
                return False
            if alone:
                return not any(pool._n_taken for pool in worker._pools)
            return fits((pool._n_taken + (pool is self), pool.n) for pool in worker._pools)

        with worker.changed:
            worker._waiting.append(ticket)
            try:
                worker.changed.wait_for(lambda: self.stopped(only_targets=only_targets) or has_turn())
                is_stopped = self.stopped(only_targets=only_targets)
                n = 0 if is_stopped else self.n_at_start if alone else 1
                self._n_taken += n
            finally:
                worker._waiting.remove(ticket)
                worker.changed.notify_all()
        try:
            yield not is_stopped
        finally:
            with worker.changed:
                self._n_taken -= n
                worker.changed.notify_all()

    def limit(self, n: int) -> None:
        """Use ``n`` of the slots, at least one, and close the idle children beyond them."""
        with self.worker.changed:
            before, self.n = self.n, max(min(n, self._most), 1)
            if self.n > before:
                self.worker.changed.notify_all()
        self.close_idle(above=self.n)

    def fewer_after(self, death: Death, job: str) -> None:
        """Use one slot fewer from now on, but at least one, if a process does not end or memory ran out."""
        if not (death.by_kernel or death.is_left):
            return
        with self.worker.changed:
            if self.n == 1:
                return
            self._most = self.n = self.n - 1
        what = f"the kernel killed process {death.pid} because memory ran out"
        if death.is_left:
            what = f"process {death.pid} does not end: it may wait for a file server"
        logger.warning("%s: %s; simulations at a time on this worker: %d", job, what, self.n)

    def stop(self, *, targets_too: bool = False) -> None:
        """Start nothing from now on, except targets (``targets_too``: nothing at all)."""
        with self.worker.changed:
            self._stopping = True
            self._ended |= targets_too
            self.worker.changed.notify_all()  # for waiting tasks to check their conditions again
            self.worker._freed.notify_all()

    def stopped(self, *, only_targets: bool = False) -> bool:
        """Tell whether the pool starts nothing any longer; ``only_targets``: even no task that runs only targets."""
        # Targets also start during a stop's grace period, because their group would be lost without its losses.
        return self._ended if only_targets else self._stopping

    def leave(self, within_s: float) -> list[ChildProcess]:
        """Wait until the stopped pool has no children, and remove it; return the children that it still has."""
        with self.worker.changed:
            self.worker.changed.wait_for(lambda: not self._children, timeout=within_s)
            if self in self.worker._pools:  # not at a second call
                self.worker._pools.remove(self)
            self.worker.changed.notify_all()
            left, self._children = list(self._children), set()
            return left

    @property
    def n_children(self) -> int:
        """How many children live or start."""
        with self.worker.changed:
            return len(self._children) + self._n_starting

    def children(self) -> list[ChildProcess]:
        """Return the pool's children."""
        with self.worker.changed:
            return list(self._children)

    def busy_and_idle(self) -> tuple[int, int]:
        """Return how many of the children run something, and how many are idle."""
        with self.worker.changed:
            idle = sum(pool is self for pool in self.worker._idle.values())
            return len(self._children) - idle, idle

    def take(self) -> ChildProcess | None:
        """Return the child that became idle last, which is busy from now on; None: none is idle."""
        with self.worker.changed:
            found = next((child for child, pool in reversed(self.worker._idle.items()) if pool is self), None)
            if found is not None:
                del self.worker._idle[found]
            return found

    def reserve(self) -> None:
        """Count a child that is about to start, and close idle children of any pool until there is room for it."""
        worker = self.worker
        victims: list[ChildProcess] = []
        with worker.changed:
            self._n_starting += 1
            while worker._idle and not self._has_room():
                victims += worker._take_idle([next(iter(worker._idle))])
        for _ in victims:
            count(_FOR_ROOM)
        close_all(victims)

    def started(self, child: ChildProcess | None, *, only_targets: bool = False) -> bool:
        """End a reservation; return whether the pool has the child, which is busy then (None: it did not start)."""
        with self.worker.changed:
            self._n_starting -= 1
            if child is None or self.stopped(only_targets=only_targets):
                return False
            self._children.add(child)
            return True

    def keep(self, child: ChildProcess) -> bool:
        """Keep a child for the pool's next task; return False if there are too many or the pool is stopped."""
        with self.worker.changed:
            if self._stopping or not self._has_room():
                return False
            self.worker._idle[child] = self
            self.worker._freed.notify_all()
            return True

    def _has_room(self) -> bool:
        """Tell whether all children that live or start fit on the worker."""
        return fits((len(pool._children) + pool._n_starting, pool.n) for pool in self.worker._pools)

    def remove(self, child: ChildProcess) -> None:
        """Forget a child that has ended."""
        with self.worker.changed:
            self._children.discard(child)
            self.worker.changed.notify_all()
            self.worker._freed.notify_all()

    def close_idle(self, above: int = 0) -> None:
        """Close idle children of the pool; ``above``: leave it this many children."""
        with self.worker.changed:
            idle = [child for child, pool in self.worker._idle.items() if pool is self]
            idle = self.worker._take_idle(idle[: max(len(self._children) - above, 0)])
        close_all(idle)

    def close_unused(self) -> None:
        """Close every process of the worker that runs nothing, except this pool's template."""
        with self.worker.changed:
            idle = self.worker._take_idle([*self.worker._idle])
            templates = self.worker._take_unused_templates(but=self)
        close_all(idle)  # before their templates, which tell how they end
        close_all(templates)

    def template(self) -> Template | None:
        """Return the template, which counts as used now; None: there is none."""
        with self.worker.changed:
            found = self.worker._templates.pop(self, None)
            if found is not None:
                self.worker._templates[self] = found
            return found

    def set_template(self, template: Template) -> bool:
        """Keep a template, and close unused ones beyond the limit; close it and return False if the pool is stopped."""
        with self.worker.changed:
            is_kept, templates = not self._stopping, self.worker._templates
            too_many = [template]
            if is_kept:
                templates[self] = template
                n_too_many = len(templates) - max(TEMPLATES, *(pool.n_at_start for pool in templates))
                too_many = self.worker._take_unused_templates(self, max(n_too_many, 0))
        close_all(too_many)
        return is_kept

    def take_template(self) -> list[Template]:
        """Remove the template, if there is one, for the caller to close."""
        with self.worker.changed:
            found = self.worker._templates.pop(self, None)
            return [] if found is None else [found]


class WorkerMemory:
    """The memory of a worker's processes."""

    def __init__(self, worker: WorkerSlots, worker_limit: int | None):  # Dask's limit; None: it has none
        self._worker = worker
        self._usage = process_memory.Usage()
        self._taken, self._limit, self._measure_at = 0, 0, 0.0
        taken = self._exact_bytes()
        taken = self._resident_bytes() if taken is None else taken
        self.allowed_bytes = resources.usable_bytes(worker_limit, taken)
        """The memory that the worker and its processes may use, given the free memory when the pool was made."""

    def slots_with_room(self, slots: int) -> int:
        """Return for how many slots the memory is enough, if each simulation gets the share of a slot."""
        return resources.slots_with_room(self.allowed_bytes, self.own_bytes(), slots)

    def own_bytes(self) -> int:
        """Return the memory that simulations cannot use: that of the worker's own process and of all templates."""
        return resident_bytes() + sum(map(kept_bytes, self._worker.template_pids()))

    def _resident_bytes(self) -> int:
        return resident_bytes() + self._worker.resident_bytes()

    def _exact_bytes(self) -> int | None:
        children = process_memory.own_bytes(*self._worker.pids())
        return None if children is None else resident_bytes() + children

    def simulation_bytes(self, slots: PoolSlots, set_bytes: int | None, *, alone: bool, is_larger: bool = False) -> int:
        """Return how much memory one simulation may use now; ``set_bytes`` is MODELOPS_JOB_SIM_MEMORY.

        Alone on a worker, it may use as much as all slots together; on one of a larger kind (``is_larger``), all that
        the worker has.
        """
        share = resources.share_bytes(self.allowed_bytes, self.own_bytes(), 1 if alone else slots.n)
        if set_bytes is None:
            return share
        most = share if is_larger else min(slots.n_at_start * set_bytes, share)
        return max(set_bytes, most) if alone else set_bytes

    def taken_and_pause_limit(self) -> tuple[int, int]:
        """Return the memory of all processes, and the limit above which no simulation starts while another one runs."""
        # Each task asks before it starts, and a look reads the files of all processes. So a figure below half of the
        # limit counts for a moment.
        now = monotonic()
        if now >= self._measure_at or self._taken > self._limit / 2:
            # Other programs on the machine may use more than when the pool was made, so the available memory counts.
            available = resources.available_bytes() * _PAUSE_SHARE / (1 - _PAUSE_SHARE)
            self._limit = int(min(_PAUSE_SHARE * self.allowed_bytes, available))
            self._taken = self._usage.look(self._limit, self._resident_bytes, self._exact_bytes)
            self._measure_at = now + _MEMORY_SECONDS
        return self._taken, self._limit
