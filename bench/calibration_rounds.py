"""Measure how long slots wait for the slow sets of a calibration's round: `python bench/calibration_rounds.py`.

The model sleeps for a time that depends on its set: the times have a lognormal distribution (sigma 1: 1 in 20 takes
more than 5 times the median). Prints, for rounds of several sizes, the share of the slots' time that is idle between
the start of the first simulation and the end of the last, as the median of a few seeds.
docs/internals/calibration.md has the table.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

import mops
from mops.settings import Settings
from mops.units import counted

SLOTS = 8
SIGMA = 1.0
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
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="the median time of a simulation")
    arguments = parser.parse_args()
    heads = [counted(replicates, "replicate") for replicates in arguments.replicates]
    print(f"| sets | {' | '.join(heads)} |", flush=True)
    for n in arguments.sizes:
        idle = [
            median(idle_share(n, replicates, seed, arguments.seconds) for seed in range(arguments.seeds))
            for replicates in arguments.replicates
        ]
        print(f"| {n} | " + " | ".join(f"{100 * share:.0f} %" for share in idle) + " |", flush=True)


def idle_share(n: int, replicates: int, seed: int, seconds: float) -> float:
    """Run a calibration of one round; return the share of the slots' time in which no simulation ran."""
    with tempfile.TemporaryDirectory(prefix="mops-rounds-") as folder:
        project, log = Path(folder) / "project", Path(folder) / "times.txt"
        project.mkdir()
        (project / "mops.toml").touch()
        (project / "model.py").write_text(MODEL)
        mops.calibrate(
            {"rank": {"min": 0, "max": 1}},
            model="model:run",
            targets=["model:loss"],
            replicates=replicates,
            name="rounds",
            project=project,
            storage=Path(folder) / "storage",
            n=n,
            rounds=1,
            seed=seed,
            env={"TIMES": str(log), "MEDIAN": str(seconds), "SIGMA": str(SIGMA)},
            settings=Settings(slots=SLOTS, sim_memory=200 * 2**20),
            local=True,
            on_progress=lambda _: None,
        )
        spans = np.array([json.loads(line) for line in log.read_text().splitlines()])
    assert len(spans) == n * replicates
    whole = spans[:, 1].max() - spans[:, 0].min()
    return float(1 - (spans[:, 1] - spans[:, 0]).sum() / (SLOTS * whole))


if __name__ == "__main__":
    main()
