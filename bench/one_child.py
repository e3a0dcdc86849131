"""Print the microseconds of one child process for a simulation and its targets: `python bench/one_child.py`.

The worker's part of mops runs tasks on one slot, without Dask, runner and storage. Start-up is not measured. With
`--before FOLDER` (`git worktree add FOLDER COMMIT`), the code of an earlier commit and this code take turns, because a
machine may change its speed by half within seconds. The ratio is that of their times.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from mops.study.groups import Group
from mops.study.ids_and_seeds import param_id, replicate_seed
from mops.task import JobContext, TaskRequest
from mops.worker.pool import Pool

HERE = Path(__file__).resolve()
MODELS = HERE.parent / "models"
TARGETS = ("peak", "peak_day", "mean_infected", "spread", "squared_error", "final_size")
REPLICATES = 5
STARTS = 10
"""Children of each tree: the heap of one may return its memory after each task, and that of another may not."""

TURNS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sir:simulate")
    parser.add_argument("--sets", type=int, default=100, help="parameter sets of a turn")
    parser.add_argument("--no-targets", action="store_true")
    parser.add_argument("--before", type=Path, help="a clone of an earlier commit")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments)
        return
    found = measure({"now": HERE.parents[1], **({"before": arguments.before} if arguments.before else {})})
    wall_us, cpu_us = (statistics.median(column) for column in zip(*found["now"], strict=True))
    figures = {"us": wall_us, "cpu_us": cpu_us}
    if arguments.before:
        ratios = [now[0] / before[0] for now, before in zip(found["now"], found["before"], strict=True)]
        figures |= {"ratio": statistics.median(ratios), "error": statistics.stdev(ratios) / len(ratios) ** 0.5}
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def measure(trees: dict[str, Path]) -> dict[str, list[tuple[float, float]]]:
    """Return microseconds of time and of CPU for each simulation, in each turn, for the code in these folders."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
    for _ in range(STARTS):
        servers = {name: started(tree) for name, tree in trees.items()}
        for turn in range(TURNS + 1):
            for name, server in servers.items():
                server.stdin.write("run\n")
                server.stdin.flush()
                wall_us, cpu_us = map(float, server.stdout.readline().split())
                if turn:  # the first makes what is made once
                    found[name].append((wall_us, cpu_us))
        for server in servers.values():
            server.communicate()
    return found


def started(tree: Path) -> subprocess.Popen:
    """Start a process that runs a task of the code in this folder for each line of its input."""
    command = [sys.executable, str(HERE), *sys.argv[1:], "--serve"]
    env = os.environ | {"PYTHONPATH": str(tree / "runner")}
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def serve(arguments: argparse.Namespace) -> None:
    """Run a task for each line of the input, and print what a simulation has taken."""
    context = JobContext(
        *("job", "1", "bundle", "storage", arguments.model, "baseline"),
        targets=() if arguments.no_targets else tuple(f"targets:{name}" for name in TARGETS),
        outputs=None,
        slots=1,
        held_bytes=1 << 40,
    )
    pool = Pool(context, str(MODELS), slots=1)
    try:
        for _ in sys.stdin:
            wall_s, cpu_s = spent(pool, lambda: run(pool, arguments.sets))
            n = arguments.sets * REPLICATES
            print(1e6 * wall_s / n, 1e6 * cpu_s / n, flush=True)
    finally:
        pool.close()


def spent(pool: Pool, call: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds of time and of CPU of the pool's processes that a call takes."""
    began, began_cpu_s = time.perf_counter(), cpu_seconds(pool)
    call()
    return time.perf_counter() - began, cpu_seconds(pool) - began_cpu_s


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
