"""Defines what every peer runs and writes: one case of the benchmark, and its artefact.

The artefact is two folders of Parquet files:

- `outputs`: param_id, replicate, seed and the model's four columns, a row for each day of each simulation;
- `losses`: param_id, target, loss, a row for each parameter set and target.
"""

import argparse
import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from pyarrow.dataset import dataset

from mops.study.ids_and_seeds import param_id, replicate_seed

PROJECT = Path(__file__).resolve().parent.parent / "models"
sys.path.insert(0, str(PROJECT))  # as the runner does for a project; worker processes inherit the path

import sir  # noqa: E402 (the path is set above)
import targets  # noqa: E402

N_WORKERS = 2
TARGETS = ("peak", "peak_day", "mean_infected", "spread", "squared_error", "final_size")

COLUMNS = ("day", "susceptible", "infected", "noise")
# In a dictionary, a param_id of 64 characters costs four bytes a row. Parquet uses dictionaries by default.
PARAM_ID = pa.dictionary(pa.int32(), pa.string())
OUTPUTS = pa.schema(
    [("param_id", PARAM_ID), ("replicate", pa.int32()), ("seed", pa.uint64())]
    + [(name, pa.float64()) for name in COLUMNS]
)
LOSSES = pa.schema([("param_id", pa.string()), ("target", pa.string()), ("loss", pa.float64())])


@dataclass(frozen=True)
class Case:
    """The number of parameter sets, and the cost of one simulation."""

    sets: int
    ms: float
    rows: int = 365
    replicates: int = 5
    skew: bool = False

    @property
    def simulations(self) -> int:
        return self.sets * self.replicates

    def parameter_sets(self) -> list[dict]:
        """Return the sets; each differs from all others."""
        return [self.parameter_set(i) for i in range(self.sets)]

    def parameter_set(self, i: int) -> dict:
        """Return one of the sets."""
        return {"beta": 0.2 + i / 1_000_000, "gamma": 0.1, "ms": self.ms, "rows": self.rows, "skew": int(self.skew)}


def case_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that describe the case."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--sets", type=int, required=True, help="parameter sets, 6 targets each")
    parser.add_argument("--ms", type=float, required=True, help="CPU time of one simulation, in milliseconds")
    parser.add_argument("--rows", type=int, default=365, help="rows that one simulation returns")
    parser.add_argument("--replicates", type=int, default=5, help="simulations of one parameter set")
    parser.add_argument("--skew", action="store_true", help="two simulations of a hundred take 20 times longer")
    return parser


def parse_case(parser: argparse.ArgumentParser) -> tuple[Case, argparse.Namespace]:
    """Read the command line."""
    arguments = parser.parse_args()
    case = Case(arguments.sets, arguments.ms, arguments.rows, arguments.replicates, arguments.skew)
    return case, arguments


def parse_arguments(description: str) -> tuple[Case, argparse.Namespace]:
    """Read the command line that all peers share, and make the folder for the artefact."""
    parser = case_parser(description)
    parser.add_argument("--out", type=Path, required=True, help="folder for the artefact; made if it is not there")
    parser.add_argument("--export", action="store_true", help="leave the artefact in this file's form; untimed")
    case, arguments = parse_case(parser)
    arguments.out.mkdir(parents=True, exist_ok=True)
    return case, arguments


class Stopwatch:
    """Measures the start-up of a peer, and then its run: time, and the CPU time of all its processes."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.figures: dict[str, float] = {}

    def ready(self) -> None:
        """End the start-up: the workers exist and have imported the model."""
        self._cpu_s = tree_cpu_seconds()
        self._ready = time.perf_counter()
        self.figures["start_up_seconds"] = self._ready - self._began

    def finish(self) -> None:
        """End the run, while the workers still exist: all results are on disk."""
        self.figures["seconds"] = time.perf_counter() - self._ready
        self.figures["cpu_seconds"] = tree_cpu_seconds() - self._cpu_s


def tree_cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants, with descendants that have ended and were waited for."""
    this = psutil.Process()
    seconds = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def report(case: Case, rows: int, figures: dict[str, float]) -> None:
    """Print the one line that the benchmark reads, if all `rows` of the outputs are on disk."""
    if rows != case.simulations * case.rows:
        raise SystemExit(f"{rows} rows are on disk, expected {case.simulations * case.rows}")
    print(json.dumps(figures | {"simulations": case.simulations}), flush=True)


def rows_on_disk(out: Path) -> int:
    """Count the rows of an artefact's outputs, from the files' footers."""
    return dataset(out / "outputs").count_rows()


def simulate(params: dict, seed: int) -> pa.Table:
    """Run the model once."""
    return pa.table(sir.simulate(params, seed))


def score(target: str, params: dict, replicates: list[pa.Table]) -> float:
    """Run one target."""
    return getattr(targets, target)(params, [{"output": table} for table in replicates])


def seeds_of(identity: str, replicates: int) -> list[int]:
    """Return the seeds of a parameter set's replicates."""
    return [replicate_seed(identity, i) for i in range(replicates)]


def output_rows(identity: str, seeds: list[int], replicates: list[pa.Table]) -> pa.Table:
    """Put a group's replicates into one table, with the identifying columns first."""
    values = pa.concat_tables(replicates)
    lengths = [table.num_rows for table in replicates]
    index = pa.array(np.zeros(values.num_rows, dtype=np.int32))
    ids = pa.DictionaryArray.from_arrays(index, pa.array([identity]))
    replicate = np.repeat(np.arange(len(seeds), dtype=np.int32), lengths)
    seed = np.repeat(np.array(seeds, dtype=np.uint64), lengths)
    return pa.table([ids, replicate, seed, *values.columns], schema=OUTPUTS)


def joined(tables: list[pa.Table]) -> pa.Table:
    """Concatenate tables of outputs into one chunk with one dictionary of param_ids."""
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def loss_table(rows: list[tuple[str, str, float]]) -> pa.Table:
    """Return losses as a table."""
    columns = list(zip(*rows, strict=True)) or [()] * len(LOSSES)
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, LOSSES.types, strict=True)], schema=LOSSES)


def run_group(params: dict, replicates: int) -> tuple[pa.Table, list[tuple[str, str, float]]]:
    """Run a parameter set with its replicates and targets, like a worker of a well-written peer."""
    identity = param_id(params)
    seeds = seeds_of(identity, replicates)
    tables = [simulate(params, seed) for seed in seeds]
    losses = [(identity, target, score(target, params, tables)) for target in TARGETS]
    return output_rows(identity, seeds, tables), losses
