"""Every JSON record has the bytes that mops has always written, and is read back equal; broken ones are refused."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mops
from mops.project.bundle import Bundle
from mops.project.project import ModelSpec
from mops.storage.files import Files
from mops.storage.job_options import JobOptions, PodOptions
from mops.storage.job_records import (
    Deletion,
    JobRecord,
    Parent,
    create_derived,
    create_job,
    keep_finished,
    keep_reference,
    load_job,
    parse_finished,
    read_deletion,
    read_reference,
    write_deletion,
)
from mops.storage.joblog.log import JobLog, read_whole
from mops.storage.joblog.records import Asked, Part
from mops.storage.kept_options import KeptOptions, keep_options, read_options
from mops.storage.live_record import Live, read_live, write_live
from mops.storage.paths import JobPaths
from mops.storage.samples import Sample, read_samples, write_samples
from mops.study.ranges import Ranges
from mops.study.study_file import parse_study
from mops.verdicts import Counts

PATHS = JobPaths("one")
POD = PodOptions(queue="small", deadline_s=600, dedicated=False, workers="2:4")
RECORD = JobRecord(
    job="one",
    created="2026-01-02T03:04:05+00:00",
    bundle="ab" * 32,
    spec=ModelSpec("model:run", "baseline", ("model:score", "é:x"), ("daily",)),
    n_groups=3,
    n_simulations=6,
    options=JobOptions({"MODE": "fast é", "KEY": None}, "/usr/bin/python3", POD),
    study="waves",
    project="/home/é",
)
COUNTS = Counts(4, 2, 1, 1, {"oom": 1, "error": 1})
PARENT = Parent("one", 5, "n5", Ranges(((0, 1), (2, 3))), COUNTS)
DERIVED = JobRecord(
    "two", "2026-01-03", "ab" * 32, ModelSpec("m", "b", (), None), 3, 6, PARENT, JobOptions(), study="", project=""
)
FAMILIES: Any = {
    "daily": {"x": "number float", "é": ["list", ["struct", {"a": "timestamp us ns", "b": ["map", "string", "null"]}]]},
    "none": {},
}
LIVE = Live(
    at=1767225845.25,
    host="hösт",
    pid=7,
    counts=COUNTS,
    rate=9.26e-05,
    memory_bytes=1 << 40,
    settings={"slots": 2, "batch_size": "auto", "storage": None, "task_seconds": 1e16},
    durable=3,
    seconds=0.1,
    peak_bytes=5,
    runner_bytes=6,
    in_flight=7,
    slots=8,
    open_bytes=9,
    expected={"seconds": 1.5, "rows": 2},
    lines=['tab\t "quoted" \\ \x00\x7f\u2028', ""],
    limit_bytes=10,
    window=11,
    children="forked: é",
    sizing="",
)
SAMPLE = Sample(1767225845.5, 4, 2, 1, 1, 3, 1e-07, 1 << 40, 5, 6, 7, 8, {"oom": 1})

Stored = tuple[str, object, object]
"""A record's path, what was written there, and what was read from there."""
Case = Callable[[Files], Stored]


def job(files: Files) -> Stored:
    sets = [{"params": {"x": n}, "seed": n} for n in range(3)]
    groups = parse_study({"model": "model:run", "parameter_sets": sets}, where="study.json").groups
    create_job(files, RECORD, Bundle(RECORD.bundle, b"a zip", ()), '{"a": "é"}', groups)
    return PATHS.record, RECORD, load_job(files, "one")


def derived(files: Files) -> Stored:
    job(files)
    create_derived(files, DERIVED, PARENT)
    return JobPaths("two").record, DERIVED, load_job(files, "two")


def options(files: Files) -> Stored:
    now = replace(RECORD.options, python=None, pod=PodOptions())
    keep_options(files, RECORD, KeptOptions(0, RECORD.options), now)
    return PATHS.options(1), KeptOptions(1, now), read_options(files, RECORD)


def deletion(files: Files) -> Stored:
    written = Deletion("é", "2026", ("a", "b"))
    write_deletion(files, PATHS, written)
    return PATHS.deleted, written, read_deletion(files, PATHS)


def reference(files: Files) -> Stored:
    keep_reference(files, PATHS, FAMILIES)
    return PATHS.schema, FAMILIES, read_reference(files, PATHS)


def log_of(files: Files) -> JobLog:
    nonces, times = itertools.count(1), itertools.count(1767225845.0, 0.125)
    return JobLog(files, PATHS, host="hé", clock=lambda: next(times), nonce=lambda: f"n{next(nonces)}")


def log(files: Files) -> JobLog:
    """Write a record of each kind."""
    made = log_of(files)
    made.claim("auto", asked=Asked(0, "ab"))
    part = Part("jobs/one/outputs/%C3%A9/1-1.parquet", 10, 1 << 33, "cd" * 32)
    losses = Part("jobs/one/losses/1-1.parquet", 0, 4, "ef")
    made.commit(Ranges(((0, 1), (2, 3))), [part, losses], COUNTS, FAMILIES)
    made.commit(Ranges(((1, 2),)), [], Counts())
    made.cancel("é")
    made.end("cancelled", COUNTS)
    log_of(files).claim("person")
    return made


def record_of_log(k: int) -> Case:
    def case(files: Files) -> Stored:
        log(files)
        read = read_whole(files, PATHS)
        commits = {commit.k: commit for commit in read.commits}
        known = {2: (Ranges(((0, 1), (2, 3))), COUNTS, FAMILIES), 3: (Ranges(((1, 2),)), Counts(), {})}
        if k in commits:
            one = commits[k]
            return PATHS.log_record(k), known[k], (one.ranges, one.counts, one.families)
        (mark,) = [mark for mark in read.view.marks if mark.k == k]
        return PATHS.log_record(k), mark, mark

    return case


def finished(files: Files) -> Stored:
    made = log_of(files)
    made.claim("person")
    made.end("partial", COUNTS)
    assert made.view.end is not None
    keep_finished(files, RECORD, made.view.end)
    return PATHS.finished, made.view.end, parse_finished(files.get(PATHS.finished), RECORD)


def live(files: Files) -> Stored:
    write_live(files, PATHS, 1, LIVE)
    return PATHS.live(1), LIVE, read_live(files, PATHS, 1)


def samples(files: Files) -> Stored:
    other = replace(SAMPLE, at=1.0, verdicts={})
    write_samples(files, PATHS, 1, 2, [SAMPLE, other])
    return PATHS.events(1, 2), [(1, SAMPLE), (1, other)], read_samples(files, PATHS)


CASES: dict[str, Case] = {
    "job.json": job,
    "job.json of a derived job": derived,
    "options": options,
    "deleted.json": deletion,
    "schema.json": reference,
    **{f"log record {k}": record_of_log(k) for k in range(1, 7)},
    "finished.json": finished,
    "live": live,
    "samples": samples,
}


# One line for each case. Jobs in storages hold these bytes, so they never change.
GOLDEN = Path(__file__).with_name("stored_records.jsonl").read_bytes().removesuffix(b"\n").split(b"\n")


@pytest.fixture
def files() -> Files:
    return Files.open(f"memory://{uuid.uuid4().hex}")


@pytest.mark.parametrize(("case", "golden"), zip(CASES, GOLDEN, strict=True), ids=CASES)
def test_a_record_has_the_bytes_that_it_always_had_and_comes_back_equal(files: Files, case: str, golden: bytes) -> None:
    path, written, read = CASES[case](files)
    assert files.get(path) == golden.replace(b"VERSION", mops.__version__.encode())
    assert read == written
