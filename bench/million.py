"""Memory and time of a large study, killed and resumed: `python bench/million.py`.

For each size: sets in a Parquet file (4 parameters, one row of output each), `mops jobs submit`, SIGKILL after a
while, `status`, `resume`, SIGKILL after a while, `status`. Each step is a new process, as a user starts it. The
benchmark samples the memory of the runner alone and of its whole process tree.

Writes `bench/results/million.json` and prints the table of `docs/internals/large-studies.md`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from throughput import BENCH, RESULTS, machine
from throughput_report import facts_line
from tree_memory import pss_bytes

MOPS = Path(sys.executable).with_name("mops")
INTERVAL_S = 0.2


@dataclass
class Step:
    """The figures of a step: time (s), peaks of the runner and of its tree, and the runner at the end (PSS, MiB)."""

    sets: int
    name: str
    seconds: float
    cpu_s: float
    runner_mib: float
    tree_mib: float
    end_mib: float
    committed: int | None = None


class Sampler(threading.Thread):
    """Keeps the peaks of a process and of its tree since the last `take`."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self._root = psutil.Process(pid)
        self._runner = self._tree = self._last = 0
        self._cpu_s = self._cpu_taken_s = 0.0
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            try:
                children = self._root.children(recursive=True)
                self._cpu_s = sum(self._root.cpu_times()[:2])
            except psutil.NoSuchProcess:
                return
            self._last = runner = pss_bytes(self._root) or self._last
            self._runner = max(self._runner, runner)
            self._tree = max(self._tree, runner + sum(map(pss_bytes, children)))

    def take(self) -> tuple[float, float, float, float]:
        found = self._cpu_s - self._cpu_taken_s, self._runner / 2**20, self._tree / 2**20, self._last / 2**20
        self._runner = self._tree = 0
        self._cpu_taken_s = self._cpu_s
        return found

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def main() -> None:
    arguments = parse_arguments()
    steps = []
    for sets in arguments.sets:
        with tempfile.TemporaryDirectory(prefix="mops-million-") as folder:
            steps += measure(Path(folder), sets, arguments.seconds)
    facts = machine()
    print(f"{facts_line(facts)}.\n\n{table(steps)}")
    slope = slopes(steps)
    print(slope)
    result = {"machine": facts, "steps": [asdict(step) for step in steps], "slope": slope}
    (RESULTS / "million.json").write_text(json.dumps(result, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=40, help="how long submit and resume may run")
    return parser.parse_args()


def measure(folder: Path, sets: int, run_s: float) -> list[Step]:
    write_project(folder, sets)
    environment = os.environ | {"MODELOPS_STORAGE": str(folder / "storage"), "XDG_CACHE_HOME": str(folder / "cache")}
    lab = Lab(folder, environment, sets)
    steps = [
        *lab.run_and_kill("submit", ["jobs", "submit", "study.json", "--name", "large"], "results go to", run_s),
        lab.status(),
        *lab.run_and_kill("resume", ["jobs", "resume", "large"], "resumes", run_s),
        lab.status(),
    ]
    return [step for step in steps if step is not None]


def write_project(folder: Path, sets: int) -> None:
    rng = np.random.default_rng(1)
    (folder / "mops.toml").touch()
    (folder / "one_row.py").write_text((BENCH / "models" / "one_row.py").read_text())
    columns = {name: rng.random(sets) for name in ("beta", "gamma", "sigma")} | {"n": np.arange(sets)}
    pq.write_table(pa.table(columns), folder / "sets.parquet")
    (folder / "study.json").write_text(json.dumps({"model": "one_row:run", "parameter_sets": "sets.parquet"}))


@dataclass
class Lab:
    """A project, and the command in it."""

    folder: Path
    environment: dict[str, str]
    sets: int

    def run_and_kill(self, verb: str, arguments: list[str], begun: str, run_s: float) -> list[Step]:
        """Start a runner; measure until it says that the job runs, and then until it is killed."""
        said = self.folder / f"{verb}.txt"
        started = time.perf_counter()
        with said.open("w") as file:
            process = subprocess.Popen([MOPS, *arguments], cwd=self.folder, env=self.environment, stderr=file)
        sampler = Sampler(process.pid)
        sampler.start()
        wait(lambda: begun in said.read_text() or process.poll() is not None)
        ready = time.perf_counter()
        first = Step(self.sets, f"{verb}: until it runs", ready - started, *sampler.take())
        wait(lambda: process.poll() is not None, run_s)
        running = Step(self.sets, f"{verb}: while it runs", time.perf_counter() - ready, *sampler.take())
        sampler.stop()
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        running.committed = self.committed()
        return [first, running]

    def status(self) -> Step:
        started = time.perf_counter()
        process = subprocess.Popen(
            [MOPS, "jobs", "status", "large", "--json"], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE
        )
        sampler = Sampler(process.pid)
        sampler.start()
        process.communicate()
        seconds = time.perf_counter() - started
        sampler.stop()
        return Step(self.sets, "status", seconds, *sampler.take())

    def committed(self) -> int:
        command = [MOPS, "jobs", "status", "large", "--json"]
        ran = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, check=True)
        return int(json.loads(ran.stdout)["groups"])


def wait(over: Callable[[], bool], longest_s: float = 600) -> None:
    end = time.perf_counter() + longest_s
    while time.perf_counter() < end and not over():
        time.sleep(0.05)


def table(steps: list[Step]) -> str:
    head = ("sets", "step", "seconds", "CPU, s", "runner, MiB", "at its end", "tree, MiB", "committed")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for step in steps:
        committed = "" if step.committed is None else f"{step.committed:,}"
        lines.append(
            f"| {step.sets:,} | {step.name} | {step.seconds:.1f} | {step.cpu_s:.1f} | {step.runner_mib:.0f} "
            f"| {step.end_mib:.0f} | {step.tree_mib:.0f} | {committed} |"
        )
    return "\n".join(lines)


def slopes(steps: list[Step]) -> dict[str, float]:
    """Return by how much the runner's peak grows for each 1,000 sets (MiB), from the smallest study to the largest.

    A step is skipped if it had nothing to do because the smaller study had ended.
    """
    sizes = sorted({step.sets for step in steps})
    if len(sizes) < 2:
        return {}
    peaks = {(step.sets, step.name): step.runner_mib for step in steps if step.runner_mib}
    thousands = (sizes[-1] - sizes[0]) / 1000
    names = [name for sets, name in peaks if sets == sizes[0]]
    return {name: (peaks[sizes[-1], name] - peaks[sizes[0], name]) / thousands for name in dict.fromkeys(names)}


if __name__ == "__main__":
    main()
