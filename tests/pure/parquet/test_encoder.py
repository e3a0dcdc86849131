"""Parts and the table of groups as Parquet files."""

from __future__ import annotations

import gc
import hashlib
import io
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mops.errors import CorruptRecord, StorageError
from mops.jobs.chosen_groups import ExtendedGroups
from mops.parquet.encoder import ROW_GROUP_BYTES, WRITE_BYTES, PartEncoder, encode
from mops.storage.backends.base import Spool
from mops.storage.files import Files
from mops.storage.params_file import encode_groups, load_groups, parameter_columns, read_groups
from mops.storage.paths import JobPaths, new_job_id
from mops.study.groups import Group, GroupTable, StudyGroups
from mops.study.ids_and_seeds import param_id
from mops.study.study_file import parse_study

SETS = [{"beta": 0.5, "n": 1}, {"beta": 0.25, "n": 2**63, "name": "Genève"}, {"on": True}]
SEEDS = [(7, 2**64 - 1), (1, 2, 3), (9,)]


@pytest.fixture
def groups() -> list[Group]:
    return [Group(i, param_id(p), p, s) for i, (p, s) in enumerate(zip(SETS, SEEDS, strict=True))]


def asked(groups: list[Group]) -> StudyGroups:
    """Return the groups as a study that names every seed asks for them."""
    sets = [{"params": group.params, "seed": seed} for group in groups for seed in group.seeds]
    return parse_study({"model": "m:f", "parameter_sets": sets}, where="study.json").groups


def whole(groups: list[Group]) -> GroupTable:
    return read_groups(encode_groups(asked(groups), Spool()).content.opened(), "params.parquet")


def read(table: pa.Table) -> pa.Table:
    return pq.read_table(io.BytesIO(b"".join(encode(table, Spool()).content)))


NO_TYPE_YET = {
    "in a struct": pa.array([{"a": 1, "b": None}] * 3),
    "in a list": pa.array([[None]] * 3),
    "in structs in lists": pa.array([[{"b": None}]] * 3),
}


def test_a_part_of_nested_nulls_is_written(subtests: pytest.Subtests) -> None:
    """pyarrow's cast of a slice to its own type made an invalid column, which killed the runner."""
    for case, column in NO_TYPE_YET.items():
        with subtests.test(case):
            assert read(pa.table({"x": column}).slice(1)).equals(pa.table({"x": column[1:]}))


ONLY_IN_ARROW = {
    "duration": pa.array([1, None], pa.duration("s")),
    "zone": pa.array([1, None], pa.timestamp("us", "Europe/Zurich")),
    "durations in a list": pa.array([[1], None], pa.list_(pa.duration("ns"))),
}


def test_durations_and_time_zones_are_kept(subtests: pytest.Subtests) -> None:
    """pyarrow dropped the Arrow schema of the file: durations came back as integers, time zones as UTC."""
    for case, column in ONLY_IN_ARROW.items():
        with subtests.test(case):
            table = pa.table({"param_id": pa.array(["a", "b"]).dictionary_encode(), "x": column})
            assert read(table).equals(pa.table({"param_id": ["a", "b"], "x": column}))


def test_groups_are_the_same_after_they_were_stored(groups: list[Group]) -> None:
    table = whole(groups)
    assert [table.group(i) for i in range(len(table))] == groups
    assert table.n_simulations == 6
    assert [table.n_replicates(i) for i in range(3)] == [2, 3, 1]


def test_parameters_have_typed_columns(groups: list[Group]) -> None:
    columns = pq.read_table(encode_groups(asked(groups), Spool()).content.opened())
    assert columns["beta"].to_pylist() == [0.5, 0.25, None]
    assert columns["on"].to_pylist() == [None, None, True]
    assert columns["name"].to_pylist() == [None, "Genève", None]
    assert columns["n"].to_pylist() == ["1", "9223372036854775808", None]  # beyond 64 bits: as text, exactly


def test_a_parameter_named_like_an_identity_column_does_not_hide_it() -> None:
    params = {"group": 5, "seeds": 1}
    (group,) = [Group(0, param_id(params), params, (3,))]
    columns = pq.read_table(encode_groups(asked([group]), Spool()).content.opened())
    assert columns["group"].to_pylist() == [0]
    assert columns["param.group"].to_pylist() == [5]


def test_an_invalid_table_of_groups_is_a_corrupt_record() -> None:
    with pytest.raises(CorruptRecord, match="table of groups"):
        read_groups(pa.BufferReader(b"not parquet"), "params.parquet")


def test_any_reader_of_parquet_reads_a_part(groups: list[Group]) -> None:
    rows = whole(groups).identify(pa.table({"x": [1.5]}), [(0, 0)], [1])
    data = b"".join(encode(rows, Spool()).content)
    assert pq.read_schema(io.BytesIO(data)).field("param_id").type == pa.string()
    assert pl.read_parquet(io.BytesIO(data)).schema["param_id"] == pl.String
    assert pl.read_parquet(io.BytesIO(data)).schema["seed"] == pl.UInt64


def test_a_part_without_rows_has_all_columns(groups: list[Group]) -> None:
    rows = whole(groups).identify(pa.table({"x": pa.array([], pa.float64())}), [(0, 0)], [0])
    assert read(rows).num_rows == 0
    assert read(rows).column_names == ["param_id", "group", "replicate", "seed", "x"]


def test_digest_rows_and_bytes_are_those_of_the_file(groups: list[Group]) -> None:
    encoded = encode(pa.table({"x": list(range(1000))}), Spool())
    data = b"".join(encoded.content)
    assert (encoded.rows, encoded.bytes) == (1000, len(data))
    assert encoded.digest == hashlib.sha256(data).hexdigest()


def test_rows_are_encoded_as_soon_as_a_row_group_is_full() -> None:
    table = pa.table({"x": np.random.default_rng(1).random(ROW_GROUP_BYTES // 8 // 4)})
    encoder = PartEncoder(table.schema, Spool())
    for _ in range(9):
        encoder.write(table)
    stored = pq.ParquetFile(io.BytesIO(b"".join(encoder.finish().content)))
    assert stored.metadata.num_rows == 9 * table.num_rows
    assert stored.num_row_groups == 3


def test_rows_that_would_make_a_row_group_too_large_start_the_next() -> None:
    table = pa.table({"x": np.random.default_rng(1).random(ROW_GROUP_BYTES // 8 * 3 // 4)})
    encoder = PartEncoder(table.schema, Spool())
    for _ in range(3):
        encoder.write(table)
    stored = pq.ParquetFile(io.BytesIO(b"".join(encoder.finish().content))).metadata
    assert [stored.row_group(i).num_rows for i in range(stored.num_row_groups)] == [table.num_rows] * 3


class CountingSpool(Spool):
    """Counts writes; from the ``full_at``-th on, the disk is full."""

    def __init__(self, full_at: float = float("inf")):
        super().__init__()
        self.n_writes, self._full_at = 0, full_at

    def write(self, data: Any) -> None:
        self.n_writes += 1
        if self.n_writes >= self._full_at:
            raise StorageError("the disk is full", where="/parts", hint="free space")
        super().write(data)


def test_a_row_group_is_written_in_few_pieces() -> None:
    """Parquet's writer writes each page and its header separately: 110 calls of Python for a row group."""
    columns = {name: np.random.default_rng(1).random(100_000) for name in "abcde"}
    spool = CountingSpool()
    encoded = encode(pa.table(columns), spool)
    assert spool.n_writes <= encoded.bytes / WRITE_BYTES + 2 * len(columns)


@pytest.mark.parametrize("full_at", [1, 2])
def test_a_disk_that_is_full_is_reported_once(full_at: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Arrow wrote what it still held when it was freed, and printed the second error."""
    table = pa.table({"x": np.random.default_rng(1).random(ROW_GROUP_BYTES // 8)})
    with pytest.raises(StorageError, match="the disk is full"):
        encode(table, CountingSpool(full_at))
    gc.collect()
    assert capfd.readouterr().err == ""


def test_tables_without_rows_make_no_row_groups() -> None:
    large = pa.table({"x": np.random.default_rng(1).random(ROW_GROUP_BYTES // 8 + 1)})
    encoder = PartEncoder(large.schema, Spool())
    for table in (large[:0], large, large[:0], large, large[:10], large[:0]):
        encoder.write(table)
    stored = pq.ParquetFile(io.BytesIO(b"".join(encoder.finish().content))).metadata
    assert [stored.row_group(i).num_rows for i in range(stored.num_row_groups)] == [large.num_rows, large.num_rows, 10]


def test_a_column_of_parameters_holds_every_value_exactly(subtests: pytest.Subtests) -> None:
    """Integers beyond 2^53 beside floats lost digits."""
    for values, kind, texts in [
        ([1, 0.5], pa.float64(), None),
        ([2**53, 0.5], pa.float64(), None),
        ([1, 2**53 + 1], pa.int64(), None),
        ([2**63 - 1], pa.int64(), None),
        ([2**53 + 1, 2**53, 0.5], pa.string(), ["9007199254740993", "9007199254740992", "0.5"]),
        ([2**63, 1], pa.string(), ["9223372036854775808", "1"]),
    ]:
        with subtests.test(str((values, kind, texts))):
            parameters = [Group(i, param_id({"x": x}), {"x": x}, (0,)) for i, x in enumerate(values)]
            column = pq.read_table(encode_groups(asked(parameters), Spool()).content.opened())["x"]
            assert (column.type, column.to_pylist()) == (kind, texts or values)


def test_an_extension_keeps_the_order_of_the_parameters(subtests: pytest.Subtests) -> None:
    """Regression: the columns of the parameters were in alphabetical order after `extend`, with other names."""
    for names in [["z", "seeds", "b"], ["a", "A"], ["A", "a"]]:
        with subtests.test(str(names)):
            files, sets = Files.open("memory://order"), [dict.fromkeys(names, 1), dict.fromkeys(reversed(names), 2)]
            study = parse_study({"model": "m:f", "parameter_sets": sets}, where="study.json")
            more = parse_study({"model": "m:f", "parameter_sets": [sets[0] | {"new": 7}]}, where="more.json")
            first, second = JobPaths("first", new_job_id()), JobPaths("second", new_job_id())
            files.put(first.params, encode_groups(study.groups, Spool()).content)
            columns = parameter_columns(files, first)
            assert columns == [name if name in (names[0], "b") else f"param.{name}" for name in names]
            extended = ExtendedGroups(load_groups(files, first), 2, more.groups, columns)
            files.put(second.params, encode_groups(extended, Spool()).content)
            assert parameter_columns(files, second) == [*columns, "new"]
