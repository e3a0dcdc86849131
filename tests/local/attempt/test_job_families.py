"""Tables of any types from tasks in any order: all accepted tables read as one dataset with their values."""

from __future__ import annotations

import datetime as dt
import math
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from mops.attempt.commit import OpenCheckpoint
from mops.attempt.job_families import JobFamilies
from mops.child.buffers import BufferWriter, GroupName, map_buffer
from mops.child.channel import Channel
from mops.child.columns import plain
from mops.child.task_run import with_one_schema
from mops.parquet.output_file import StoredTypes
from mops.parquet.schemas import unified
from mops.storage.backends.base import Spool
from mops.storage.dataset import FilteredFile, opened
from mops.study.casts import is_list
from mops.study.column_families import MIXED, NAN, Families, Family, is_number, join_columns, join_families, joined
from mops.study.column_types import families_in
from mops.study.groups import GroupBuilder, GroupTable, json_column
from mops.study.output_schema import InvalidOutput, OutputSchema
from mops.study.ranges import Ranges
from mops.task import Failure, PartFile, ResultBuffer, Segment, TaskResult
from mops.verdicts import Counts

N_GROUPS = 12

EDGES = [0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
UNSIGNED = [0, 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = st.one_of(st.sampled_from([0.5, -0.0, math.nan, math.inf, 2.0**53]), st.floats(width=32))
MOMENTS = [dt.datetime(1, 1, 1), dt.datetime(1970, 1, 1, 0, 0, 0, 1), dt.datetime(2024, 2, 29), dt.datetime(3000, 1, 1)]
MICROSECONDS = [int((moment - dt.datetime(1970, 1, 1)) / dt.timedelta(microseconds=1)) for moment in MOMENTS]
LEAVES: dict[str, list[tuple[pa.DataType, st.SearchStrategy[Any]]]] = {
    "numbers": [
        (pa.int8(), st.integers(-3, 3)),
        (pa.int64(), st.sampled_from(EDGES)),
        (pa.uint16(), st.integers(0, 3)),
        (pa.uint64(), st.sampled_from(UNSIGNED)),
        (pa.float32(), FLOATS),
        (pa.float64(), FLOATS),
    ],
    "times": [
        (pa.timestamp("ms"), st.sampled_from(MICROSECONDS).map(lambda us: us // 1000)),
        (pa.timestamp("us"), st.sampled_from(MICROSECONDS)),
        (pa.timestamp("ns"), st.sampled_from([0, 1, 1000, -(2**60)])),
        (pa.timestamp("us", "UTC"), st.sampled_from(MICROSECONDS)),
        (pa.timestamp("ms", "Europe/Zurich"), st.sampled_from([0, 10**12])),
        (pa.timestamp("ns", "+02:00"), st.sampled_from([1, 1000])),
        (pa.date32(), st.integers(0, 20_000)),
        (pa.float64(), st.just(math.nan)),
    ],
    "durations": [
        (pa.duration("s"), st.sampled_from([0, -5, 10**12])),
        (pa.duration("us"), st.sampled_from([1, 10**15])),
        (pa.duration("ns"), st.sampled_from([1, 1000])),
        (pa.time32("ms"), st.integers(0, 86_399_999)),
        (pa.time64("ns"), st.integers(0, 10**9)),
    ],
    "other": [
        (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=3)),
        (pa.bool_(), st.booleans()),
        (pa.float32(), st.just(math.nan)),
        (pa.binary(), st.binary(max_size=3)),
        (pa.binary(2), st.binary(min_size=2, max_size=2)),
        (pa.decimal128(5, 2), st.sampled_from([Decimal("1.25"), Decimal("-999.99")])),
        (pa.decimal128(38, 0), st.just(Decimal(10**37))),
        (pa.decimal256(60, 38), st.just(Decimal(10) ** 20)),
        (pa.decimal256(76, 38), st.just(Decimal(10) ** 37)),
    ],
}
LEAVES["all"] = [leaf for leaves in LEAVES.values() for leaf in leaves]


@st.composite
def columns(draw: st.DrawFn, theme: str, depth: int = 2) -> pa.Array:
    """Draw a column of up to three rows, often without values, or without rows."""
    kind, values = draw(kinds(theme, depth))
    return pa.array(draw(st.lists(values | st.none(), max_size=3)), kind)


@st.composite
def kinds(draw: st.DrawFn, theme: str, depth: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    form = draw(st.sampled_from(["leaf"] * 3 + ["list", "struct", "map"])) if depth else "leaf"
    if form == "leaf":
        return draw(st.sampled_from([*LEAVES[theme], (pa.null(), st.none())]))
    kind, values = draw(kinds(theme, depth - 1))
    if form == "list":
        return pa.list_(kind), st.lists(values | st.none(), max_size=2)
    if form == "map":
        return pa.map_(pa.string(), kind), st.lists(st.tuples(st.sampled_from("ab"), values | st.none()), max_size=2)
    names = draw(st.permutations("ab"))
    return pa.struct([(name, kind) for name in names]), st.fixed_dictionaries(dict.fromkeys("ab", values | st.none()))


@st.composite
def studies(draw: st.DrawFn) -> list[pa.Table]:
    """Draw the table that each group returns."""
    theme = draw(st.sampled_from(list(LEAVES)))
    depth = draw(st.sampled_from([0, 0, 1, 2]))
    few = draw(st.lists(columns(theme, depth), min_size=1, max_size=5))
    return [plain(pa.table({"x": draw(st.sampled_from(few))})) for _ in range(draw(st.integers(1, N_GROUPS)))]


def group_table() -> GroupTable:
    builder = GroupBuilder(1)
    for i in range(N_GROUPS):
        builder.add({"a": json_column([i])}, [i], [i])
    return builder.build()[0]


GROUPS = group_table()


@dataclass
class Job:
    """A job with the real code of runner and child process. The test chooses tasks and deaths."""

    results: Sequence[pa.Table]
    folder: Path
    reference: Families | None = None
    commits: list[Families] = field(default_factory=list)
    parts: list[Path] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)

    def begin_attempt(self) -> None:
        stored = None if self.reference is None else join_families(self.reference, *self.commits)
        self.families = JobFamilies(stored, stored)
        self.types = StoredTypes(self.families.of)
        self.begin_checkpoint()

    def begin_checkpoint(self) -> None:
        self.open = OpenCheckpoint(GROUPS, None, Spool, self.types)
        self.failed: dict[int, str] = {}
        self.encoded: list[bytes] = []

    def commit(self) -> None:
        families = self.families.unstored(self.open.families)
        for content in [*self.encoded, *(file.content.read() for _, _, file in self.open.take_outputs())]:
            path = self.folder / f"{len(self.parts)}.parquet"
            path.write_bytes(content)
            self.parts.append(path)
        self.commits.append(families)
        self.families.store(families)
        self.committed |= {*self.open.groups}
        self.refused |= self.failed
        self.begin_checkpoint()

    def run(self, known: Families | None, groups: Sequence[int], *, encode: bool = False) -> TaskResult:
        """Run groups with the code of a child process that knows these families.

        Parameters
        ----------
        encode
            Whether the process encodes the rows as Parquet.
        """
        ours, theirs = (Channel(end) for end in socket.socketpair())
        out, reference, failures = BufferWriter(ours, None, "test"), OutputSchema(known) if known else None, []
        first = None
        for group in groups:
            tables = {"out": self.results[group]}
            if reference is None:
                first = {"out": families_in(tables["out"])}
                reference = OutputSchema(first)
            try:
                out.finished(group, 0, 1, reference.check(tables))
            except InvalidOutput as refused:
                failures.append(Failure(group, 0, 0, None, "invalid_output", str(refused), "", 1))
        result = TaskResult(("sim-1",), frozenset(groups), 1.0, first or known, failures=failures)
        if len(failures) < len(groups):
            if encode:
                assert reference is not None
                names = {group: GroupName(group, str(GROUPS.group(group).param_id)) for group in groups}
                out.encode(names, lambda name: reference.families[name], None)
            out.flush()
            receive(theirs, result)
        ours.close()
        theirs.close()
        return result

    def take(self, result: TaskResult) -> frozenset[int]:
        """Take a result; return the groups that run again."""
        if self.reference is None:
            self.reference = result.reference
            assert self.reference is not None
            self.families.set_reference(self.reference)
        fitting, why = self.families.accept(result)
        assert bool(why) == (fitting.done != result.done)
        self.failed |= {failure.group: failure.message for failure in fitting.failures}
        self.open.add(fitting, Counts())
        self.encoded += [file.content.to_pybytes() for _, _, file in self.open.take_encoded()]
        return result.done - fitting.done


def receive(channel: Channel, result: TaskResult) -> None:
    """Receive what a child process has handed over."""
    message, fd = channel.receive()
    assert fd is not None
    if message["kind"] == "file":
        content = pa.py_buffer(map_buffer(fd))
        message, _ = channel.receive()
        groups = frozenset(message["encoded"])
        result.files = [PartFile(**facts, groups=groups, content=content) for facts in message["files"]]
        return
    segments = [
        Segment("out", s["offset"], s["length"], [(g, 0) for g, _ in s["simulations"]], s["rows"], s["families"])
        for s in message["outputs"]["out"]
    ]
    result.buffers = [ResultBuffer(pa.py_buffer(map_buffer(fd)), segments)]


def drive(job: Job, data: st.DataObject) -> None:
    """Run a job to its end: tasks of several groups, several in flight, checkpoints and deaths in between."""
    while left := set(range(len(job.results))) - job.committed:
        job.begin_attempt()
        waiting = data.draw(st.permutations(sorted(left)))
        in_flight: list[tuple[Families | None, list[int]]] = []
        runs = dict.fromkeys(left, 0)
        while waiting or in_flight:
            if waiting and (len(in_flight) < 2 or data.draw(st.booleans())) and (job.reference or not in_flight):
                size = 1 if job.reference is None else data.draw(st.integers(1, 4))
                in_flight.append((job.families.known, waiting[:size]))
                waiting = waiting[size:]
                continue
            known, groups = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
            again = job.take(job.run(known, groups, encode=data.draw(st.booleans())))
            for group in again:
                runs[group] += 1
                assert runs[group] < 12, "it runs again without end"
            waiting = [*sorted(again), *waiting]
            event = data.draw(st.sampled_from(["", "", "commit", "death"]))
            if event == "commit":
                job.commit()
            elif event == "death" and job.committed:
                break
        else:
            job.commit()


def same(found: Any, wanted: Any) -> bool:
    """Compare values: NaN is itself, numbers are equal exactly, whatever their type."""
    if isinstance(found, list | tuple):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(found, dict):
        return found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in found)
    return bool(found == wanted) or (found != found and wanted != wanted)


@settings(max_examples=max(100, settings().max_examples))
@given(studies(), st.data())
def test_accepted_tables_read_as_one_dataset_and_the_others_are_refused_by_name(
    results: list[pa.Table], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(results, Path(folder))
        drive(job, data)
        assert job.reference is not None
        families = join_families(job.reference, *job.commits)["out"]
        schemas = [pq.read_schema(path) for path in job.parts]
        schema = unified(schemas, folder, families)
        files = [
            FilteredFile(str(path), stored, "j", Ranges()) for path, stored in zip(job.parts, schemas, strict=True)
        ]
        differ = any(stored.field("x").type != schema.field("x").type for stored in schemas)
        assume(not (differ and has_lists_of_nulls(schema.field("x").type)))  # pyarrow's fault, see the next test
        dataset = opened(files, schema, LocalFileSystem(), ds.ParquetFileFormat())
        table = dataset.to_table() if files else pa.table({"group": []})
        rows: dict[int, list[Any]] = {}
        for row in table.to_pylist():
            rows.setdefault(row["group"], []).append(row["x"])
        accepted: dict[str, Family] = {}
        for group, result in enumerate(results):
            if group not in job.refused:
                values = result["x"].to_pylist()
                if families_in(result)["x"] == NAN and not (families["x"] == NAN or is_number(families["x"])):
                    values = [None] * len(values)
                assert same(rows.get(group, []), values)
                accepted = join_columns(accepted, families_in(result))
            else:
                assert group not in rows
                assert "column 'x'" in job.refused[group]
                assert joined(families["x"], families_in(result)["x"]) == MIXED
        assert accepted["x"] == families["x"] if accepted else True
        for path in job.parts:
            assert join_columns(families, families_in(pq.read_table(path).select(["x"]))) == families


def has_lists_of_nulls(kind: pa.DataType) -> bool:
    """Tell whether a type is or holds a list whose elements have no type."""
    if is_list(kind):
        return pa.types.is_null(kind.value_type) or has_lists_of_nulls(kind.value_type)
    return pa.types.is_struct(kind) and any(has_lists_of_nulls(field.type) for field in kind)


@pytest.mark.xfail(strict=True, raises=pa.ArrowIndexError, reason="pyarrow's cast of nested nulls, in its datasets")
def test_structs_of_lists_of_nulls_are_read_together_with_others(tmp_path: Path) -> None:
    """A known fault: mops leaves the conversion of stored files to pyarrow's dataset, which miscounts these nulls."""
    values = [{"a": [], "b": []}], [{"a": [None], "b": None}, {"a": [None, None], "b": None}]
    tables = [pa.table({"x": rows}) for rows in values]
    files = []
    for n, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{n}.parquet")
        files.append(FilteredFile(str(tmp_path / f"{n}.parquet"), table.schema, "j", Ranges()))
    schema = unified([table.schema for table in tables], "here")
    rows = opened(files, schema, LocalFileSystem(), ds.ParquetFileFormat()).to_table()["x"].to_pylist()
    assert rows == [*values[0], *values[1]]


def job_of(folder: Path, *values: object) -> Job:
    """Return a job whose groups return one value each, and whose first group has run."""
    job = Job([pa.table({"x": [value]}) for value in values], folder)
    job.begin_attempt()
    job.take(job.run(None, [0]))
    return job


def test_a_value_that_no_longer_fits_runs_again_and_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, None, 0.5, "a", 1, 2**60)
    known = job.families.known
    numbers, others = job.run(known, [1]), job.run(known, [2, 3, 4])
    assert len(others.failures) == 2, "in its task the text came first"
    assert job.take(others) == frozenset()
    assert job.take(numbers) == {1}
    assert job.take(job.run(job.families.known, [1])) == frozenset()
    job.commit()
    assert job.commits == [{"out": {"x": "string"}}]
    assert job.refused.keys() == {1, 3, 4}


def test_a_column_with_only_nan_fixes_no_family(tmp_path: Path) -> None:
    """NaN in the runs without an event, and text in the others: the others failed."""
    job = job_of(tmp_path, math.nan, "a", math.nan, 1.0)
    job.commit()
    assert job.take(job.run(job.families.known, [2])) == job.take(job.run(job.families.known, [1])) == frozenset()
    job.commit()
    assert join_families(job.reference or {}, *job.commits) == {"out": {"x": "string"}}
    assert job.take(job.run(job.families.known, [3])) == frozenset()
    assert job.failed.keys() == {3}
    for_targets = with_one_schema([{"out": pa.table({"x": values})} for values in ([math.nan], ["a"])])
    assert [tables["out"]["x"].to_pylist() for tables in for_targets] == [[None], ["a"]]


def test_a_group_that_failed_only_because_of_a_refused_value_runs_again(tmp_path: Path) -> None:
    """A number failed because of a text in its task, but the text failed too: the column of the job holds numbers."""
    job = job_of(tmp_path, None, 0.5, "a", 1)
    known = job.families.known
    job.take(job.run(known, [1]))
    assert job.take(job.run(known, [2, 3])) == {2, 3}
    assert job.take(job.run(job.families.known, [2, 3])) == frozenset()
    assert job.failed.keys() == {2}


@pytest.mark.parametrize("committed", [True, False])
def test_only_committed_results_fix_the_type_of_a_column(tmp_path: Path, committed: bool) -> None:
    job = job_of(tmp_path, None, 0.5, "a")
    job.commit()
    job.take(job.run(job.families.known, [1]))
    if committed:
        job.commit()
    job.begin_attempt()
    job.take(job.run(job.families.known, [2]))
    assert bool(job.failed) is committed


def test_one_value_that_does_not_fit_does_not_affect_other_groups_of_the_task(tmp_path: Path) -> None:
    job = job_of(tmp_path, 0, 0.5, 1, 2**60, 2)
    known = job.families.known
    job.take(job.run(known, [1]))
    assert job.take(job.run(known, [2, 3, 4])) == {3}
    job.commit()
    assert job.committed == {0, 1, 2, 4}


def test_a_piece_of_a_group_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    job = job_of(tmp_path, None, 0.5, "a")
    known = job.families.known
    job.take(job.run(known, [1]))
    result = job.run(known, [2])
    result.replicates = frozenset({0})
    result.done = frozenset()
    fitting, why = job.families.accept(result)
    assert (fitting.replicates, fitting.buffers, why) == (frozenset(), [], "output 'out', column 'x'")


def test_groups_of_a_file_with_a_value_that_no_longer_fits_run_again_together(tmp_path: Path) -> None:
    job = job_of(tmp_path, None, 0.5, 1, "a", 2)
    known = job.families.known
    job.take(job.run(known, [1]))
    text, number = job.run(known, [3], encode=True), job.run(known, [2, 4], encode=True)
    text.files = [replace(file, groups=frozenset({3, 4})) for file in text.files]
    text.done = frozenset({3, 4})
    assert job.take(text) == {3, 4}
    assert job.take(number) == frozenset()
    job.commit()
    assert job.committed == {0, 1, 2, 4}
    assert sum(pq.read_metadata(path).num_rows for path in job.parts) == 4


def test_a_commit_names_the_families_under_which_its_parts_are_stored(tmp_path: Path) -> None:
    """Regression: half a group with floats came and was lost with its runner, and the integers of others were nulls."""
    job = job_of(tmp_path, None, 0.5, 1)
    job.commit()
    half = job.run(job.families.known, [1])
    half.replicates, half.done = frozenset({0}), frozenset()
    job.families.accept(half)
    job.take(job.run(job.families.known, [2]))
    job.commit()
    families = join_families(job.reference or {}, *job.commits)["out"]
    tables = [pq.read_table(path).select(["x"]) for path in job.parts]
    schema = unified([table.schema for table in tables], "here", families)
    assert [table.cast(schema)["x"].to_pylist() for table in tables] == [[None], [1]]
