"""Measure what each trick in the code gains: `python bench/tricks.py`.

A patch in `bench/tricks/` takes one trick out of a copy of the package. A line above the diff (`case: NAME`) says which
case the trick is for. In each round the code as it is and each patched copy run once, in turn (A B C, B C A, ...), so
that a slow minute of the machine affects all of them.

`--patch FILE --case NAME` measures patches that are not kept; several patches of one case share the rounds. Prints
medians and the gain: by how much less the code takes than the patched copy, as the median over the rounds, with the
least and the most. Without a patch (`--patch /dev/null`) it prints the noise. docs/internals/tricks.md has the
verdicts.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import throughput
from commands import taken
from limits_lab import ONE_JOB, dask_cluster, lab, memory_of
from memory import SAMPLE_S
from throughput import BENCH, LOADS, Load, say
from tree_memory import unreclaimable_bytes

PATCHES = BENCH / "tricks"
RUNNER = BENCH.parent / "runner"
MIB = 1 << 20
ROUNDS = 5

UNITS = dict.fromkeys(("seconds", "start-up", "CPU", "runner's CPU"), "s") | {"child's CPU": "us"}
"""Of figures; those of all others are MiB of memory."""

Figures = dict[str, float]
"""What one run took, by name."""


def main() -> None:
    arguments = parse_arguments()
    by_case: dict[str, list[Path]] = defaultdict(list)
    for patch in arguments.patch or sorted(PATCHES.glob("*.patch")):
        by_case[arguments.case or case_of(patch)].append(patch)
    for case, patches in by_case.items():
        print(table(case, measure(case, patches, arguments.rounds)), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patch", type=Path, action="append", help="a trick to take out; may be given several times")
    parser.add_argument("--case", choices=CASES, help="what to run; without it the patch says so")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser.parse_args()


def case_of(patch: Path) -> str:
    """Return the case that a line above the diff names."""
    found = [line.partition(":")[2].strip() for line in patch.read_text().splitlines() if line.startswith("case:")]
    if len(found) != 1 or found[0] not in CASES:
        sys.exit(f"{patch}: write one line 'case: NAME' above the diff, with one of: {'; '.join(CASES)}")
    return found[0]


def measure(case: str, patches: list[Path], rounds: int) -> dict[str, list[Figures]]:
    """Run the case with the code as it is and with each patch; return the figures of each by name, round by round."""
    with tempfile.TemporaryDirectory(prefix="mops-tricks-") as folder:
        copies = {"as it is": package(Path(folder) / "0", None)}
        copies |= {patch.stem: package(Path(folder) / str(n), patch) for n, patch in enumerate(patches, 1)}
        found: dict[str, list[Figures]] = {name: [] for name in copies}
        names = list(copies)
        for n in range(rounds):
            first = n % len(names)
            for name in (*names[first:], *names[:first]):
                with imported_from(copies[name]):
                    found[name].append(CASES[case]())
            latest = ", ".join(f"{name} {runs[-1]['seconds']:.2f} s" for name, runs in found.items())
            say(f"{case}, round {n + 1} of {rounds}: {latest}")
    return found


def package(folder: Path, patch: Path | None) -> Path:
    """Copy the package and apply a patch to the copy; return the copy's folder for PYTHONPATH."""
    copy = folder / "runner"
    shutil.copytree(RUNNER, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    if patch is not None and patch.read_bytes():
        command = ["git", "apply", "--unidiff-zero", str(patch.resolve())]
        # In a repository around the copy, git would silently skip the patch.
        subprocess.run(
            command, cwd=folder, check=True, env=os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
        )
    return copy


@contextlib.contextmanager
def imported_from(copy: Path) -> Iterator[None]:
    """Let the processes that the body starts import mops from a copy of the package."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(copy)
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def cpu_seconds() -> float:
    """Return the CPU time of all processes that have ended and were waited for, and of those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def job(load: Load) -> Figures:
    """Run a load of bench/throughput.py."""
    before = cpu_seconds()
    figures = throughput.measure_arguments("mops", load.arguments("mops"))
    return of_job(figures, cpu_seconds() - before)


def of_job(figures: dict, cpu_s: float) -> Figures:
    found = {
        "seconds": figures["seconds"],
        "start-up": figures["start_up_seconds"],
        "CPU": cpu_s,
        "runner": figures["peak_root_bytes"] / MIB,
        "tree": figures["peak_bytes"] / MIB,
    }
    if "runner_cpu_seconds" in figures:
        found["runner's CPU"] = figures["runner_cpu_seconds"]
    return found


def one_child(model: str, *options: str) -> Figures:
    """Run bench/one_child.py; the times are those of one simulation, the CPU time in microseconds."""
    line = [sys.executable, str(BENCH / "one_child.py"), "--model", model, *options]
    ran = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, env=throughput.environment())
    figures = json.loads(ran.stdout)
    return {"seconds": figures["us"] / 1e6, "child's CPU": figures["cpu_us"]}


def form(name: str, sets: int = 4_000) -> Figures:
    """Run the model of bench/models/forms.py that returns its results in this form, five replicates of each set."""
    with lab() as place:
        study = place.study(f"forms:{name}", [parameters(n, 0, 365) for n in range(sets)], replicates=5)
        before = cpu_seconds()
        figures, _ = throughput.run([*ONE_JOB, str(study), "--storage", str(place.folder / "storage")])
    if figures["state"] != "succeeded":
        sys.exit(str(figures))
    return of_job(figures, cpu_seconds() - before)


def parameters(n: int, ms: float, rows: int) -> dict:
    """Return the n-th parameter set of the benchmark's model."""
    return {"beta": 0.2 + n / 1_000_000, "gamma": 0.1, "ms": ms, "rows": rows}


def memory(arguments: list[str]) -> Figures:
    """Run a job as bench/memory.py does, which samples often and counts only memory that the kernel cannot reclaim."""
    before = cpu_seconds()
    figures, _ = throughput.measure_memory("mops", arguments, SAMPLE_S, unreclaimable_bytes)
    return of_job(figures, cpu_seconds() - before)


def external(ms: float, sets: int, replicates: int, rows: int) -> Figures:
    """Run a job on a scheduler and a worker of two threads, each in a separate process."""
    with lab() as place, dask_cluster(place, "--memory-limit", "4GiB") as cluster:
        cluster.await_workers()
        betas = [0.2 + n / 1_000_000 for n in range(sets)]
        path = place.study(
            "sir:simulate", [{"beta": b, "gamma": 0.1, "ms": ms, "rows": rows} for b in betas], replicates
        )
        with memory_of(cluster.workers[0].pid, cluster.scheduler.pid) as (worker, scheduler):
            figures, said = place.job(path)
        if figures.get("state") != "succeeded" or figures["rows"] != sets * replicates * rows:
            sys.exit(f"{figures}\n{said.read_text()}")
    return {
        "seconds": figures["seconds"],
        "worker": worker.peak_root_bytes / MIB,
        "worker's tree": worker.peak_bytes / MIB,
        "scheduler": scheduler.peak_bytes / MIB,
    }


def command(*arguments: str) -> Figures:
    """Run `mops` in an empty folder; return only its CPU time, which is the cost of the command."""
    with tempfile.TemporaryDirectory() as folder:
        return of_command(folder, *arguments)


def of_command(folder: str, *arguments: str) -> Figures:
    program = "from mops.cli.start import main; main()"
    cpu_s, kib = taken([sys.executable, "-c", program, *arguments], folder)
    return {"seconds": cpu_s, "runner": kib / 1024}


def check(write: Callable[[Path, int], str | list]) -> Figures:
    """Run `mops study check` with 100,000 parameter sets of 4 parameters."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "mops.toml").touch()
        shutil.copy(BENCH / "models" / "one_row.py", project)
        sets = write(project, 100_000)
        (project / "study.json").write_text(json.dumps({"model": "one_row:run", "parameter_sets": sets}))
        return of_command(folder, "study", "check", "study.json")


def columns(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: rng.random(n) for name in ("beta", "gamma", "sigma")} | {"n": np.arange(n) % 100}


def as_list(_: Path, n: int) -> list[dict]:
    """Return the sets as a list in the study."""
    return pa.table(columns(n)).to_pylist()


def as_csv(folder: Path, n: int) -> str:
    """Write the sets as a CSV file next to the study."""
    pa.csv.write_csv(pa.table(columns(n)), folder / "sets.csv")
    return "sets.csv"


def as_csv_of_a_grid(folder: Path, n: int) -> str:
    """Write a grid of sets, whose columns have few values, one of them texts, as a CSV file next to the study."""
    grid = {name: np.arange(n) // 20**power % 20 / 20 for power, name in enumerate(("beta", "gamma", "sigma"))}
    policies = np.array(["none", "masks", "schools closed"])[np.arange(n) % 3]
    pa.csv.write_csv(pa.table(grid | {"n": np.arange(n) // 20**3, "policy": policies}), folder / "sets.csv")
    return "sets.csv"


def as_parquet(folder: Path, n: int) -> str:
    """Write the sets as a Parquet file next to the study."""
    pq.write_table(pa.table(columns(n)), folder / "sets.parquet")
    return "sets.parquet"


CASES: dict[str, Callable[[], Figures]] = {
    **{name: lambda load=load: job(load) for name, load in LOADS.items()},
    **{f"0 ms, {name}": lambda name=name: form(name) for name in ("arrow", "lists", "changing")},
    "one child": lambda: one_child("sir:simulate"),
    "one child, no targets": lambda: one_child("sir:simulate", "--no-targets", "--sets", "1000"),
    "one child, arrow": lambda: one_child("forms:arrow"),
    "one child, lists": lambda: one_child("forms:lists"),
    "memory, 2,000 sets of 64 KiB": lambda: memory(["--sets", "2000", "--ms", "0", "--rows", "2048"]),
    "memory, 20,000 sets of 1 KiB": lambda: memory(
        ["--sets", "20000", "--ms", "0", "--rows", "32", "--replicates", "1"]
    ),
    "external, 0 ms": lambda: external(ms=0, sets=4_000, replicates=5, rows=365),
    "external, 64 KiB": lambda: external(ms=0, sets=2_000, replicates=5, rows=2_048),
    "mops jobs status": lambda: command("jobs", "status", "missing"),
    "mops --version": lambda: command("--version"),
    "check of a list": lambda: check(as_list),
    "check of CSV": lambda: check(as_csv),
    "check of a grid in CSV": lambda: check(as_csv_of_a_grid),
    "check of Parquet": lambda: check(as_parquet),
}


def table(case: str, found: dict[str, list[Figures]]) -> str:
    """Return the medians, and the gain of the code over each patched copy, as a Markdown table."""
    base = found.pop("as it is")
    units = {name: UNITS.get(name, "MiB") for name in base[0]}
    lines = [f"{case}, {len(base)} rounds", "", "| without | figure | without | with | gain | least to most |"]
    lines.append("|---" * 6 + "|")
    for patch, runs in found.items():
        for name, unit in units.items():
            without, with_ = ([run[name] for run in some] for some in (runs, base))
            gains = [100 * (1 - b / a) for a, b in zip(without, with_, strict=True) if a]
            lines.append(
                f"| {patch} | {name}, {unit} | {median(without):.2f} | {median(with_):.2f} "
                f"| {median(gains):.1f} % | {min(gains):.1f} to {max(gains):.1f} % |"
            )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
