"""Measure how long short commands take, and a study of two parameter sets: `python bench/start.py`.

In each round every command runs once, in rotating order. `--before FOLDER` names the folder `runner` of another version
of mops, whose commands run in the same rounds. Writes the table of `docs/internals/start-up.md`; with `--quick` (one
round) or without the peers' libraries it prints the table only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from memory_report import put_between
from throughput_report import DOCS

RUNNER = Path(__file__).resolve().parent.parent / "runner"
PAGE = DOCS / "internals" / "start-up.md"
BEGIN, END = "<!-- table: begin (bench/start.py writes it) -->", "<!-- table: end -->"

STUDY = {"model": "model.py:run", "parameter_sets": [{"x": 1}, {"x": 2}]}
MODEL = """
def run(params, seed):
    return {"y": [params["x"] + seed % 7]}
"""
PEER = """
import sys
import pyarrow as pa
import pyarrow.parquet as pq
from model import run

def simulate(x):
    return pa.table(run({"x": x}, 1))

if __name__ == "__main__":
    POOL
    pq.write_table(pa.concat_tables(tables), sys.argv[1])
"""
POOLS = {
    "joblib": "from joblib import Parallel, delayed\n"
    "    tables = Parallel(n_jobs=2)(delayed(simulate)(x) for x in (1, 2))",
    "concurrent.futures": "from concurrent.futures import ProcessPoolExecutor\n"
    "    with ProcessPoolExecutor(2) as pool:\n        tables = list(pool.map(simulate, (1, 2)))",
}
COMMANDS = {
    "mops --help": ["--help"],
    "mops jobs --help": ["jobs", "--help"],
    "mops jobs list": ["jobs", "list"],
    "mops jobs status JOB": ["jobs", "status", "there"],
    "mops jobs submit, two parameter sets": ["jobs", "submit", "study.json", "--name", "new"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--before", type=Path, help="the folder `runner` of another version")
    parser.add_argument("--quick", action="store_true", help="one round; leaves nothing")
    arguments = parser.parse_args()
    versions = {"now": RUNNER} | ({"before": arguments.before.resolve()} if arguments.before else {})
    with tempfile.TemporaryDirectory() as folder:
        lines = command_lines(Path(folder), versions)
        taken = measured(lines, Path(folder), 1 if arguments.quick else arguments.rounds)
    text = table(taken, list(versions))
    print(text)
    if not arguments.quick and len(POOLS) == sum(name in POOLS for name, _ in taken):
        put_between(PAGE, BEGIN, END, text)


def command_lines(folder: Path, versions: dict[str, Path]) -> dict[tuple[str, str], tuple[list[str], dict[str, str]]]:
    """Write the project, and return the command and the environment of each row and column."""
    (folder / "mops.toml").touch()
    (folder / "model.py").write_text(MODEL)
    (folder / "study.json").write_text(json.dumps(STUDY))
    lines = {}
    for version, runner in versions.items():
        environment = clean_environment() | {"PYTHONPATH": str(runner), "MODELOPS_STORAGE": str(folder / version)}
        mops = [sys.executable, "-m", "mops.cli.start"]
        run([*mops, "jobs", "submit", "study.json", "--name", "there"], folder, environment)
        lines |= {(name, version): ([*mops, *command], environment) for name, command in COMMANDS.items()}
    for name, pool in POOLS.items():
        if find_spec(name):
            program = folder / f"peer_{name.replace('.', '_')}.py"
            program.write_text(PEER.replace("POOL", pool))
            lines[name, "now"] = ([sys.executable, str(program), str(folder / "out.parquet")], clean_environment())
    return lines


def clean_environment() -> dict[str, str]:
    """Return this environment without settings, because defaults are measured."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MODELOPS_")}


def measured(
    lines: dict[tuple[str, str], tuple[list[str], dict[str, str]]], folder: Path, rounds: int
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return wall time and CPU time (s) of each command in each round."""
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in lines}
    keys = list(lines)
    for n in range(rounds):
        for key in (*keys[n % len(keys) :], *keys[: n % len(keys)]):
            command, environment = lines[key]
            new = Path(environment.get("MODELOPS_STORAGE", str(folder / "none"))) / "jobs" / "new"
            if new.exists():
                new.rename(folder / f"job-{time.monotonic_ns()}")
            taken[key].append(run(command, folder, environment))
    return taken


def run(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Run a command to its end; return its wall time and its CPU time (s), with that of its child processes."""
    started = time.perf_counter()
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        _, stderr = "", process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - started
    if process.returncode:
        sys.exit(f"exit code {process.returncode}: {' '.join(command)}\n{stderr}")
    return wall_s, usage.ru_utime + usage.ru_stime


def table(taken: dict[tuple[str, str], list[tuple[float, float]]], versions: list[str]) -> str:
    """Return the medians as a Markdown table."""
    columns = [f"{figure}, {version}" for figure in ("wall", "CPU") for version in versions]
    rows = [f"| command | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for name in dict.fromkeys(name for name, _ in taken):
        cells = [
            f"{statistics.median(run[i] for run in taken[name, version]):.2f} s" if (name, version) in taken else ""
            for i in (0, 1)
            for version in versions
        ]
        rows.append(f"| {name if name in POOLS else f'`{name}`'} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
