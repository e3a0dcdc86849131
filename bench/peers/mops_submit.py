"""Peer: mops itself, with its default settings, through the Python call.

`mops.submit` starts its own workers. Its start-up is measured by a study of two sets in the same process just
before, and is taken off, as the other peers' is.
"""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from case import COLUMNS, LOSSES, N_REPLICATES, OUTPUTS, PROJECT, TARGETS, Case, parse_arguments, report

import mops

START_UP_SETS = 2


def main() -> None:
    """Run the case and print the line."""
    case, arguments = parse_arguments(__doc__)
    project = arguments.out / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    storage = str(arguments.out / "storage")
    small = write_study(project / "start_up.json", replace(case, sets=START_UP_SETS, ms=0))
    study = write_study(project / "study.json", case)

    started = time.perf_counter()
    mops.submit(small, storage=storage)
    ready = time.perf_counter()
    job = mops.submit(study, storage=storage)
    start_up = ready - started
    seconds = time.perf_counter() - ready - start_up
    report(case, job.outputs("output").count_rows(), seconds, start_up)
    if arguments.export:
        export(job, arguments.out)


def write_study(path: Path, case: Case) -> Path:
    """Write the case as a study."""
    study = {
        "model": "sir:simulate",
        "n_replicates": N_REPLICATES,
        "targets": [f"targets:{name}" for name in TARGETS],
        "parameter_sets": case.parameter_sets(),
    }
    path.write_text(json.dumps(study))
    return path


def export(job, out: Path) -> None:
    """Write the job's results as the other peers write theirs, for the comparison row by row."""
    for name in ("outputs", "losses"):
        (out / name).mkdir()
    outputs = job.outputs("output").to_table(columns=["param_id", "replicate", "seed", *COLUMNS])
    pq.write_table(outputs.cast(OUTPUTS), out / "outputs" / "all.parquet")
    losses = pa.table(job.losses()).select(LOSSES.names).to_pylist()
    short = [{**row, "target": row["target"].rpartition(":")[2]} for row in losses]
    pq.write_table(pa.Table.from_pylist(short, LOSSES), out / "losses" / "all.parquet")


if __name__ == "__main__":
    main()
