"""Measure the effect of limits and fresh processes: `python bench/limits.py` (as root: it makes cgroups and mounts).

| name | what the bench shows |
|---|---|
| leak | each simulation leaks 72 MiB of native memory in a worker of 1 GiB; controls run without the protections |
| fragment | memory of the worker while a model fragments Python's heap; a control runs without fresh processes |
| jobs | memory of a scheduler and a worker that run many jobs |
| outputs | a job whose outputs are larger than all memory, with a small /dev/shm |
| threads | two children that run linear algebra, with one thread each, or with OpenBLAS's default number |

Writes `bench/results/limits.json` (a part of it with `--only`), and in `docs/internals` the tables of `memory.md` and
the picture `limits.png`. With `--quick` (a tenth of everything, to see that it works) it prints and writes nothing.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from statistics import median

from limits_lab import GIB, MIB, cgroup_memory, cgroup_of, dask_cluster, lab, memory_of, thinned, worker_log
from limits_report import tables, write_report
from throughput import RESULTS, machine, say
from tree_memory import PeakMemory

QUICKER = 10
ROUNDS = 5
LEAK_MIB = 72
WIDE_MIB = 50
SMALL_SHM = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"', "sh")
NO_LIMIT = "64GiB"

LEAK_RUNS = {
    "default settings": (2, {}),
    "RETRIES=0": (2, {"RETRIES": 0}),
    "RETRIES=0, TASKS_PER_CHILD=1": (2, {"RETRIES": 0, "TASKS_PER_CHILD": 1}),
    "CHILD_GROWTH=0": (2, {"CHILD_GROWTH": 0}),
    "CHILD_GROWTH=0, SIM_MEMORY=64GiB": (2, {"CHILD_GROWTH": 0, "SIM_MEMORY": NO_LIMIT}),
    "one thread, RETRIES=0": (1, {"RETRIES": 0}),
    "one thread, RETRIES=0, CHILD_GROWTH=0": (1, {"RETRIES": 0, "CHILD_GROWTH": 0}),
}
"""Threads of the worker, and MODELOPS_JOB_ settings."""

THREADS_RUNS = {"one thread each": {}, "OpenBLAS's own choice": {"SIM_THREADS": 2, "SLOTS": 2}}
"""Both run two children at once. With SIM_THREADS=2, each has two threads, OpenBLAS's default on two cores."""
THREADS_LOADS = {1_000: 20, 2_000: 4}
"""Unknowns of a system, and solves in each simulation."""


def main() -> None:
    arguments = parse_arguments()
    if os.geteuid() != 0:
        sys.exit("only root can make cgroups and mounts, which this benchmark needs")
    kept = RESULTS / "limits.json"
    result = json.loads(kept.read_text()) if kept.exists() and not arguments.quick else {"benches": {}}
    result["machine"] = machine()
    for name in arguments.only:
        result["benches"][name] = BENCHES[name](QUICKER if arguments.quick else 1)
        if not arguments.quick:
            RESULTS.mkdir(exist_ok=True)
            kept.write_text(json.dumps(result) + "\n")
    print(tables(result))
    if not arguments.quick:
        write_report(result)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything; leaves nothing")
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES), metavar="NAME")
    return parser.parse_args()


def leak(quicker: int) -> dict:
    runs = [leak_run(label, threads, settings, 500 // quicker) for label, (threads, settings) in LEAK_RUNS.items()]
    return {"leak_mib": LEAK_MIB, "runs": runs}


def leak_run(label: str, threads: int, settings: dict, simulations: int) -> dict:
    """Run the leaking model on a Dask worker with its nanny, both in a cgroup of 1 GiB."""
    with (
        lab() as place,
        cgroup_of(GIB) as cgroup,
        dask_cluster(place, "--nanny", "--memory-limit", "1GiB", threads=threads, cgroup=cgroup) as cluster,
        cgroup_memory(cgroup) as memory,
    ):
        study = place.study("leak:simulate", numbered(simulations, mib=LEAK_MIB))
        figures, _ = place.job(study, **settings)
        told = worker_log(cluster)
        figures |= {"kernel_kills": cgroup.kills(), "over_limit": told.count("of one simulation, and were ended")}
    figures |= {"label": label, "simulations": simulations, "series": thinned(memory.series)}
    return said_of(figures | {"peak_bytes": memory.peak_bytes})


def fragment(quicker: int) -> dict:
    return {
        "runs": [
            fragment_run("default settings", {}, 2_000 // quicker),
            fragment_run("CHILD_GROWTH=0", {"CHILD_GROWTH": 0}, 400 // quicker),
        ]
    }


def fragment_run(label: str, settings: dict, simulations: int) -> dict:
    with lab() as place, dask_cluster(place) as cluster, memory_of(cluster.workers[0].pid) as (memory,):
        study = place.study("fragment:simulate", numbered(simulations, objects=2_000_000, keep_every=100))
        figures, _ = place.job(study, **settings)
    figures |= {"simulations": simulations, "peak_bytes": memory.peak_bytes}
    return said_of(figures | quarters(label, tree_of(memory)))


def jobs(quicker: int) -> dict:
    """Run one job after the other on the same cluster, and sample the memory of its processes."""
    n_jobs, sets = 100 // quicker, 40
    states, rows = [], 0
    with lab() as place, dask_cluster(place) as cluster:
        with memory_of(cluster.scheduler.pid, cluster.workers[0].pid) as (scheduler, worker):
            for _ in range(n_jobs):
                figures, _ = place.job(place.study("sir:simulate", epidemics(sets), replicates=5))
                states.append(figures["state"])
                rows += figures["rows"]
        runs = [
            quarters("the scheduler's process", root_of(scheduler)),
            quarters("the worker's process", root_of(worker)),
            quarters("the worker's tree", tree_of(worker)),
        ]
    figures = {"jobs": n_jobs, "simulations": n_jobs * sets * 5, "rows": rows, "runs": runs}
    return said_of(figures | {"succeeded": states.count("succeeded")})


def outputs(quicker: int) -> dict:
    """Run a job with large outputs in a cgroup that holds the runner, its workers and memory files."""
    simulations = 100 // quicker
    with lab() as place, cgroup_of(4 * GIB) as cgroup, cgroup_memory(cgroup) as memory:
        study = place.study("wide:simulate", numbered(simulations, mib=WIDE_MIB))
        figures, _ = place.job(study, *SMALL_SHM, cgroup=cgroup)
        figures["kernel_kills"] = cgroup.kills()
    rows_asked = simulations * (WIDE_MIB * MIB // 64)
    figures |= {"simulations": simulations, "rows_asked": rows_asked, "mib": WIDE_MIB}
    return said_of(figures | {"series": thinned(memory.series), "peak_bytes": memory.peak_bytes})


def threads(quicker: int) -> dict:
    """Run the same study with both numbers of threads, in turn."""
    simulations, rounds = 16, 1 if quicker > 1 else ROUNDS
    found = []
    for size, solves in THREADS_LOADS.items():
        labels = list(THREADS_RUNS)
        seconds: dict[str, list[float]] = {label: [] for label in labels}
        for n in range(rounds):
            for label in labels[:: 1 if n % 2 else -1]:
                seconds[label].append(threads_run(size, solves, simulations, THREADS_RUNS[label]))
            say(f"threads, {size} unknowns, round {n + 1}: {[round(s[-1], 1) for s in seconds.values()]}")
        found.append({"size": size, "solves": solves, "simulations": simulations, "seconds": seconds})
    return {"loads": found}


def threads_run(size: int, solves: int, simulations: int, settings: dict) -> float:
    with lab() as place:
        study = place.study("dense:simulate", numbered(simulations, size=size, solves=solves))
        figures, said = place.job(study, **settings)
        if figures["state"] != "succeeded" or figures["processes"] != 2:
            raise SystemExit(f"{figures}\n{said.read_text()}")
    return figures["seconds"]


def tree_of(memory: PeakMemory) -> list[tuple[float, int]]:
    return [(at, tree) for at, tree, _ in memory.series]


def root_of(memory: PeakMemory) -> list[tuple[float, int]]:
    return [(at, root) for at, _, root in memory.series]


def quarters(label: str, series: list[tuple[float, int]]) -> dict:
    """Return a series with the medians (bytes) of its second and its last quarter, by time."""
    ends_s = series[-1][0]
    second = median(size for at, size in series if ends_s / 4 <= at < ends_s / 2)
    last = median(size for at, size in series if at >= ends_s * 3 / 4)
    return {"label": label, "series": thinned(series), "second_quarter_bytes": second, "last_quarter_bytes": last}


def said_of(figures: dict) -> dict:
    """Print the figures that fit in a line, and return all."""
    say(str({key: value for key, value in figures.items() if key not in ("series", "runs")}))
    return figures


def numbered(simulations: int, **params: object) -> list[dict]:
    """Return parameter sets that differ only by their number."""
    return [{"n": n, **params} for n in range(simulations)]


def epidemics(sets: int) -> list[dict]:
    return [{"beta": 0.2 + n / 1_000, "gamma": 0.1, "ms": 10, "rows": 2_048} for n in range(sets)]


BENCHES: dict[str, Callable[[int], dict]] = {
    "leak": leak,
    "fragment": fragment,
    "jobs": jobs,
    "outputs": outputs,
    "threads": threads,
}


if __name__ == "__main__":
    main()
