"""Print the CPU time of one child process for a simulation and its targets: `python bench/one_child.py`.

The worker's part of mops runs one task on one slot, without Dask, runner and storage. Start-up is not measured.
"""

import argparse
import json
import time
from pathlib import Path

import psutil

from mops.study.groups import Group
from mops.study.ids_and_seeds import param_id, replicate_seed
from mops.task import JobContext, TaskRequest
from mops.worker.pool import Pool

MODELS = Path(__file__).resolve().parent / "models"
TARGETS = ("peak", "peak_day", "mean_infected", "spread", "squared_error", "final_size")
REPLICATES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sir:simulate")
    parser.add_argument("--sets", type=int, default=2_000)
    arguments = parser.parse_args()
    context = JobContext(
        *("job", "1", "bundle", "storage", arguments.model, "baseline"),
        targets=tuple(f"targets:{name}" for name in TARGETS),
        outputs=None,
        slots=1,
        held_bytes=1 << 40,
    )
    pool = Pool(context, str(MODELS), slots=1)
    try:
        run(pool, 50)  # imports, and what is made once
        began, began_cpu_s = time.perf_counter(), cpu_seconds(pool)
        run(pool, arguments.sets)
        n = arguments.sets * REPLICATES
        seconds, cpu_s = time.perf_counter() - began, cpu_seconds(pool) - began_cpu_s
        print(json.dumps({"seconds": seconds, "cpu_us": 1e6 * cpu_s / n}))
    finally:
        pool.close()


def run(pool: Pool, n: int) -> None:
    """Run so many parameter sets as one task."""
    groups = tuple(group(i) for i in range(n))
    result = pool.run(TaskRequest(pool.context, 1, groups, reference=None, seconds=3600, bytes=1 << 40))
    if len(result.done) != n or result.failures:
        raise SystemExit(f"{len(result.done)} of {n} sets are done: {result.failures[:1]}")


def group(i: int) -> Group:
    params = {"beta": 0.2 + i / 1_000_000, "gamma": 0.1, "ms": 0, "rows": 365}
    identity = param_id(params)
    return Group(i, identity, params, tuple(replicate_seed(identity, n) for n in range(REPLICATES)))


def cpu_seconds(pool: Pool) -> float:
    """Return the CPU time of the pool's processes so far."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pool.pids())


if __name__ == "__main__":
    main()
