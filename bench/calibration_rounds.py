"""Measure how long slots wait for slow sets of a calibration: `python bench/calibration_rounds.py`.

The model sleeps for a time that depends on its set: the times have a lognormal distribution (sigma 1: 1 in 20 takes
more than 5 times the median). A Dask scheduler and a worker of 8 threads run the rounds, which overlap unless the
column says 1. Prints, for rounds of several sizes, the share of the slots' time that is idle between the start of the
first simulation and the end of the last, and the seconds between these, as the median of a few seeds.
docs/internals/calibration.md has the table.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

import mops
from mops.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "local" / "system")]

from dask_processes import dask_in  # noqa: E402 - from the folders of the tests

SLOTS = 8
SIGMA = 1.0
OVERLAPS = (1, 0.75, 0.5)
MODEL = """
import json, math, os, statistics, time

def run(params, seed):
    began = time.time()
    scatter = statistics.NormalDist().inv_cdf(min(max(params["rank"], 1e-9), 1 - 1e-9))
    time.sleep(float(os.environ["MEDIAN"]) * math.exp(float(os.environ["SIGMA"]) * scatter))
    with open(os.environ["TIMES"], "a") as file:
        file.write(json.dumps([began, time.time()]) + "\\n")
    return {"y": [scatter]}

def loss(replicates):
    return 0.0
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64], help="the numbers of sets in a round")
    parser.add_argument("--replicates", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="the median time of a simulation")
    arguments = parser.parse_args()
    print("| sets | replicates | " + " | ".join(f"overlap {overlap:g}" for overlap in OVERLAPS) + " |", flush=True)
    for n in arguments.sizes:
        for replicates in arguments.replicates:
            cells = []
            for overlap in OVERLAPS:
                found = [measure(n, replicates, overlap, seed, arguments) for seed in range(arguments.seeds)]
                idle, seconds = (median(values) for values in zip(*found, strict=True))
                cells.append(f"{100 * idle:.0f} %, {seconds:.0f} s")
            print(f"| {n} | {replicates} | " + " | ".join(cells) + " |", flush=True)


def measure(n: int, replicates: int, overlap: float, seed: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """Run a calibration; return the share of the slots' time in which no simulation ran, and its seconds."""
    with tempfile.TemporaryDirectory(prefix="mops-rounds-") as folder:
        project, log = Path(folder) / "project", Path(folder) / "times.txt"
        project.mkdir()
        (project / "mops.toml").touch()
        (project / "model.py").write_text(MODEL)
        with dask_in(Path(folder) / "dask", n_workers=0) as dask:
            dask.add_worker(threads=SLOTS)
            dask.await_workers()
            mops.calibrate(
                {"rank": {"min": 0, "max": 1}},
                model="model:run",
                targets=["model:loss"],
                replicates=replicates,
                name="rounds",
                project=project,
                storage=Path(folder) / "storage",
                n=n,
                rounds=arguments.rounds,
                seed=seed,
                ess=1e9,
                overlap=overlap,
                env={"TIMES": str(log), "MEDIAN": str(arguments.seconds), "SIGMA": str(SIGMA)},
                settings=Settings(scheduler=dask.address, sim_memory=200 * 2**20, checkpoint_seconds=0),
                on_progress=lambda _: None,
            )
        spans = np.array([json.loads(line) for line in log.read_text().splitlines()])
    assert len(spans) == n * replicates * arguments.rounds
    seconds = spans[:, 1].max() - spans[:, 0].min()
    return float(1 - (spans[:, 1] - spans[:, 0]).sum() / (SLOTS * seconds)), float(seconds)


if __name__ == "__main__":
    os.environ.pop("MODELOPS_SCHEDULER", None)
    main()
