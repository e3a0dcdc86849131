"""Measure compactions of jobs with many small parts: `python bench/compaction.py`.

Each job has one output, and each of its commits one part of random numbers. Prints a table for
`docs/internals/storage.md`: the time of a compaction, the peak memory of its process, and the time to open the
output and to read it, before and after. `--quick` measures only the smallest job.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from mops.jobs.job import Job
from mops.parquet.encoder import encode
from mops.project.bundle import Bundle
from mops.project.project import ModelSpec
from mops.storage.files import Files
from mops.storage.job_options import NO_OPTIONS
from mops.storage.job_records import JobRecord, create_job, keep_reference, load_job
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Part
from mops.storage.params_file import encode_groups
from mops.storage.paths import JobPaths
from mops.study.groups import IDENTITY_FIELDS
from mops.study.ranges import Ranges
from mops.study.study_file import parse_study
from mops.verdicts import Counts

JOBS = ((2_880, 2_000), (20_000, 2_000), (500, 100_000), (2_000, 100_000))
"""The number of parts, and the rows of each."""
HEAD = "| job | parts after | compact | peak memory | open | read |\n|---|---|---|---|---|---|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--of", metavar="STORAGE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.of:
        measure_compaction(arguments.of)
        return
    print(HEAD)
    for n_parts, n_rows in JOBS[: 1 if arguments.quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            make(Files.open(folder), n_parts, n_rows)
            before = reading(folder)
            line = [sys.executable, __file__, "--of", folder]
            found = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
            after = reading(folder)
        open_s, read_s = (f"{was:.2f} s -> {now:.2f} s" for was, now in zip(before, after, strict=True))
        time_s, peak = f"{found['seconds']:.1f} s", f"{found['peak'] >> 20} MiB ({found['idle'] >> 20} before)"
        name = f"{n_parts:,} parts of {found['bytes'] / n_parts / 1000:.0f} kB"
        print(f"| {name} | {found['parts']} | {time_s} | {peak} | {open_s} | {read_s} |", flush=True)


def make(files: Files, n_parts: int, n_rows: int) -> None:
    """Create a complete job. All parts have the same bytes and different names."""
    paths = JobPaths("job", "0" * 16)
    groups = parse_study({"model": "m:f", "parameter_sets": [{"params": {"x": 0}, "seed": 0}]}, where="").groups
    spec = ModelSpec("m:f", "baseline", (), None)
    record = JobRecord("job", "0" * 16, "now", "0" * 64, spec, 1, 1, NO_OPTIONS, study="", project="")
    create_job(
        files,
        replace(record, n_groups=n_parts),
        Bundle("0" * 64, b"zip", ()),
        "{}",
        encode_groups(groups, files.spool()),
    )
    keep_reference(files, paths, {"daily": {"y": "number float"}})
    rows = {"param_id": ["0" * 64] * n_rows, "group": [0] * n_rows, "replicate": [0] * n_rows, "seed": [0] * n_rows}
    identity = pa.table(rows, schema=pa.schema(IDENTITY_FIELDS))
    table = identity.append_column("y", pa.array(np.random.default_rng(1).random(n_rows)))
    encoded = encode(table, files.spool())
    data, log = encoded.content.read(), JobLog(files, paths)
    log.claim("person")
    for n in range(n_parts):
        path = paths.part("outputs", "daily", 1, n)
        (Path(files.url) / path).parent.mkdir(parents=True, exist_ok=True)
        (Path(files.url) / path).write_bytes(data)
        log.commit(Ranges.of([n]), [Part(path, encoded.rows, encoded.bytes, encoded.digest)], Counts(1))
    log.end("succeeded", log.view.counts)


def reading(folder: str) -> tuple[float, float]:
    """Return the seconds to open the output, and to read it."""
    began = time.perf_counter()
    rows = Job(Files.open(folder), "job").dataset("outputs", "daily")
    opened = time.perf_counter()
    for _ in rows.to_batches():
        pass
    return opened - began, time.perf_counter() - opened


def measure_compaction(folder: str) -> None:
    job = Job(Files.open(folder), "job")
    assert load_job(job.files, "job")
    idle, began = peak_bytes(), time.perf_counter()
    done = job.compact()
    seconds = time.perf_counter() - began
    print(
        json.dumps(
            {"parts": done.parts, "bytes": done.bytes_before, "seconds": seconds, "peak": peak_bytes(), "idle": idle}
        )
    )


def peak_bytes() -> int:
    """Return the peak memory since this program started. ``ru_maxrss`` would include that of the parent."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
