"""Call the program `walkers`, which `make` compiles."""

import io
import subprocess
from pathlib import Path

import pyarrow.csv

PROGRAM = Path(__file__).with_name("walkers")
if not PROGRAM.exists():
    raise FileNotFoundError(f"no program {PROGRAM.name}: run `make` in the folder of the study")


def walkers(params, seed):
    command = [PROGRAM, str(params["sites"]), str(params["steps"]), str(seed)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{PROGRAM.name} returned {done.returncode}: {done.stderr.decode().strip()}")
    return pyarrow.csv.read_csv(io.BytesIO(done.stdout))
