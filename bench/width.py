"""Measure mops on many slots against plain Dask: `python bench/width.py --slots 16 80 160`.

A real scheduler and real worker processes share this machine's processors. The model sleeps, so that the processors are
free for Dask and the runner. Each program runs in a separate process:

- `dask`: a future for each simulation and `as_completed`, as most users write it.
- `mops, fused`: parameter sets with one replicate. mops may put several into one task.
- `mops, in pieces`: parameter sets with 40 replicates. A set takes longer than a task, so that its replicates run as
  several tasks.

In each round the programs run in rotating order. The time starts when the program is connected, and ends when all
results have come. The slots are busy all the time in the ideal run.

Writes `bench/results/width.json` and the table in `docs/internals/throughput.md`. With `--quick`, or without some of
the slots, it prints the table and writes nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from limits_lab import Lab, lab
from throughput import BENCH, RESULTS, environment, machine, say
from throughput_report import PAGE, facts_line, put_between

sys.path.insert(0, str(BENCH / "models"))

import asleep
from dask_processes import DaskProcesses
from distributed import Client, as_completed

SHAPES = {16: (4, 4), 80: (10, 8), 160: (20, 8), 320: (40, 8)}
"""Workers and threads of each, by slots."""

ROUNDS, PER_SLOT, SECONDS = 3, 30, 1.0
IN_PIECES = 40
BEGIN, END = "<!-- table: begin (bench/width.py writes it) -->", "<!-- table: end (bench/width.py) -->"

HEAD = """\
| slots | program | seconds | times the ideal | times plain Dask | least and most | CPU for a simulation, ms |
|---|---|---|---|---|---|---|"""


def main() -> None:
    arguments = parse_arguments()
    if arguments.dask:
        print(json.dumps(run_dask(*arguments.dask)))
        return
    rounds = 1 if arguments.quick else arguments.rounds
    per_slot = 5 if arguments.quick else PER_SLOT
    result = {
        "machine": machine(),
        "per_slot": per_slot,
        "rounds": {slots: measure(slots, rounds, per_slot) for slots in arguments.slots},
    }
    print(table(result))
    if not arguments.quick and arguments.slots == list(SHAPES):
        (RESULTS / "width.json").write_text(json.dumps(result, indent=1) + "\n")
        put_between(PAGE, BEGIN, END, f"{facts_line(result['machine'])}.\n\n{table(result)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="one round of 5 simulations a slot; leaves nothing")
    parser.add_argument("--dask", nargs=2, metavar=("ADDRESS", "SIMULATIONS"), help="run only plain Dask's program")
    return parser.parse_args()


def run_dask(address: str, simulations: str) -> dict:
    """Run the simulations as one future each; return the seconds and the client's CPU time."""
    with Client(address, set_as_default=False) as client:
        began, cpu_s = time.perf_counter(), time.process_time()
        futures = [client.submit(asleep.run, {"seconds": SECONDS}, n, pure=False) for n in range(int(simulations))]
        n_done = 0
        for future in (coming := as_completed(futures, with_results=False)):
            future.result()
            future.release()
            n_done += 1
        del coming, futures
        return {
            "seconds": time.perf_counter() - began,
            "runner_cpu_seconds": time.process_time() - cpu_s,
            "simulations": n_done,
        }


def measure(slots: int, rounds: int, per_slot: int) -> list[dict]:
    """Run each program once a round on a cluster of this many slots; return the figures of each by name."""
    with lab() as place, wide_cluster(place, *SHAPES[slots]) as address:
        programs = {
            "dask": lambda: dask(address, slots * per_slot),
            "mops, fused": lambda: mops(place, slots * per_slot, 1),
            "mops, in pieces": lambda: mops(place, slots * per_slot, IN_PIECES),
        }
        found = []
        for n in range(rounds):
            names = list(programs)
            first = n % len(names)
            figures = {name: programs[name]() for name in (*names[first:], *names[:first])}
            found.append({name: figures[name] for name in names})
            rates = ", ".join(f"{name} {figures[name]['seconds']:.1f} s" for name in names)
            say(f"{slots} slots, round {n + 1} of {rounds}: {rates}")
    return found


@contextmanager
def wide_cluster(place: Lab, n_workers: int, threads: int) -> Iterator[str]:
    """Start a scheduler and workers; yield the address."""
    folder = place.folder / "dask"
    folder.mkdir()
    paths = os.pathsep.join([environment()["PYTHONPATH"], str(BENCH / "models")])
    cluster = DaskProcesses(folder, env={"PYTHONPATH": paths})
    try:
        cluster.start_scheduler()
        for _ in range(n_workers):
            cluster.add_worker(threads=threads)
        cluster.await_workers()
        place.env["MODELOPS_SCHEDULER"] = cluster.address
        yield cluster.address
    finally:
        cluster.end()


def dask(address: str, simulations: int) -> dict:
    line = [sys.executable, __file__, "--dask", address, str(simulations)]
    return json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True, env=environment()).stdout)


def mops(place: Lab, simulations: int, replicates: int) -> dict:
    """Run the simulations as a job; return the seconds and the runner's CPU time."""
    sets = [{"seconds": SECONDS, "n": n} for n in range(simulations // replicates)]
    path = place.study("asleep:run", sets, replicates)
    figures, said = place.job(path)
    if figures.get("state") != "succeeded" or figures["rows"] != len(sets) * replicates:
        raise SystemExit(f"{figures}\n{Path(said).read_text()}")
    return figures | {"simulations": figures["rows"]}


def table(result: dict) -> str:
    """Return the figures as Markdown: medians over the rounds."""
    return "\n".join([HEAD, *(row(int(s), rounds, n) for s, rounds in result["rounds"].items() for n in rounds[0])])


def row(slots: int, rounds: list[dict], name: str) -> str:
    seconds = [figures[name]["seconds"] for figures in rounds]
    simulations = rounds[0][name]["simulations"]
    ratios = [figures[name]["seconds"] / figures["dask"]["seconds"] for figures in rounds]
    cpu_ms = 1_000 * median(figures[name]["runner_cpu_seconds"] for figures in rounds) / simulations
    over = median(seconds) / (simulations * SECONDS / slots)
    return (
        f"| {slots} | {name} | {median(seconds):.1f} | {over:.2f} | {median(ratios):.2f} "
        f"| {min(ratios):.2f} to {max(ratios):.2f} | {cpu_ms:.2f} |"
    )


if __name__ == "__main__":
    main()
