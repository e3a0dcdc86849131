"""Measure mops on many slots against plain Dask: `python bench/width.py --slots 16 80 160`.

A real scheduler and real worker processes share this machine's processors. The model sleeps, so that the processors are
free for Dask and the runner. Each program runs in a separate process:

- `dask`: a future for each simulation and `as_completed`, as most users write it.
- `mops, fused`: parameter sets with one replicate. mops may put several into one task.
- `mops, in pieces`: parameter sets with 40 replicates. A set takes longer than a task, so that its replicates run as
  several tasks.

In each round the programs run in rotating order. The time starts when the program is connected, and ends when all
results have come. The slots are busy all the time in the ideal run. *middle* is the time from the first tenth of the
results to the ninth: it leaves out the start of processes and the end of the job.

With `--simulated` a task of mops pauses in its worker (`simulated_worker.py`): there are no child processes, which
would need more processors than a small machine has.

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

SHAPES = {16: (4, 4), 80: (10, 8), 160: (20, 8), 320: (40, 8), 1_000: (10, 100)}
"""Workers and threads of each, by slots."""

REAL = (16, 80, 160)  # 40 idle workers of 320 slots take 1.5 processors: two do not show that width
SIMULATED = (160, 320, 1_000)
ROUNDS, PER_SLOT, SECONDS = 3, 30, 1.0
IN_PIECES = 40
BEGIN, END = "<!-- table: begin (bench/width.py writes it) -->", "<!-- table: end (bench/width.py) -->"

HEAD = """\
| slots | program | seconds | times the ideal | times plain Dask | least and most | middle, times plain Dask | \
CPU for a simulation, ms |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    arguments = parse_arguments()
    if arguments.dask:
        print(json.dumps(run_dask(*arguments.dask)))
        return
    rounds = 1 if arguments.quick else arguments.rounds
    per_slot = 5 if arguments.quick else PER_SLOT
    all_slots = SIMULATED if arguments.simulated else REAL
    slots = arguments.slots or all_slots
    measured = {n: measure(n, rounds, per_slot, simulated=arguments.simulated) for n in slots}
    print(table(measured))
    if not arguments.quick and tuple(slots) == all_slots:
        keep("simulated" if arguments.simulated else "real", measured)


def keep(how: str, measured: dict[int, list[dict]]) -> None:
    """Write the figures of real or simulated slots, and the tables of all figures that exist."""
    path = RESULTS / "width.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    result |= {"machine": machine(), how: measured}
    path.write_text(json.dumps(result, indent=1) + "\n")
    tables = [f"*{how} slots*\n\n{table(result[how])}" for how in ("real", "simulated") if how in result]
    put_between(PAGE, BEGIN, END, "\n\n".join([f"{facts_line(result['machine'])}.", *tables]))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="one round of 5 simulations a slot; leaves nothing")
    parser.add_argument("--simulated", action="store_true", help="tasks pause in their worker, without child processes")
    parser.add_argument("--dask", nargs=2, metavar=("ADDRESS", "SIMULATIONS"), help="run only plain Dask's program")
    return parser.parse_args()


def run_dask(address: str, simulations: str) -> dict:
    """Run the simulations as one future each; return the seconds and the client's CPU time."""
    with Client(address, set_as_default=False) as client:
        began, cpu_s = time.perf_counter(), time.process_time()
        futures = [client.submit(asleep.run, {"seconds": SECONDS}, n, pure=False) for n in range(int(simulations))]
        times = []
        for future in (coming := as_completed(futures, loop=client.loop)):
            future.result()
            future.release()
            times.append(time.perf_counter())
        del coming, futures
        return {
            "seconds": times[-1] - began,
            "middle_seconds": times[len(times) * 9 // 10] - times[len(times) // 10],
            "runner_cpu_seconds": time.process_time() - cpu_s,
            "simulations": len(times),
        }


def measure(slots: int, rounds: int, per_slot: int, *, simulated: bool) -> list[dict]:
    """Run each program once a round on a cluster of this many slots; return the figures of each by name."""
    options = ("--preload", str(BENCH / "simulated_worker.py")) if simulated else ()
    with lab() as place, wide_cluster(place, *SHAPES[slots], *options) as address:
        simulations = slots * per_slot
        programs = {
            "dask": lambda: dask(address, simulations),
            "mops, fused": lambda: mops(place, simulations, 1),
            "mops, in pieces": lambda: mops(place, simulations, IN_PIECES),
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
def wide_cluster(place: Lab, n_workers: int, threads: int, *options: str) -> Iterator[str]:
    """Start a scheduler and workers; yield the address."""
    folder = place.folder / "dask"
    folder.mkdir()
    paths = os.pathsep.join([environment()["PYTHONPATH"], str(BENCH / "models")])
    cluster = DaskProcesses(folder, env={"PYTHONPATH": paths})
    try:
        cluster.start_scheduler()
        for _ in range(n_workers):
            cluster.add_worker(*options, threads=threads)
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


def table(measured: dict) -> str:
    """Return the figures as Markdown: medians over the rounds."""
    return "\n".join(
        [HEAD, *(row(int(slots), rounds, name) for slots, rounds in measured.items() for name in rounds[0])]
    )


def row(slots: int, rounds: list[dict], name: str) -> str:
    seconds = [figures[name]["seconds"] for figures in rounds]
    simulations = rounds[0][name]["simulations"]
    ratios = [figures[name]["seconds"] / figures["dask"]["seconds"] for figures in rounds]
    middle = median(figures[name]["middle_seconds"] / figures["dask"]["middle_seconds"] for figures in rounds)
    cpu_ms = 1_000 * median(figures[name]["runner_cpu_seconds"] for figures in rounds) / simulations
    over = median(seconds) / (simulations * SECONDS / slots)
    return (
        f"| {slots} | {name} | {median(seconds):.1f} | {over:.2f} | {median(ratios):.2f} "
        f"| {min(ratios):.2f} to {max(ratios):.2f} | {middle:.2f} | {cpu_ms:.2f} |"
    )


if __name__ == "__main__":
    main()
