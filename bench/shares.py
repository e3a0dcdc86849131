"""Measure the share of a cluster that a short job gets while a long job runs: `python bench/shares.py`.

One Dask worker of two threads with its nanny, both in a cgroup of 1 GiB, and jobs from real runners: the short job
alone, then while the long job runs, which starts before it and ends after it. Needs Linux, and root for the cgroup.

Writes the table to `docs/internals/shares.md`. With `--quick` (one round, short jobs) it prints and writes nothing.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from limits_lab import GIB, MIB, Lab, cgroup_memory, cgroup_of, dask_cluster, lab
from throughput import BENCH, machine, say
from throughput_report import BEGIN, END, facts_line, put_between

PAGE = BENCH.parent / "docs" / "internals" / "shares.md"
ROUNDS = 3
PRIORITIES = {"low": 0.2, "normal": 0.5, "high": 0.8}
"""The short job's share while a job of normal priority runs (docs/internals/shares.md)."""
MS, ROWS, REPLICATES = 50, 2_048, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, short jobs; leaves nothing")
    quick = parser.parse_args().quick
    sets = (10, 120) if quick else (20, 300)
    rounds = [measure(*sets, priority) for _ in range(1 if quick else ROUNDS) for priority in PRIORITIES]
    text = f"{facts_line(machine())}.\n\n{table(rounds, *sets)}"
    print(text)
    if not quick:
        put_between(PAGE, BEGIN.replace("throughput.py", "shares.py"), END, text)


def measure(short_sets: int, long_sets: int, priority: str) -> dict:
    """Run the short job alone, and while the long job runs; return seconds and the worker's peaks (bytes)."""
    with (
        lab() as place,
        cgroup_of(GIB) as cgroup,
        dask_cluster(place, "--nanny", "--memory-limit", "1GiB", cgroup=cgroup),
    ):
        short, other, long = (study(place, sets) for sets in (short_sets, short_sets, long_sets))
        with cgroup_memory(cgroup) as by_itself:
            alone = succeeded(place, short, short_sets)
        with cgroup_memory(cgroup) as together, ThreadPoolExecutor(1) as runner:
            whole = runner.submit(succeeded, place, long, long_sets)
            time.sleep(alone / 2 + 5)  # it is at work
            beside = succeeded(place, other, short_sets, PRIORITY=priority)
            if whole.done():
                raise SystemExit("the long job was over first")
            long_s = whole.result()
        figures = {
            "priority": priority,
            "alone_s": alone,
            "beside_s": beside,
            "long_s": long_s,
            "kills": cgroup.kills(),
        }
    peaks = {"alone_bytes": by_itself.peak_bytes, "together_bytes": together.peak_bytes}
    say(str(figures | {name: size // MIB for name, size in peaks.items()}))
    return figures | peaks


def study(place: Lab, sets: int):
    beta = [0.2 + n / 1_000 + place.studies / 10 for n in range(sets)]
    return place.study("sir:simulate", [{"beta": b, "gamma": 0.1, "ms": MS, "rows": ROWS} for b in beta], REPLICATES)


def succeeded(place: Lab, path, sets: int, **settings: object) -> float:
    """Run a job; return its seconds, if every row is there."""
    figures, said = place.job(path, **settings)
    if figures["state"] != "succeeded" or figures["rows"] != sets * REPLICATES * ROWS:
        raise SystemExit(f"{figures}\n{said.read_text()}")
    return figures["seconds"]


def table(rounds: list[dict], short_sets: int, long_sets: int) -> str:
    """Return the figures as Markdown: medians, least and most."""
    head = (
        f"| the short job ({short_sets} sets) has | its share | alone, s | with a job of {long_sets} sets, s | "
        "times as long | by its share | least and most | peak alone, MiB | of both, MiB | killed by the kernel |"
    )
    return "\n".join(
        [head, "|---" * 10 + "|", *(row([r for r in rounds if r["priority"] == p], p) for p in PRIORITIES)]
    )


def row(runs: list[dict], priority: str) -> str:
    longer = [run["beside_s"] / run["alone_s"] for run in runs]
    alone, beside, first, both = (
        median(run[key] for run in runs) for key in ("alone_s", "beside_s", "alone_bytes", "together_bytes")
    )
    share = PRIORITIES[priority]
    return (
        f"| {priority} | {share:.0%} | {alone:.1f} | {beside:.1f} | {median(longer):.1f} | {1 / share:.1f} | "
        f"{min(longer):.1f} to {max(longer):.1f} | {first / MIB:,.0f} | {both / MIB:,.0f} | "
        f"{sum(run['kills'] for run in runs)} |"
    )


if __name__ == "__main__":
    main()
