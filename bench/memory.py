"""Measure peak memory against the number of parameter sets: `python bench/memory.py`.

Each size runs several times, each time in a new process, to show how much of a slope is noise. The benchmark fits two
slopes by least squares. The first is that of the peaks of sizes above 1,000 sets. The second is that of the peaks in
the last nine tenths of a run of the largest size, and shows whether the memory of one process grows.

Writes `bench/results/memory.json`, and in `docs/internals` the tables of `memory.md` and the picture `memory.png`. With
`--quick` (the small sizes once, to see that it works) it prints and writes nothing. `--loads` and `--peers` measure
only these, and keep the figures of the others.
"""

import argparse
import json
from dataclasses import dataclass

from memory_report import tables, write_report
from throughput import PEERS, RESULTS, installed_peers, machine, measure_memory, say
from tree_memory import unreclaimable_bytes

LIBRARIES_UP_TO = 2_000
"""Parameter sets: at 10,000, one of the peers uses 20 GiB."""
MOPS = ("mops", "mops, auto")
QUICK_UP_TO = 1_000
REPEATS = 3
FIGURES = RESULTS / "memory.json"
SAMPLE_S = 0.02
"""With five samples a second, the measured peak was 3 MiB too low for a run of 2 s, and 1 MiB for 10 s."""

WINDOWS = 10


@dataclass(frozen=True)
class Load:
    """Outputs of one size, and the numbers of sets at which the peak is measured."""

    rows: int
    replicates: int
    sizes: tuple[int, ...]

    def arguments(self, sets: int) -> list[str]:
        """Return a peer's command line."""
        return ["--sets", str(sets), "--ms", "0", "--rows", str(self.rows), "--replicates", str(self.replicates)]


LOADS = {
    "64 KiB": Load(rows=2_048, replicates=5, sizes=(200, 1_000, 2_000, 5_000, 10_000)),
    "1 KiB": Load(rows=32, replicates=1, sizes=(1_000, 10_000, 30_000, 100_000)),
}


def main() -> None:
    arguments = parse_arguments()
    up_to = QUICK_UP_TO if arguments.quick else max(max(load.sizes) for load in LOADS.values())
    repeats = 1 if arguments.quick else arguments.repeats
    peers = arguments.peers or installed_peers()
    points = [
        measure(name, peer, sets)
        for name in arguments.loads
        for peer in peers
        for sets in runs(LOADS[name].sizes, up_to if peer in MOPS else min(up_to, LIBRARIES_UP_TO), repeats)
    ]
    if not arguments.quick:
        kept = json.loads(FIGURES.read_text())["points"] if FIGURES.exists() else []
        fresh = {(point["load"], point["peer"]) for point in points}
        points += [point for point in kept if (point["load"], point["peer"]) not in fresh]
    result = {"machine": machine(), "points": sorted(points, key=by_load_and_peer)}
    print(tables(result))
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        FIGURES.write_text(json.dumps(result, indent=1) + "\n")
        write_report(result)


def by_load_and_peer(point: dict) -> tuple[int, int]:
    """Return what puts figures in the order of the tables."""
    return list(LOADS).index(point["load"]), list(PEERS).index(point["peer"])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the small sizes, once; leaves nothing")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs of each size (default %(default)s)")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), help="only these")
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="only these")
    return parser.parse_args()


def runs(sizes: tuple[int, ...], up_to: int, repeats: int) -> list[int]:
    """Return the sizes to run, in order."""
    return [sets for sets in sizes if sets <= up_to] * repeats


def measure(name: str, peer: str, sets: int) -> dict:
    """Run one peer once; return its peaks in bytes."""
    figures, memory = measure_memory(peer, LOADS[name].arguments(sets), SAMPLE_S, unreclaimable_bytes)
    point = {"load": name, "peer": peer, "sets": sets}
    point |= {key: figures[key] for key in ("peak_bytes", "peak_root_bytes", "seconds")}
    point["windows"] = windows(memory.series, figures["start_up_seconds"], figures["total_seconds"])
    tree, runner = (point[key] >> 20 for key in ("peak_bytes", "peak_root_bytes"))
    say(f"{name}, {peer}, {sets:,} sets: {tree} MiB, of the first process {runner}, {point['seconds']:.0f} s")
    return point


def windows(series: list[tuple[float, int, int]], since_s: float, until_s: float) -> list[list[int]]:
    """Return the peaks (bytes) of the tree and of the first process in each tenth of the run except the first.

    The rate is even, so a tenth of the time is a tenth of the sets. The first tenth holds the program's start.
    """
    length_s = (until_s - since_s) / WINDOWS
    found = []
    for n in range(1, WINDOWS):
        inside = [sizes for at, *sizes in series if n <= (at - since_s) / length_s < n + 1]
        if inside:
            found.append([max(tree for tree, _ in inside), max(root for _, root in inside)])
    return found


if __name__ == "__main__":
    main()
