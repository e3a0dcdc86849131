"""What an open checkpoint holds, and when it closes."""

from __future__ import annotations

import gc
import io
import logging
import pickle
import time
import tracemalloc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mops.attempt.checkpoint.committer import Committer
from mops.attempt.checkpoint.open_checkpoint import Limits, OpenCheckpoint
from mops.attempt.checkpoint.pending_results import PendingResults
from mops.attempt.checkpoint.tracebacks import Tracebacks
from mops.attempt.job_families import JobFamilies
from mops.errors import InternalError
from mops.storage.backends.spool import Spool
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog, read_whole
from mops.storage.joblog.view import Stored
from mops.storage.output_file import StoredTypes
from mops.storage.parquet import ROW_GROUP_BYTES
from mops.storage.paths import JobPaths
from mops.study.group_builder import GroupBuilder
from mops.study.groups import GroupTable
from mops.study.ids_and_seeds import canonical_json, param_id
from mops.task import FAILURES, Failure, Loss, ResultBuffer, Segment, TaskResult, counts_of_result
from mops.verdicts import Counts


@pytest.fixture
def groups() -> GroupTable:
    builder = GroupBuilder(1)
    for i in range(4):
        builder.add([canonical_json({"a": i})] * 2, [10 * i, 10 * i + 1], [2 * i, 2 * i + 1])
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
    taken = result({1}, parts=[part([(0, 0), (1, 0), (1, 1)], [1, 2, 3])])
    checkpoint.add(taken, counts_of_result(taken, groups, 0))
    rows = rows_of(checkpoint)["outputs", "out"]
    assert [(row["group"], row["replicate"], row["seed"], row["x"]) for row in rows] == [(1, 0, 10, 2), (1, 1, 11, 3)]
    assert list(checkpoint.ranges) == [1]


def test_each_part_is_given_up_when_its_rows_are_encoded(groups: GroupTable) -> None:
    held: list[int] = []
    alive: list[int] = []

    class Watched(Spool):
        def write(self, data: bytes) -> None:
            held.append(len(alive))
            super().write(data)

    def large(simulation: tuple[int, int]) -> ResultBuffer:
        """Return a part with a large output and a small one, which waits for others."""
        made, small = part([simulation], list(range(ROW_GROUP_BYTES // 8))), part([simulation], [1], "small")
        content = np.concatenate([np.frombuffer(one.buffer, np.uint8) for one in (made, small)])
        alive.append(1)
        weakref.finalize(content, alive.pop)
        (segment,) = small.segments
        return ResultBuffer(pa.py_buffer(content), [*made.segments, replace(segment, offset=made.buffer.size)])

    taken = result({0, 1}, parts=[large((0, 0)), large((0, 1)), large((1, 0))])
    n_bytes = taken.nbytes
    checkpoint = OpenCheckpoint(groups, None, Watched, StoredTypes())
    checkpoint.add(taken, counts_of_result(taken, groups, 0))
    assert sorted(set(held), reverse=True) == [3, 2, 1]
    assert not alive
    assert checkpoint.bytes == checkpoint.bytes_held == n_bytes
    assert [row["x"] for row in rows_of(checkpoint)["outputs", "small"]] == [1, 1, 1]


def test_outputs_that_the_study_does_not_keep_are_dropped(groups: GroupTable) -> None:
    checkpoint = OpenCheckpoint(groups, ("other",), Spool, StoredTypes())
    taken = result({0}, parts=[part([(0, 0), (0, 1)], [1, 2])])
    checkpoint.add(taken, counts_of_result(taken, groups, 0))
    assert rows_of(checkpoint) == {}
    assert list(checkpoint.ranges) == [0]


def test_losses_and_failures_are_tables_with_identity(groups: GroupTable) -> None:
    checkpoint = OpenCheckpoint(groups, None, Spool, StoredTypes())
    taken = result({2, 3}, losses=[Loss(2, "t:f", "loss", 0.5, 2)], failures=[failure(3, 1), failure(3, None, "*")])
    checkpoint.add(taken, counts_of_result(taken, groups, 1))
    tables = rows_of(checkpoint)
    assert tables["losses", None] == [
        {"param_id": param_id({"a": 2}), "group": 2, "target": "t:f", "name": "loss", "loss": 0.5, "n_replicates": 2}
    ]
    first, second = tables["failures", None]
    assert (first["group"], first["replicate"], first["seed"], first["target"]) == (3, 1, 31, None)
    assert (second["replicate"], second["seed"], second["target"]) == (None, None, "*")


def test_each_target_of_a_group_without_losses_has_failed(groups: GroupTable) -> None:
    taken = result({0, 1, 2}, failures=[failure(1, 0), failure(1, None, "*"), failure(2, None, "t:f")])
    assert counts_of_result(taken, groups, 3) == Counts(5, 1, 5, 4, {"error": 2})


def test_types_that_change_to_and_fro_make_one_part(groups: GroupTable) -> None:
    """400 simulations with columns sometimes of integers and sometimes of floats made 386 files."""
    checkpoint = OpenCheckpoint(groups, None, Spool, StoredTypes())
    kinds = [pa.int8(), pa.null(), pa.int64(), pa.float32(), pa.float64(), pa.int32(), pa.null(), pa.uint8()]
    columns = [pa.nulls(1, kind) if pa.types.is_null(kind) else pa.array([i], kind) for i, kind in enumerate(kinds)]
    parts = [part([(i // 2, i % 2)], column) for i, column in enumerate(columns)]
    taken = result({0, 1, 2, 3}, parts=parts)
    checkpoint.add(taken, counts_of_result(taken, groups, 0))
    ((kind, output, file),) = checkpoint.take_files()
    table = pq.read_table(io.BytesIO(b"".join(file.content)))
    assert (kind, output, table.schema.field("x").type) == ("outputs", "out", pa.float64())
    rows = {(row["group"], row["replicate"]): row["x"] for row in table.to_pylist()}
    assert rows == {(i // 2, i % 2): None if i in (1, 6) else float(i) for i in range(8)}
    assert (file.rows, table.num_rows) == (8, 8)


LIMITS = Limits(seconds=30, bytes=1000, groups=10)


@pytest.mark.parametrize(
    ("groups_in", "size", "age", "since_last", "due"),
    [
        (0, 0, 99, 99, False),  # nothing to commit
        (1, 10, 5, 99, False),
        (1, 10, 31, 99, True),  # old
        (1, 2000, 1, 99, True),  # large
        (10, 10, 1, 99, True),  # a batch
        (10, 10, 1, 0.5, False),  # at most once a second
    ],
)
def test_a_checkpoint_closes_by_age_bytes_or_groups(
    groups: GroupTable, groups_in: int, size: int, age: float, since_last: float, due: bool
) -> None:
    checkpoint = OpenCheckpoint(groups, None, Spool, StoredTypes())
    checkpoint._done = list(range(groups_in))
    checkpoint.bytes = size
    assert LIMITS.due(checkpoint, age, since_last) is due


def test_with_zero_seconds_each_group_is_committed_as_it_finishes(groups: GroupTable) -> None:
    checkpoint = OpenCheckpoint(groups, None, Spool, StoredTypes())
    checkpoint._done = [0]
    assert Limits(0, 1000, 10).due(checkpoint, 0.0, 0.0)


class Committing:
    """A checkpointer of a job of its own, and what it says."""

    def __init__(self, folder: Path, groups: GroupTable, limits: Limits):
        self.events: list[object] = []
        files, paths = Files.open(str(folder)), JobPaths("a-job")
        self.log = JobLog(files, paths, host="here")
        self.log.claim("person")
        self.backlog, self.text = PendingResults(), [""]
        self.writer = Committer(
            files,
            paths,
            self.log,
            groups,
            limits,
            attempt=1,
            n_targets=0,
            outputs=None,
            on_event=self.events.append,
            on_tick=lambda *_: None,
            take_text=lambda: self.text.pop(),
            families=JobFamilies({}),
            backlog=self.backlog,
        )


@pytest.mark.parametrize("seconds", [3600.0, 0.0], ids=["in the open checkpoint", "in an earlier commit"])
def test_a_group_that_comes_twice_ends_the_checkpointer_before_its_rows_are_doubled(
    groups: GroupTable, tmp_path: Path, seconds: float
) -> None:
    """They were twice in a part, or in two parts, and every check of the job found it sound."""
    one = Committing(tmp_path, groups, Limits(seconds, bytes=1 << 20, groups=100))
    one.text = [""] * 9
    one.writer.put(result({0}, parts=[part([(0, 0), (0, 1)], [1, 2])]))
    one.writer.put(result({1}, parts=[part([(1, 0), (1, 1)], [1, 2])]))
    deadline = time.monotonic() + 60
    while len(one.events) < (1 if seconds else 2):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    one.writer.put(result({1, 2}, parts=[part([(1, 0), (1, 1)], [1, 2])]))
    one.writer.finish()
    assert isinstance(one.events[-1], InternalError)
    assert "came twice: groups 1" in str(one.events[-1])
    assert set(one.log.view.committed) == ({0} if seconds else {0, 1})


def test_what_is_said_after_the_last_commit_is_stored_too(
    groups: GroupTable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Committing(tmp_path, groups, Limits(3600.0, bytes=1 << 20, groups=100))
    one.text = ["at the end\n", "with the commit\n"]  # taken from its end
    with caplog.at_level(logging.DEBUG, "mops.attempt.checkpoint.committer"):
        one.writer.put(result({0}, parts=[part([(0, 0), (0, 1)], [1, 2])]))
        one.writer.finish()
    texts = sorted((tmp_path / JobPaths("a-job").text(1, 1)).parent.iterdir())
    assert [path.read_text() for path in texts] == ["with the commit\n", "at the end\n"]
    assert [record.message for record in caplog.records] == ["committed 1 groups in 1 parts"]


def test_what_ends_the_writer_is_an_event(groups: GroupTable, tmp_path: Path) -> None:
    """A thread that ends in silence leaves its runner waiting for commits."""
    one = Committing(tmp_path, groups, LIMITS)
    one.text = []  # pop() raises IndexError at the first commit
    one.writer.put(result({0}, parts=[part([(0, 0), (0, 1)], [1, 2])]))
    one.writer.finish()
    assert [type(event) for event in one.events] == [IndexError]


def test_an_attempt_that_commits_nothing_says_nothing_at_its_end_when_it_is_abandoned(
    groups: GroupTable, tmp_path: Path
) -> None:
    ticks: list[bool] = []
    one = Committing(tmp_path, groups, Limits(seconds=3600, bytes=1 << 20, groups=100))
    one.text = [""] * 9
    one.writer._on_tick = lambda _bytes, last: ticks.append(last)
    one.writer._tells = True  # as if it had good groups before: nothing is committed by itself
    one.writer.put(result({0}, parts=[part([(0, 0), (0, 1)], [1, 2])]))
    one.writer.abandon()
    assert one.events == []
    assert not any(ticks)
    assert not one.log.view.committed


def test_what_has_its_bytes_is_stored_before_its_checkpoint_may_close(
    groups: GroupTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mops.attempt.checkpoint.open_checkpoint.LEAST_SECONDS", 3600.0)
    files, paths, events = Files.open(str(tmp_path)), JobPaths("a-job"), []
    log = JobLog(files, paths, host="here")
    log.claim("person")
    writer = Committer(
        files,
        paths,
        log,
        groups,
        Limits(seconds=3600, bytes=1000, groups=100),
        attempt=1,
        n_targets=0,
        outputs=None,
        on_event=events.append,
        on_tick=lambda *_: None,
        take_text=lambda: "",
        backlog=(backlog := PendingResults()),
        families=JobFamilies(None),
    )
    for group in range(4):
        writer.put(result({group}, parts=[part([(group, 0), (group, 1)], list(range(400)))]))
    writer.finish()
    # The first group of a job is committed by itself; then none may be until the end.
    assert [event.groups for event in events] == [1, 3]
    assert log.view.stored == {("outputs", "out"): Stored(4, 1600, backlog.written_bytes)}
    (stored,) = read_whole(files, paths).parts.values()
    assert [part.rows for part in stored] == [400] * 4
    assert backlog.written_bytes == sum(part.bytes for part in stored)
    assert (backlog.bytes, backlog.lag_s) == (0, 0.0)
    assert sorted({*pq.read_table(tmp_path / part.path)["group"].to_pylist()}.pop() for part in stored) == [0, 1, 2, 3]


def test_failures_count_and_wait_on_disk_and_each_row_has_its_traceback() -> None:
    """Failures counted for nothing: a model that always raised, with 1,000 replicates, took 2 GB in one checkpoint."""
    builder, n_groups, n_replicates = GroupBuilder(n_replicates=1000), 6, 1000
    for i in range(n_groups):
        builder.add([canonical_json({"a": i})], [None], [i])
    many = builder.build()[0]
    tracebacks, checkpoint = Tracebacks(most_whole=10), OpenCheckpoint(many, None, Spool, StoredTypes())
    tracemalloc.start()
    try:
        for group in range(n_groups):
            text = f"in group {group % 3}: " + "x" * 8_000
            failures = [
                Failure(group, i, i, None, "error", f"no {i}", "".join(list(text)), 1) for i in range(n_replicates)
            ]
            taken = pickle.loads(pickle.dumps(result({group}, failures=tracebacks.shared(failures))))
            taken.failures = tracebacks.shared(taken.failures)
            checkpoint.add(taken, counts_of_result(taken, many, 0))
        del taken, failures
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 5 << 20, "48 MB of texts came by"
    assert 3_000_000 < checkpoint.bytes < 10_000_000, "each row counts, its traceback once"
    ((_, _, file),) = list(checkpoint.take_files())
    assert file.bytes < 2_000_000
    table = pq.read_table(io.BytesIO(b"".join(file.content)))
    assert table.schema.equals(FAILURES), "foreign readers find plain strings"
    assert table.num_rows == n_groups * n_replicates
    assert {text[:10] for text in table["traceback"].unique().to_pylist()} == {f"in group {i}" for i in range(3)}
    assert table["message"].to_pylist()[:2] == ["no 0", "no 1"]
