"""Measure the share of slot time in which a simulation runs: `python bench/busy.py`.

The model sleeps, so that more slots than processors can be measured. It notes when each simulation begins and ends.

- *busy*: the sum of all simulations, divided by the slots and by the time from the first begin to the last end. The
  start of the job is left out.
- *over ideal*: the time from the first begin to the last end, divided by the ideal. That is the sum divided by the
  slots, or the longest simulation if it takes longer than that.

Each case runs on this machine, and on a Dask cluster whose workers share it. Writes `bench/results/busy.json` and the
table in `docs/internals/throughput.md`; with `--quick` it prints the table of one round and writes nothing.
"""

import argparse
import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from limits_lab import Lab, lab
from throughput import RESULTS, machine, say
from throughput_report import PAGE, facts_line, put_between
from width import wide_cluster

ROUNDS, EMBEDDED_SLOTS, CLUSTER_SLOTS = 3, 4, 16
BEGIN, END = "<!-- table: begin (bench/busy.py writes it) -->", "<!-- table: end (bench/busy.py) -->"
HEAD = "| case | slots | busy | least and most | over ideal |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Case:
    """Simulations of one job: the seconds of each set, its replicates, and how many sets fail, which come first."""

    name: str
    seconds: list[float]
    replicates: int = 1
    n_failing: int = 0


def cases(slots: int) -> list[Case]:
    skewed = [0.2] * 95 * slots + [2.0] * 5 * slots
    random.Random(1).shuffle(skewed)
    return [
        Case("as many simulations as slots, of 6 s", [6.0] * slots),
        Case("three times as many, of 2 s", [2.0] * 3 * slots),
        Case("1 of 20 takes ten times as long (0.2 s, 2 s)", skewed),
        Case("the first half fails, 0.5 s", [0.5] * 16 * slots, n_failing=8 * slots),
        Case("3 sets of 10 simulations for each slot, 0.3 s", [0.3] * 3, replicates=10 * slots),
    ]


def main() -> None:
    arguments = parse_arguments()
    rounds = 1 if arguments.quick else ROUNDS
    found: dict[str, list[dict]] = {"this machine": [], "Dask": []}
    with lab() as place:
        found["this machine"] = measure(place, EMBEDDED_SLOTS, rounds, SLOTS=EMBEDDED_SLOTS)
    with lab() as place, wide_cluster(place, 4, 4):
        found["Dask"] = measure(place, CLUSTER_SLOTS, rounds)
    print(table(found))
    if not arguments.quick:
        facts = machine()
        (RESULTS / "busy.json").write_text(json.dumps({"machine": facts} | found, indent=1) + "\n")
        put_between(PAGE, BEGIN, END, f"{facts_line(facts)}.\n\n{table(found)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round; leaves nothing")
    return parser.parse_args()


def measure(place: Lab, slots: int, rounds: int, **settings: object) -> list[dict]:
    """Run each case once a round; return its figures."""
    measured = []
    for case in cases(slots):
        shares, over = zip(*(run(place, case, slots, **settings) for _ in range(rounds)), strict=True)
        say(f"{slots} slots, {case.name}: busy {', '.join(f'{share:.3f}' for share in shares)}")
        measured.append({"case": case.name, "slots": slots, "busy": shares, "over_ideal": over})
    return measured


def run(place: Lab, case: Case, slots: int, **settings: object) -> tuple[float, float]:
    """Run a case as a job; return the busy share, and its time as a multiple of the ideal."""
    log = place.folder / f"log-{place.studies}"
    log.touch()
    sets = [
        {"seconds": seconds, "log": str(log), "fails": n < case.n_failing, "n": n}
        for n, seconds in enumerate(case.seconds)
    ]
    # Without the limit, a job ends when its first simulations have all failed alike.
    figures, said = place.job(place.study("busy:run", sets, case.replicates), MAX_FAILURES="100%", **settings)
    times = list(struct.iter_unpack("dd", log.read_bytes()))
    if len(times) != len(sets) * case.replicates or figures["state"] not in ("succeeded", "partial"):
        raise SystemExit(f"{case.name}: {len(times)} simulations, {figures}\n{Path(said).read_text()}")
    took = max(ended for _, ended in times) - min(began for began, _ in times)
    each = [ended - began for began, ended in times]
    return sum(each) / (slots * took), took / max(sum(each) / slots, max(each))


def table(found: dict[str, list[dict]]) -> str:
    """Return the figures as Markdown: medians over the rounds."""
    rows = [
        f"| {row['case']} | {row['slots']}, {where} | {median(row['busy']):.3f} "
        f"| {min(row['busy']):.3f} to {max(row['busy']):.3f} | {median(row['over_ideal']):.3f} |"
        for where, measured in found.items()
        for row in measured
    ]
    return "\n".join([HEAD, *rows])


if __name__ == "__main__":
    main()
