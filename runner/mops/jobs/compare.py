"""Compares results: of two jobs, and of runs of one simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from mops.errors import CorruptRecord
from mops.jobs.data import JobData, TableSummary
from mops.jobs.job import Job
from mops.parquet.schemas import unified
from mops.storage.params_file import load_groups
from mops.study.casts import converted, converted_table, is_list
from mops.study.groups import IDENTITY_FIELDS, PIECE_GROUPS, GroupTable
from mops.study.ids_and_seeds import short_id
from mops.task import LOSSES


def differing(a: pa.Array, b: pa.Array) -> npt.NDArray[np.bool_]:
    """Tell for each row of two arrays of one type and length whether the values differ."""
    if pa.types.is_floating(a.type):
        x, y = (column.to_numpy(zero_copy_only=False) for column in (a, b))
        bits = f"u{x.itemsize}"
        bits_differ = (x.view(bits) != y.view(bits)) & ~(np.isnan(x) & np.isnan(y))
        return np.asarray(bits_differ | (np.asarray(pc.is_null(a)) != np.asarray(pc.is_null(b))))
    if a.equals(b):
        return np.zeros(len(a), np.bool_)
    if pa.types.is_nested(a.type):  # a nested value may hold NaN, which Arrow calls unequal
        pairs = zip(*(without_times(column).to_pylist() for column in (a, b)), strict=True)
        return np.fromiter((not _equal(x, y) for x, y in pairs), np.bool_, len(a))
    unequal = pc.fill_null(pc.not_equal(a, b), fill_value=False)
    return np.asarray(pc.or_(unequal, pc.not_equal(pc.is_null(a), pc.is_null(b))))


def _equal(x: object, y: object) -> bool:
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() == y.keys() and all(_equal(x[key], y[key]) for key in x)
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) == len(y) and all(map(_equal, x, y))
    return repr(x) == repr(y)  # exact for floats, and equal for two NaN


def without_times(values: pa.Array) -> pa.Array:
    """Return an array with times as text, because Python's types cannot hold nanoseconds."""
    return converted(values, _timeless(values.type))


def _timeless(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_timeless(field.type)) for field in kind])
    return pa.list_(kind.value_field.with_type(_timeless(kind.value_type))) if is_list(kind) else kind


Tables = Mapping[str, pa.Table]
Losses = Mapping[tuple[str, str], float]  # by target and name

_ABSENT = "absent"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Difference:
    """One difference; the values as text."""

    what: str  # the place: `output 'daily', column 'y', row 3`
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.what}: {self.first} the first time, {self.second} the second"


def differing_tables(first: Tables, second: Tables) -> list[Difference]:
    """Return the differences of the outputs of two runs: for each column, the first row that differs."""
    return [difference for name in {**first, **second} for difference in _of_output(name, first, second)]


def differing_losses(first: Losses, second: Losses) -> list[Difference]:
    """Return the losses that differ between two runs of the targets."""
    found = []
    for target, name in {**first, **second}:
        key = target, name
        once, twice = (repr(losses[key]) if key in losses else _ABSENT for losses in (first, second))
        if once != twice:
            found.append(Difference(f"target {target!r}, loss {name!r}", once, twice))
    return found


def _of_output(output: str, first: Tables, second: Tables) -> Iterator[Difference]:
    what = f"output {output!r}"
    if output not in first or output not in second:
        yield Difference(what, *("present" if output in tables else _ABSENT for tables in (first, second)))
        return
    a, b = first[output], second[output]
    if a.num_rows != b.num_rows:
        yield Difference(f"{what}, rows", str(a.num_rows), str(b.num_rows))
    n_rows = min(a.num_rows, b.num_rows)
    for name in dict.fromkeys([*a.column_names, *b.column_names]):
        x, y = (table[name].combine_chunks() if name in table.column_names else None for table in (a, b))
        if x is None or y is None or x.type != y.type:
            types = (_ABSENT if column is None else str(column.type) for column in (x, y))
            yield Difference(f"{what}, column {name!r}", *types)
            continue
        row = _first_row(x.slice(0, n_rows), y.slice(0, n_rows))
        if row is not None:
            yield Difference(f"{what}, column {name!r}, row {row}", _text(x.slice(row, 1)), _text(y.slice(row, 1)))


def _first_row(a: pa.Array, b: pa.Array) -> int | None:
    rows = np.flatnonzero(differing(a, b))
    return int(rows[0]) if len(rows) else None


def _text(value: pa.Array) -> str:
    plain = without_times(value)[0].as_py()
    text = str(plain) if pa.types.is_temporal(value.type) else repr(plain)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


Numbers: TypeAlias = npt.NDArray[np.int64]
Read: TypeAlias = Callable[[Numbers], pa.Table]  # returns the rows of some groups

_SET, _SIMULATION, _LOSS = ("param_id",), ("param_id", "seed"), ("param_id", "target", "name")
_IDENTITY = {field.name for field in IDENTITY_FIELDS}
_EXAMPLES = 5
# About the values of one job that are in memory at once, if all sets have as many rows. Every read of some groups goes
# through all parts, so few reads of many groups take less time: a job of 20,000 sets took over 30 s with 256 groups.
_VALUES_AT_ONCE = 2_000_000
_BYTES_OF_VALUE = 2  # in a part, at least: a nested value may have many bytes, and equal values have few


@dataclass(frozen=True)
class Comparison:
    """What one part of two jobs' results has in common, and what differs."""

    what: str  # `parameter sets`, `simulations`, `output NAME` or `losses`
    same: int  # how many of both jobs are equal
    different: int  # Parameter sets and simulations cannot differ: they are equal or only in one job.
    only_a: int  # how many only one job has
    only_b: int
    examples: tuple[str, ...]  # some that differ or are only in one job, as text

    @property
    def is_equal(self) -> bool:
        """Whether both jobs have the same."""
        return not (self.different or self.only_a or self.only_b)


def compare(a: Job, b: Job) -> list[Comparison]:
    """Compare two jobs' parameter sets, simulations, outputs and losses."""
    # Simulations belong together if they have the same parameters and seed, whatever their group and replicate. The
    # rows of a simulation are equal if they have the same values in the same order, after both jobs' columns got one
    # type.
    both = [JobData.read(job.files, job.name) for job in (a, b)]
    tables = [load_groups(data.files, data.record.paths) for data in both]
    groups = _Groups.of(*tables)
    n_seeds = [data.record.n_simulations for data in both]
    n_sets, n_run = [len(table) for table in tables], [len(data.groups_run) for data in both]
    found = [
        _compare("parameter sets", _SET, [_reads_sets(table) for table in tables], groups, n_sets, n_sets),
        _compare("simulations", _SIMULATION, [_reads_seeds(table) for table in tables], groups, n_seeds, n_sets),
    ]
    for name in dict.fromkeys(name for data in both for name in data.output_names):
        rows = [_rows(data, name) for data in both]
        schema, other = _common(*rows)
        n_values = [_n_values(data.table("outputs", name), schema) for data in both]
        one = _compare(f"output {name}", _SIMULATION, [_reads(some, schema) for some in rows], groups, n_values, n_run)
        if other:
            example = f"only one job has the column, or its types differ: {', '.join(other)}"
            one = replace(one, same=0, different=one.same + one.different, examples=(example, *one.examples))
        found.append(one)
    kept = pa.schema([LOSSES.field(name) for name in (*_LOSS, "loss")])
    losses = [data.dataset("losses") for data in both]
    n_values = [_n_values(data.table("losses"), kept) for data in both]
    return [*found, _compare("losses", _LOSS, [_reads(rows, kept) for rows in losses], groups, n_values, n_run)]


def _n_values(table: TableSummary, schema: pa.Schema) -> int:
    return max(len(schema) * table.rows, table.bytes // _BYTES_OF_VALUE)


@dataclass(frozen=True)
class _Groups:
    """Which groups of two jobs have the same parameter sets."""

    same: Numbers  # for each group of the first job, that of the second job; -1: it has none
    only_b: Numbers

    @classmethod
    def of(cls, a: GroupTable, b: GroupTable) -> _Groups:
        ids_a, ids_b = (pa.concat_arrays([piece.ids for piece in table.pieces()]) for table in (a, b))
        same = pc.fill_null(pc.index_in(ids_a, ids_b), -1).to_numpy().astype(np.int64)
        is_in_both = np.zeros(len(ids_b), np.bool_)
        is_in_both[same[same >= 0]] = True
        return cls(same, np.flatnonzero(~is_in_both))

    def batches(self, n: int) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield at most ``n`` groups of each job, which have the same parameter sets or are in one job only."""
        for at in range(0, len(self.same), n):
            some = self.same[at : at + n]
            yield np.arange(at, at + len(some)), some[some >= 0]
        for at in range(0, len(self.only_b), n):
            yield np.zeros(0, np.int64), self.only_b[at : at + n]


def _reads_sets(table: GroupTable) -> Read:
    return lambda groups: pa.table({"param_id": table.param_ids(groups.tolist())})


def _reads_seeds(table: GroupTable) -> Read:
    def read(groups: Numbers) -> pa.Table:
        groups = np.sort(groups)
        parts = [groups[at : at + PIECE_GROUPS] for at in range(0, len(groups), PIECE_GROUPS)]
        return pa.concat_tables([schema.empty_table(), *map(seeds_of, parts)])

    def seeds_of(groups: Numbers) -> pa.Table:
        some = table.groups(groups.tolist())  # with all their parameters, so few at once
        ids = [group.param_id for group in some for _ in group.seeds]
        return pa.table([ids, [seed for group in some for seed in group.seeds]], schema=schema)

    schema = pa.schema([("param_id", pa.string()), ("seed", pa.uint64())])
    return read


def _reads(rows: ds.Dataset, schema: pa.Schema) -> Read:
    def read(groups: Numbers) -> pa.Table:
        if not len(groups):
            return schema.empty_table()
        # Parquet's statistics say which parts may have groups of the interval, and not which have some of many groups.
        group = pc.field("group")
        is_near = (group >= pa.scalar(groups.min())) & (group <= pa.scalar(groups.max()))
        some = rows.to_table(schema.names, filter=is_near & group.isin(pa.array(groups)))
        return converted_table(some, schema)

    return read


def _rows(data: JobData, output: str) -> ds.Dataset:
    if output in data.output_names:
        return data.dataset("outputs", output)
    return ds.dataset(pa.schema(IDENTITY_FIELDS).empty_table())


def _common(a: ds.Dataset, b: ds.Dataset) -> tuple[pa.Schema, list[str]]:
    """Return the columns of both jobs with a type for the values of both, and the names of all others."""
    common, other = [], sorted({*a.schema.names} ^ {*b.schema.names})
    for name in (name for name in a.schema.names if name in b.schema.names):
        try:
            schemas = [pa.schema([rows.schema.field(name)]) for rows in (a, b)]
            common.append(unified(schemas, name).field(name))
        except CorruptRecord:  # no type holds the values of both
            other.append(name)
    return pa.schema(common), other


def _compare(
    what: str,
    keys: Sequence[str],  # rows with the same keys belong together, in their order
    reads: Sequence[Read],
    groups: _Groups,
    n_values: Sequence[int],  # of each job
    n_sets: Sequence[int],  # of each job: those that have these values
) -> Comparison:
    at_once = min(_VALUES_AT_ONCE * n // max(values, 1) for n, values in zip(n_sets, n_values, strict=True))
    found = Comparison(what, 0, 0, 0, 0, ())
    for batch in groups.batches(max(at_once, 1)):
        a, b = (read(some) for read, some in zip(reads, batch, strict=True))
        found = _sum(found, _compared(what, keys, a, b))
    return found


def _sum(one: Comparison, other: Comparison) -> Comparison:
    numbers = {name: getattr(one, name) + getattr(other, name) for name in ("same", "different", "only_a", "only_b")}
    return replace(one, **numbers, examples=(*one.examples, *other.examples)[:_EXAMPLES])


def _compared(what: str, keys: Sequence[str], a: pa.Table, b: pa.Table) -> Comparison:
    both = pa.concat_tables([a.select(keys), b.select(keys)])
    codes, first = _codes(both)
    of_a, of_b = codes[: len(a)], codes[len(a) :]
    n_a, n_b = (np.bincount(some, minlength=len(first)) for some in (of_a, of_b))
    is_common = (n_a > 0) & (n_b > 0)
    is_aligned = is_common & (n_a == n_b)
    differs = is_common & ~is_aligned
    orders = [np.argsort(some, kind="stable") for some in (of_a, of_b)]
    rows = [order[is_aligned[some[order]]] for some, order in zip((of_a, of_b), orders, strict=True)]
    differs[of_a[rows[0]][_differing_rows(a.take(rows[0]), b.take(rows[1]), keys)]] = True
    kinds = {"differs": differs, "is only in the first job": n_b == 0, "is only in the second job": n_a == 0}
    examples = [
        f"{_key_text(both.slice(int(at), 1).to_pylist()[0])} {how}"
        for how, mask in kinds.items()
        for at in np.sort(first[mask])[: _EXAMPLES - 2]
    ]
    n_different, n_only_a, n_only_b = (int(mask.sum()) for mask in kinds.values())
    return Comparison(what, int(is_common.sum()) - n_different, n_different, n_only_a, n_only_b, tuple(examples))


def _codes(keys: pa.Table) -> tuple[Numbers, Numbers]:
    """Return a number for each row, equal for equal rows, from 0 on; and the first row with each number."""
    codes = np.zeros(len(keys), np.int64)
    for column in keys.columns:
        values = pc.dictionary_encode(column.combine_chunks()).indices.to_numpy()
        _, codes = np.unique(codes * (int(values.max(initial=0)) + 1) + values, return_inverse=True)
    _, first = np.unique(codes, return_index=True)
    return codes, first


def _differing_rows(a: pa.Table, b: pa.Table, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(a), np.bool_)
    for name in (name for name in a.schema.names if name not in _IDENTITY and name not in keys):
        found |= differing(a[name].combine_chunks(), b[name].combine_chunks())
    return found


def _key_text(key: dict[str, object]) -> str:
    identity, *rest = key.values()
    words = [f"seed {one}" if name == "seed" else str(one) for name, one in zip(list(key)[1:], rest, strict=True)]
    return f"set {short_id(str(identity))}{', ' if words else ''}{' '.join(words)}"
