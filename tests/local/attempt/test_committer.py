"""Rows of an open checkpoint, when it closes, and what the committer stores."""

from __future__ import annotations

import gc
import io
import itertools
import logging
import pickle
import tracemalloc
import weakref
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from claimed_jobs import claimed_job
from mops.attempt.commit import Committer, Limits, OpenCheckpoint
from mops.attempt.job_families import JobFamilies
from mops.attempt.results import Tracebacks
from mops.errors import InternalError, StorageError
from mops.parquet.encoder import ROW_GROUP_BYTES, encode
from mops.parquet.output_file import StoredTypes
from mops.storage.backends.base import Spool
from mops.storage.joblog.log import read_whole
from mops.storage.joblog.records import TableSize
from mops.study.groups import GroupBuilder, GroupTable, json_column
from mops.study.ids_and_seeds import param_id
from mops.task import FAILURES, Failure, Loss, PartFile, ResultBuffer, Segment, TaskResult, counts_of_result
from mops.verdicts import Counts
from waiting import until


@pytest.fixture
def groups() -> GroupTable:
    builder = GroupBuilder(1)
    for i in range(4):
        builder.add({"a": json_column([i] * 2)}, [10 * i, 10 * i + 1], [2 * i, 2 * i + 1])
    return builder.build()[0]


def part(simulations: list[tuple[int, int]], values: list[int] | pa.Array, output: str = "out") -> ResultBuffer:
    sink = pa.BufferOutputStream()
    table = pa.table({"x": values})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    buffer = sink.getvalue()
    rows = [len(values) // len(simulations)] * len(simulations)
    return ResultBuffer(buffer, [Segment(output, 0, buffer.size, simulations, rows)])


def failure(group: int, replicate: int | None, target: str | None = None) -> Failure:
    seed = None if replicate is None else 10 * group + replicate
    return Failure(group, replicate, seed, target, "error", "it raised", "", 1)


def result(done: set[int], **fields: object) -> TaskResult:
    return TaskResult(("sim-1",), frozenset(done), 1.0, {"out": {"x": "number"}}, **fields)  # type: ignore[arg-type]


def rows_of(checkpoint: OpenCheckpoint) -> dict[tuple[str, str | None], list[dict[str, object]]]:
    return {
        (kind, output): pq.read_table(io.BytesIO(b"".join(file.content))).to_pylist()
        for kind, output, file in checkpoint.take_files()
    }


def test_rows_of_groups_that_are_not_done_are_dropped(groups: GroupTable) -> None:
    checkpoint = OpenCheckpoint(groups, None, Spool, StoredTypes())
    taken = result({1}, buffers=[part([(0, 0), (1, 0), (1, 1)], [1, 2, 3])])
    checkpoint.add(taken, counts_of_result(taken, groups.n_replicates, 0))
    rows = rows_of(checkpoint)["outputs", "out"]
    assert [(row["group"], row["replicate"], row["seed"], row["x"]) for row in rows] == [(1, 0, 10, 2), (1, 1, 11, 3)]
    assert list(checkpoint.groups) == [1]


def test_a_buffer_is_freed_when_its_rows_are_encoded(groups: GroupTable) -> None:
    held: list[int] = []
    alive: list[int] = []

    class Watched(Spool):
        def write(self, data: bytes) -> None:
            held.append(len(alive))
            super().write(data)

    def large(simulation: tuple[int, int]) -> ResultBuffer:
        """Return a buffer with a large output and a small one, which waits for others."""
        made, small = part([simulation], list(range(ROW_GROUP_BYTES // 8))), part([simulation], [1], "small")
        content = np.concatenate([np.frombuffer(one.buffer, np.uint8) for one in (made, small)])
        alive.append(1)
        weakref.finalize(content, alive.pop)
        (segment,) = small.segments
        return ResultBuffer(pa.py_buffer(content), [*made.segments, replace(segment, offset=made.buffer.size)])

    taken = result({0, 1}, buffers=[large((0, 0)), large((0, 1)), large((1, 0))])
    n_bytes = taken.nbytes
    checkpoint = OpenCheckpoint(groups, None, Watched, StoredTypes())
    checkpoint.add(taken, counts_of_result(taken, groups.n_replicates, 0))
    assert sorted(set(held), reverse=True) == [3, 2, 1]
    assert not alive
    assert checkpoint.bytes == checkpoint.bytes_held == n_bytes
    assert [row["x"] for row in rows_of(checkpoint)["outputs", "small"]] == [1, 1, 1]


def test_outputs_that_the_study_does_not_name_are_dropped(groups: GroupTable) -> None:
    checkpoint = OpenCheckpoint(groups, ("other",), Spool, StoredTypes())
    taken = result({0}, buffers=[part([(0, 0), (0, 1)], [1, 2])])
    checkpoint.add(taken, counts_of_result(taken, groups.n_replicates, 0))
    assert rows_of(checkpoint) == {}
    assert list(checkpoint.groups) == [0]


def test_losses_and_failures_are_tables_with_identity(groups: GroupTable) -> None:
    checkpoint = OpenCheckpoint(groups, None, Spool, StoredTypes())
    taken = result({2, 3}, losses=[Loss(2, "t:f", "loss", 0.5, 2)], failures=[failure(3, 1), failure(3, None, "*")])
    checkpoint.add(taken, counts_of_result(taken, groups.n_replicates, 1))
    tables = rows_of(checkpoint)
    assert tables["losses", None] == [
        {"param_id": param_id({"a": 2}), "group": 2, "target": "t:f", "name": "loss", "loss": 0.5, "n_replicates": 2}
    ]
    first, second = tables["failures", None]
    assert (first["group"], first["replicate"], first["seed"], first["target"]) == (3, 1, 31, None)
    assert (second["replicate"], second["seed"], second["target"]) == (None, None, "*")


def test_each_target_of_a_group_without_losses_counts_as_failed(groups: GroupTable) -> None:
    taken = result({0, 1, 2}, failures=[failure(1, 0), failure(1, None, "*"), failure(2, None, "t:f")])
    assert counts_of_result(taken, groups.n_replicates, 3) == Counts(5, 1, 5, 4, {"error": 2})


def test_types_that_alternate_make_one_part(groups: GroupTable) -> None:
    """A column of integers or floats, by chance, made 386 files for 400 simulations."""
    checkpoint = OpenCheckpoint(groups, None, Spool, StoredTypes())
    kinds = [pa.int8(), pa.null(), pa.int64(), pa.float32(), pa.float64(), pa.int32(), pa.null(), pa.uint8()]
    columns = [pa.nulls(1, kind) if pa.types.is_null(kind) else pa.array([i], kind) for i, kind in enumerate(kinds)]
    parts = [part([(i // 2, i % 2)], column) for i, column in enumerate(columns)]
    taken = result({0, 1, 2, 3}, buffers=parts)
    checkpoint.add(taken, counts_of_result(taken, groups.n_replicates, 0))
    ((kind, output, file),) = checkpoint.take_files()
    table = pq.read_table(io.BytesIO(b"".join(file.content)))
    assert (kind, output, table.schema.field("x").type) == ("outputs", "out", pa.float64())
    rows = {(row["group"], row["replicate"]): row["x"] for row in table.to_pylist()}
    assert rows == {(i // 2, i % 2): None if i in (1, 6) else float(i) for i in range(8)}
    assert (file.rows, table.num_rows) == (8, 8)


LIMITS = Limits(seconds=30, bytes=1000, groups=10)


@pytest.mark.parametrize(
    ("seconds", "groups_in", "size", "age", "since_last", "due"),
    [
        (30, 0, 0, 99, 99, False),  # nothing to commit
        (30, 1, 10, 5, 99, False),
        (30, 1, 10, 31, 99, True),  # old
        (30, 1, 2000, 1, 99, True),  # large
        (30, 10, 10, 1, 99, True),  # a batch
        (30, 10, 10, 1, 0.5, False),  # at most once a second
        (0, 1, 10, 0.0, 0.0, True),  # each group as it finishes
    ],
)
def test_a_checkpoint_closes_by_age_bytes_or_groups(
    groups: GroupTable, seconds: float, groups_in: int, size: int, age: float, since_last: float, due: bool
) -> None:
    checkpoint = OpenCheckpoint(groups, None, Spool, StoredTypes())
    checkpoint._done = set(range(groups_in))
    checkpoint.bytes = size
    assert replace(LIMITS, seconds=seconds).due(checkpoint, age, since_last) is due


class CommitterLab:
    """A committer of a claimed job, and the events that it puts.

    Parameters
    ----------
    text
        The text log at each time that it is taken.
    """

    def __init__(self, folder: Path, groups: GroupTable, limits: Limits, text: Iterable[str] = itertools.repeat("")):
        self.events: list[Any] = []
        self.ticks: list[bool] = []
        self.job = claimed_job(str(folder), groups, name="a-job")
        given = {"checkpoint_seconds": limits.seconds, "checkpoint_bytes": limits.bytes, "batch_size": limits.groups}
        self.job.settings = self.job.settings.model_copy(update=given)
        self.job.families = JobFamilies({}, {})
        self.log, texts = self.job.log, iter(text)
        log: Any = SimpleNamespace(take=lambda: next(texts))
        events: Any = SimpleNamespace(put=self.events.append)
        observer: Any = SimpleNamespace(tick=lambda _bytes, *, last=False: self.ticks.append(last))
        self.committer = Committer(self.job, log, observer, events)
        self.committer.start()

    def put(self, *groups: int, n_rows: int = 2) -> None:
        """Hand over the result of a task with these groups, and rows of the first."""
        buffer = part([(groups[0], 0), (groups[0], 1)], list(range(n_rows)))
        self.committer.add(result({*groups}, buffers=[buffer]))


@pytest.mark.parametrize("seconds", [3600.0, 0.0], ids=["in the open checkpoint", "in an earlier commit"])
def test_a_group_that_comes_twice_is_an_error_before_its_rows_are_doubled(
    groups: GroupTable, tmp_path: Path, seconds: float
) -> None:
    """The rows were twice in a part, or in two parts, and every check of the job found it sound."""
    lab = CommitterLab(tmp_path, groups, Limits(seconds, bytes=1 << 20, groups=100))
    lab.put(0)
    lab.put(1)
    until(lambda: len(lab.events) >= (1 if seconds else 2))
    lab.put(1, 2)
    lab.committer.finish()
    assert isinstance(lab.events[-1].error, InternalError)
    assert "came twice: groups 1" in str(lab.events[-1].error)
    assert set(lab.log.view.committed) == ({0} if seconds else {0, 1})


def test_log_lines_after_the_last_commit_are_stored_too(
    groups: GroupTable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(3600.0, bytes=1 << 20, groups=100)
    lab = CommitterLab(tmp_path, groups, limits, text=["with the commit\n", "at the end\n"])
    with caplog.at_level(logging.DEBUG, "mops.attempt.commit"):
        lab.put(0)
        lab.committer.finish()
    texts = sorted((tmp_path / lab.job.paths.text(1, 1)).parent.iterdir())
    assert [path.read_text() for path in texts] == ["with the commit\n", "at the end\n"]
    assert [record.message for record in caplog.records] == ["a-job: committed 1 groups in 1 parts"]


def test_an_error_that_ends_the_committing_thread_is_an_event(groups: GroupTable, tmp_path: Path) -> None:
    """The runner would wait for commits without end."""
    lab = CommitterLab(tmp_path, groups, LIMITS, text=[])  # next() raises StopIteration at the first commit
    lab.put(0)
    lab.committer.finish()
    assert [type(event.error) for event in lab.events] == [StopIteration]


def test_a_committer_that_is_abandoned_commits_and_reports_nothing_more(groups: GroupTable, tmp_path: Path) -> None:
    lab = CommitterLab(tmp_path, groups, Limits(seconds=3600, bytes=1 << 20, groups=100))
    lab.committer._has_good_commit = True  # as after the first good group, which is committed at once
    lab.put(0)
    lab.committer.abandon()
    assert lab.events == []
    assert not any(lab.ticks)
    assert not lab.log.view.committed


def test_full_parts_are_stored_before_the_checkpoint_closes(
    groups: GroupTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mops.attempt.commit.LEAST_COMMIT_SECONDS", 3600.0)
    lab = CommitterLab(tmp_path, groups, Limits(seconds=3600, bytes=1000, groups=100))
    for group in range(4):
        lab.put(group, n_rows=400)
    lab.committer.finish()
    # The first group of a job is committed at once, the others at the end.
    assert [event.groups for event in lab.events] == [1, 3]
    assert lab.log.view.sizes == {("outputs", "out"): TableSize(4, 1600, lab.committer.written_bytes)}
    stored = [part for commit in read_whole(lab.job.files, lab.job.paths).commits for part in commit.parts]
    assert [part.rows for part in stored] == [400] * 4
    assert lab.committer.written_bytes == sum(part.bytes for part in stored)
    assert (lab.committer.pending.bytes, lab.committer.pending.lag_s) == (0, 0.0)
    assert sorted({*pq.read_table(tmp_path / part.path)["group"].to_pylist()}.pop() for part in stored) == [0, 1, 2, 3]


def encoded(lab: CommitterLab, group: int) -> PartFile:
    """Return a file with a row of a group, as a child process of the embedded cluster encodes it."""
    spool = lab.job.files.spool()
    file = encode(pa.table({"group": [group]}), spool)
    facts = {"rows": file.rows, "bytes": file.bytes, "digest": file.digest, "row_bytes": 8}
    return PartFile(output="out", groups=frozenset({group}), families={}, content=spool, **facts)


def test_files_of_child_processes_are_linked_and_named_by_the_next_record(groups: GroupTable, tmp_path: Path) -> None:
    lab = CommitterLab(tmp_path, groups, Limits(3600.0, bytes=1 << 20, groups=100))
    lab.committer.add(result({1}, files=[encoded(lab, 1)]))
    lab.committer.finish()
    (commit,) = read_whole(lab.job.files, lab.job.paths).commits
    (part,) = commit.parts
    assert pq.read_table(tmp_path / part.path)["group"].to_pylist() == [1]
    assert lab.committer.written_bytes == part.bytes


def test_files_that_wait_to_be_stored_count_in_the_queue(groups: GroupTable, tmp_path: Path) -> None:
    """They counted as nothing: with a slow storage, the queue grew without limit."""
    lab = CommitterLab(tmp_path, groups, Limits(3600.0, bytes=1 << 20, groups=100))
    file = encoded(lab, 1)
    assert result({1}, files=[file]).nbytes == file.bytes > 0
    stored = replace(file, content=None, path="somewhere")
    assert result({1}, files=[stored]).nbytes == 0
    lab.committer.finish()


def test_a_part_that_a_worker_stored_elsewhere_is_not_committed(groups: GroupTable, tmp_path: Path) -> None:
    """Workers with another folder of the same name completed a job without rows."""
    lab = CommitterLab(tmp_path, groups, Limits(3600.0, bytes=1 << 20, groups=100))
    path = lab.job.paths.part("outputs", "out", 1, 1 << 33)
    file = replace(encoded(lab, 1), content=None, path=path)
    lab.committer.add(result({1}, files=[file]))
    lab.committer.finish()
    assert isinstance(lab.events[-1].error, StorageError)
    assert path in str(lab.events[-1].error)
    assert not lab.log.view.committed


def test_a_part_that_a_worker_stored_is_committed(groups: GroupTable, tmp_path: Path) -> None:
    lab = CommitterLab(tmp_path, groups, Limits(3600.0, bytes=1 << 20, groups=100))
    path, file = lab.job.paths.part("outputs", "out", 1, 1 << 33), encoded(lab, 1)
    lab.job.files.put(path, file.content)
    lab.committer.add(result({1}, files=[replace(file, content=None, path=path)]))
    lab.committer.finish()
    assert lab.log.view.sizes == {("outputs", "out"): TableSize(1, 1, file.bytes)}
    assert lab.committer.written_bytes == file.bytes


def test_failures_count_as_bytes_and_wait_on_disk_with_their_tracebacks() -> None:
    """Failures did not count: a model that always raised, with 1,000 replicates, used 2 GB in one checkpoint."""
    builder, n_groups, n_replicates = GroupBuilder(n_replicates=1000), 6, 1000
    for i in range(n_groups):
        builder.add({"a": json_column([i])}, [None], [i])
    many = builder.build()[0]
    tracebacks, checkpoint = Tracebacks(), OpenCheckpoint(many, None, Spool, StoredTypes())
    tracemalloc.start()
    try:
        for group in range(n_groups):
            text = f"in group {group % 3}: " + "x" * 8_000
            failures = [
                Failure(group, i, i, None, "error", f"no {i}", "".join(list(text)), 1) for i in range(n_replicates)
            ]
            taken = pickle.loads(pickle.dumps(result({group}, failures=tracebacks.shared(failures))))
            taken.failures = tracebacks.shared(taken.failures)
            checkpoint.add(taken, counts_of_result(taken, many.n_replicates, 0))
        del taken, failures
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 5 << 20, "of 48 MB of texts"
    assert 3_000_000 < checkpoint.bytes < 10_000_000, "each row counts, a traceback once"
    ((_, _, file),) = list(checkpoint.take_files())
    assert file.bytes < 2_000_000
    table = pq.read_table(io.BytesIO(b"".join(file.content)))
    assert table.schema.equals(FAILURES), "strings are plain for other readers"
    assert table.num_rows == n_groups * n_replicates
    assert {text[:10] for text in table["traceback"].unique().to_pylist()} == {f"in group {i}" for i in range(3)}
    assert table["message"].to_pylist()[:2] == ["no 0", "no 1"]
