"""Pools with small models, for the tests of the worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mops.child.buffers import read_segment
from mops.study.column_families import Families
from mops.study.groups import Group
from mops.study.ids_and_seeds import param_id, replicate_seed
from mops.task import JobContext, TaskRequest, TaskResult
from mops.worker.pool import Pool
from mops.worker.slots import WorkerSlots

WILD = Path(__file__).parents[2] / "models" / "wild"
REFERENCE: Families = {"output": {"day": "number", "value": "number"}}
"""The columns of a good result of the model in nasty.py."""
PATIENCE_S = 30.0
SEEN = "from pathlib import Path; HERE = Path(__file__).parent\n"
"""The first line of a small model. Tests and later simulations can read files in HERE, but bundles are read-only."""


def groups_of(sets: list[dict[str, Any]], n_replicates: int) -> tuple[Group, ...]:
    ids = [param_id(params) for params in sets]
    seeds = [tuple(replicate_seed(key, i) for i in range(n_replicates)) for key in ids]
    return tuple(Group(i, key, params, seeds[i]) for i, (key, params) in enumerate(zip(ids, sets, strict=True)))


def request_for(context: JobContext, groups: tuple[Group, ...], **budget: Any) -> TaskRequest:
    fields: dict[str, Any] = {"number": 1, "reference": None, "seconds": 600.0, "bytes": 1 << 40} | budget
    return TaskRequest(context, groups=groups, **fields)


def limit_bytes(pool: Pool, *, alone: bool) -> int:
    """Return the current memory limit of one simulation of the pool."""
    return pool._memory.simulation_bytes(pool.slots, pool.context.memory_bytes, alone=alone)


def n_waiting(worker: WorkerSlots) -> int:
    """Return how many tasks wait for a slot. The lock excludes a task that is just getting its slot."""
    with worker.changed:
        return len(worker._waiting)


def values(result: TaskResult, column: str, output: str = "output") -> dict[tuple[int, int], list[Any]]:
    """Return the values of a column, by group and replicate."""
    found: dict[tuple[int, int], list[Any]] = {}
    for part in result.buffers:
        for segment in part.segments:
            if segment.output != output:
                continue
            table = read_segment(part.buffer, {"offset": segment.offset, "length": segment.length})
            start = 0
            for simulation, rows in zip(segment.simulations, segment.rows, strict=True):
                assert simulation not in found, "one simulation's rows came twice"
                found[simulation] = table.slice(start, rows)[column].to_pylist()
                start += rows
    return found


class PoolLab:
    """Makes pools with small models, and closes them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.pools: list[Pool] = []

    def pool(
        self,
        code: str | None = None,
        model: str = "model:run",
        root: str = str(WILD),
        *,
        worker_limit: int | None = None,
        worker: WorkerSlots | None = None,
        job: str = "job",
        **fields: Any,
    ) -> Pool:
        if code is not None:
            (self.folder / "model.py").write_text(SEEN + code)
            root = str(self.folder)
        fields = {"targets": (), "outputs": None, "slots": 1} | fields
        context = JobContext(job, "1", "bundle", "storage", model, "baseline", **fields)
        self.pools.append(Pool(context, root, fields["slots"], worker_limit, worker))
        return self.pools[-1]

    def run(self, pool: Pool, sets: list[dict[str, Any]], n_replicates: int = 1, **budget: Any) -> TaskResult:
        return pool.run(request_for(pool.context, groups_of(sets, n_replicates), **budget))

    def nasty(self, *ways: str, **fields: Any) -> TaskResult:
        """Run simulations that misbehave in these ways."""
        sets = [{"what": way, "n": n} for n, way in enumerate(ways)]
        return self.run(self.pool(model="nasty:simulate", **fields), sets, reference=REFERENCE)

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
