"""Run one study with `mops.submit` and print a line of figures: `python bench/one_job.py STUDY --storage FOLDER`.

Settings come from the environment. If the job fails, the line has its state and its failures. A separate process reads
the results, so that reading them does not count as memory of the run.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mops
from mops.errors import MopsError

PROJECT = Path(__file__).resolve().parent / "models"


def main() -> None:
    arguments = parse_arguments()
    if arguments.read:
        print(json.dumps(results(arguments.read, arguments.storage)))
        return
    began = time.perf_counter()
    marks: list[tuple[float, float, str]] = []
    progress: list[tuple[float, int]] = []
    error = ""
    try:
        mops.submit(
            arguments.study,
            project=PROJECT,
            storage=arguments.storage,
            on_start=lambda job, _: marks.append((time.perf_counter(), time.process_time(), job.name)),
            on_progress=lambda snapshot: progress.append((time.perf_counter(), snapshot.finished.simulations)),
        )
    except MopsError as raised:
        error = str(raised)
    ended, ended_cpu_s = time.perf_counter(), time.process_time()
    ready, ready_cpu_s, name = marks[0] if marks else (ended, ended_cpu_s, "")
    figures = {"seconds": ended - ready, "start_up_seconds": ready - began, "error": error, "shm_bytes": shm_bytes()}
    figures["runner_cpu_seconds"] = ended_cpu_s - ready_cpu_s
    figures["middle_seconds"] = middle_seconds(progress)
    print(json.dumps(figures | (read_elsewhere(arguments, name) if name else {})), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="?")
    parser.add_argument("--storage", required=True)
    parser.add_argument("--read", metavar="JOB", help="run nothing: print what this job has left")
    return parser.parse_args()


def middle_seconds(progress: list[tuple[float, int]]) -> float:
    """Return the seconds from the first tenth of the results to the ninth; 0 without results."""
    total = progress[-1][1] if progress else 0
    times = [next(at for at, n in progress if n >= share * total) for share in (0.1, 0.9)] if total else [0.0, 0.0]
    return times[1] - times[0]


def read_elsewhere(arguments: argparse.Namespace, name: str) -> dict:
    line = [sys.executable, __file__, "--storage", arguments.storage, "--read", name]
    return json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)


def results(name: str, storage: str) -> dict:
    """Return a job's state, its rows, its failures by reason, and the processes that its rows name."""
    job = mops.open_job(name, storage)
    rows = {output: len(job.outputs(output)) for output in job.output_names()}
    failures = job.failures().to_arrow()
    return {
        "state": job.status().state,
        "rows": sum(rows.values()),
        "failures": dict(zip(*counted(failures.column("reason").to_pylist()), strict=True)),
        "failure": str(failures.column("message")[0]) if len(failures) else "",
        "processes": processes(job, list(rows)),
    }


def shm_bytes() -> int:
    """Return how large the memory file system is that many programs count on."""
    shm = os.statvfs("/dev/shm")
    return shm.f_blocks * shm.f_frsize


def counted(values: list[str]) -> tuple[list[str], list[int]]:
    kinds = sorted(set(values))
    return kinds, [values.count(kind) for kind in kinds]


def processes(job, outputs: list[str]) -> int | None:
    """Return how many processes have given rows, where the model says which one it was."""
    if not outputs or "pid" not in job.outputs(outputs[0]).schema.names:
        return None
    return len(set(job.outputs(outputs[0], columns=["pid"]).to_arrow().column("pid").to_pylist()))


if __name__ == "__main__":
    main()
