"""The reasons of failures are counted without reading all tracebacks, of which a job may have millions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made import ID, claimed, created

from mops.errors import CorruptRecord
from mops.jobs.job import Job
from mops.jobs.summary import Reason
from mops.parquet.encoder import encode
from mops.storage.backends.base import Spool
from mops.storage.files import Files
from mops.storage.joblog.records import Part
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges
from mops.task import FAILURES
from mops.verdicts import Counts

PATHS = JobPaths("job", ID)


def failures(messages: list[tuple[str, str]], traceback: str = "T" * 2000) -> pa.Table:
    rows = [
        dict.fromkeys(FAILURES.names)
        | {"param_id": "p", "group": 0, "reason": reason, "message": message, "attempts": 1, "signals": ""}
        | {"traceback": f"{traceback} {number}"}
        for number, (reason, message) in enumerate(messages)
    ]
    return pa.Table.from_pylist(rows, schema=FAILURES)


def job_with(files: Files, *tables: pa.Table) -> Job:
    """Create a job whose groups have failed, with a part of failures for each."""
    created(files, "job")
    log = claimed(files)
    for number, table in enumerate(tables):
        file = encode(table, Spool())
        path = PATHS.part("failures", None, 1, number)
        files.put(path, file.content)
        counts = Counts(0, table.num_rows)
        log.commit(Ranges.of([number]), [Part(path, file.rows, file.bytes, file.digest)], counts)
    return Job(files, "job")


def test_similar_messages_are_one_reason_and_the_most_frequent_comes_first(memory):
    first = failures([("error", "ValueError: 7 is too much\nmore"), ("oom", "took 2.0 GiB"), ("oom", "took 3.5 GiB")])
    second = failures([("oom", "took 1.0 GiB"), ("error", "took 1.0 GiB")])
    assert job_with(Files.open(memory.url), first, second).reasons() == [
        Reason(3, "oom", "took 2.0 GiB"),
        Reason(1, "error", "ValueError: 7 is too much"),
        Reason(1, "error", "took 1.0 GiB"),
    ]


def test_tracebacks_are_not_read(local):
    job = job_with(Files.open(local.url), failures([("error", "ValueError: x")] * 50))
    path = Path(local.url, PATHS.part("failures", None, 1, 0))
    column = FAILURES.get_field_index("traceback")
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    with path.open("r+b") as file:  # damages the column
        file.seek(start)
        file.write(b"\xff" * chunk.total_compressed_size)
    with pytest.raises(CorruptRecord, match="is damaged"):
        job.failures().to_arrow()
    assert job.reasons() == [Reason(50, "error", "ValueError: x")]


def test_only_a_few_different_messages_are_kept(memory, monkeypatch):
    monkeypatch.setattr("mops.jobs.causes._MOST_CAUSES", 20)
    words = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(500)]
    reasons = job_with(Files.open(memory.url), failures([("error", f"KeyError: {word}") for word in words])).reasons()
    assert len(reasons) == 21
    assert reasons[0] == Reason(480, "error", "other messages")
    assert sum(reason.n for reason in reasons) == 500


def test_without_failures_in_the_log_no_part_is_opened(memory, monkeypatch):
    files = Files.open(memory.url)
    created(files, "job")
    claimed(files).commit(Ranges.of([0]), [Part(PATHS.part("failures", None, 1, 0), 1, 1, "gone")], Counts(1))
    assert Job(files, "job").reasons() == []
