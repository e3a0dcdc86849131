"""Snapshots of a job's log: readers begin after the records of a snapshot, and never believe one of another log."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from made import ID, created, hooked, refusing

from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Asked, Part
from mops.storage.joblog.snapshot import SNAPSHOTS, Snapshot, read_snapshot
from mops.storage.joblog.verify import verify
from mops.storage.joblog.whole import read_whole
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges
from mops.verdicts import Counts

PATHS = JobPaths("job", ID)
EVERY = 10
FAMILIES = {"daily": {"x": "number float"}}


def long_log(files: Files, n: int, *, every: int = EVERY) -> JobLog:
    """Write a log of two attempts, a cancel and ``n`` commits."""
    first = JobLog(files, PATHS, host="first")
    first.claim("person", asked=Asked(0, "a submit"))
    first.cancel("me")
    first.end("cancelled", Counts())
    log = JobLog(files, PATHS, host="second", snapshot_records=every)
    log.claim("person")
    for group in range(n):
        part = Part(PATHS.part("outputs", "da.ily", 2, group), 3, 4, "00")
        counts = Counts(2, 1, 1, 0, {"oom": 1})
        log.commit(Ranges.of([group]), [part], counts, FAMILIES if group == 3 else None)
    return log


def meaning(log: JobLog) -> dict[str, object]:
    return vars(log.view)


def test_a_view_from_a_snapshot_equals_one_from_all_records(files: Files) -> None:
    written = long_log(files, 25)
    snapshot = read_snapshot(files, PATHS)
    assert snapshot is not None
    assert snapshot.k == 20, "one after ten records, and one after twenty"
    reader = JobLog(files, PATHS)
    reader.read()
    assert meaning(reader) == meaning(written) == vars(read_whole(files, PATHS).view)
    assert reader.view.families == FAMILIES
    assert len(read_whole(files, PATHS).commits) == 25, "readers of rows get every commit"


def test_readers_and_runners_read_a_bounded_number_of_records(memory) -> None:
    files, asked = Files.open(memory.url), Counter[str]()
    long_log(files, 300)
    counted = hooked(files, lambda name, path: asked.update([str(path)] if name == "get" else []))
    log = JobLog(counted, PATHS, snapshot_records=EVERY)
    assert log.claim("person").committed == Ranges.of(range(300))
    assert sum(path.startswith(PATHS.log) for path in asked) < 3 * EVERY
    log.commit(Ranges.of([300]), [], Counts(1))
    assert JobLog(files, PATHS).read().committed == Ranges.of(range(301))


def test_a_snapshot_of_a_deleted_job_of_the_same_name_is_not_used(storage, files: Files) -> None:
    long_log(files, 25)
    old = files.get(PATHS.snapshot)
    for entry in files.list(PATHS.root):
        storage.drop(entry.path)
    new = long_log(files, 22, every=1_000)
    storage.lay(PATHS.snapshot, old)
    assert read_snapshot(files, PATHS) is None
    reader = JobLog(files, PATHS)
    reader.read()
    assert meaning(reader) == meaning(new)
    assert verify(files, PATHS, 22)[0].endswith("missing"), "the parts are; the snapshot is of another log"


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format": 2}', b'{"format": 1, "k": 5}'])
def test_an_unusable_snapshot_costs_only_time(storage, files: Files, data: bytes) -> None:
    log = long_log(files, 12)
    storage.lay(PATHS.snapshot, data)
    reader = JobLog(files, PATHS)
    reader.read()
    assert meaning(reader) == meaning(log)


def test_a_snapshot_that_cannot_be_written_or_read_does_not_stop_a_job(memory, caplog) -> None:
    files = refusing(Files.open(memory.url), PATHS.snapshot)
    log = long_log(files, 25)
    assert caplog.text.count("a snapshot of the log cannot be written, and the job continues without it") == 1
    assert JobLog(files, PATHS).read().committed == log.view.committed


def test_verify_finds_a_snapshot_that_differs_from_the_log(storage, files: Files) -> None:
    created(files)
    long_log(files, 25)
    changed = json.loads(files.get(PATHS.snapshot))
    changed["committed"] = [[0, 7]]
    storage.lay(PATHS.snapshot, json.dumps(changed).encode())
    problems = [problem for problem in verify(files, PATHS, 25) if "parquet" not in problem]
    assert problems == [f"{PATHS.snapshot}: it differs from records 1 to 20; remove the file"]


def test_a_snapshot_is_read_as_it_was_written(memory) -> None:
    view = long_log(Files.open(memory.url), 12).view
    assert view.mark is not None
    snapshot = Snapshot.of(view, view.mark)
    assert SNAPSHOTS.decode(SNAPSHOTS.encode(snapshot), "here") == snapshot
