"""The memory of a worker's processes, and how much of it one simulation may take (docs/internals/limits.md)."""

from __future__ import annotations

from mops.system import process_memory, resources
from mops.system.clock import monotonic
from mops.system.process_memory import kept_bytes, resident_bytes
from mops.worker.slots import PoolSlots, WorkerSlots

_LOOK_SECONDS = 0.25  # between two looks at all processes of the worker, while they are far from its limit
_PAUSE_SHARE = 0.85  # of the worker's limit: above it, no simulation starts while another one runs


class WorkerMemory:
    """The memory of a worker's processes."""

    def __init__(self, worker: WorkerSlots, worker_limit: int | None):  # Dask's limit; None: it has none
        self._worker = worker
        self._usage = process_memory.Usage()
        self._taken, self._limit, self._look_at = 0, 0, 0.0
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

    def simulation_bytes(self, slots: PoolSlots, set_bytes: int | None, *, alone: bool) -> int:
        """Return how much memory one simulation may use now; ``set_bytes`` is MODELOPS_JOB_SIM_MEMORY."""
        share = resources.share_bytes(self.allowed_bytes, self.own_bytes(), 1 if alone else slots.n)
        if set_bytes is None:
            return share
        return max(set_bytes, min(slots.n_at_start * set_bytes, share)) if alone else set_bytes

    def taken_and_pause_limit(self) -> tuple[int, int]:
        """Return the memory of all processes, and the limit above which no simulation starts while another one runs."""
        # Each task asks before it starts, and a look reads the files of all processes. So a figure below half of the
        # limit counts for a moment.
        now = monotonic()
        if now >= self._look_at or self._taken > self._limit / 2:
            # Other programs on the machine may use more than when the pool was made, so the available memory counts.
            available = resources.available_bytes() * _PAUSE_SHARE / (1 - _PAUSE_SHARE)
            self._limit = int(min(_PAUSE_SHARE * self.allowed_bytes, available))
            self._taken = self._usage.look(self._limit, self._resident_bytes, self._exact_bytes)
            self._look_at = now + _LOOK_SECONDS
        return self._taken, self._limit
