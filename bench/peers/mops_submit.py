"""Peer: mops itself, with its default settings, through the Python call.

`mops.submit` starts its own workers. Its start-up (reading the study, packing the project, the cluster, the model's
import) ends when the job exists. The measured time starts then.
"""

# Before pyarrow, as in the `mops` program: it chooses Arrow's allocator.
# isort: off
import mops

# isort: on
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from case import COLUMNS, LOSSES, OUTPUTS, PROJECT, TARGETS, Case, Stopwatch, parse_arguments, report


def main() -> None:
    """Run the case and print the line."""
    case, arguments = parse_arguments(__doc__)
    project = arguments.out / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    storage = str(arguments.out / "storage")
    study = write_study(project / "study.json", case)

    watch = Stopwatch()
    runner_cpu_s: list[float] = []

    def started(*_: object) -> None:
        watch.ready()
        runner_cpu_s.append(time.process_time())

    job = mops.submit(study, storage=storage, on_start=started)
    watch.finish()
    watch.figures["runner_cpu_seconds"] = time.process_time() - runner_cpu_s[0]
    report(case, rows_of(job.name, storage), watch.figures)
    if arguments.export:
        export(job, arguments.out)


def write_study(path: Path, case: Case) -> Path:
    """Write the case as a study, set by set, so that this program's data does not count as memory of mops."""
    study = {
        "model": "sir:simulate",
        "n_replicates": case.replicates,
        "targets": [f"targets:{name}" for name in TARGETS],
    }
    with path.open("w") as file:
        file.write(json.dumps(study).removesuffix("}") + ', "parameter_sets": [')
        for i in range(case.sets):
            file.write((", " if i else "") + json.dumps(case.parameter_set(i)))
        file.write("]}")
    return path


def rows_of(job: str, storage: str) -> int:
    """Count the rows of a job's outputs in a separate process, so that reading does not count as memory of the run.

    The process reads file by file. A dataset would keep the metadata of each file (1 MiB for 80 row groups), and the
    process tree would be as large as during the run.
    """
    code = """
import sys, mops, pyarrow.parquet as pq
outputs = mops.open_job(sys.argv[1], sys.argv[2]).dataset("outputs", "output")
print(sum(pq.read_metadata(file, filesystem=outputs.filesystem).num_rows for file in outputs.files))
"""
    return int(subprocess.run([sys.executable, "-c", code, job, storage], stdout=subprocess.PIPE, check=True).stdout)


def export(job, out: Path) -> None:
    """Write the job's results in the format of the other peers, for the comparison row by row."""
    for name in ("outputs", "losses"):
        (out / name).mkdir()
    outputs = job.outputs("output", columns=["param_id", "replicate", "seed", *COLUMNS]).to_arrow()
    pq.write_table(outputs.cast(OUTPUTS), out / "outputs" / "all.parquet")
    losses = job.losses().to_arrow().select(LOSSES.names).to_pylist()
    short = [{**row, "target": row["target"].rpartition(":")[2]} for row in losses]
    pq.write_table(pa.Table.from_pylist(short, LOSSES), out / "losses" / "all.parquet")


if __name__ == "__main__":
    main()
