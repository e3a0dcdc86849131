"""Compares the results of two jobs: parameter sets, seeds, rows of outputs, losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from mops.errors import CorruptRecord
from mops.jobs.job import Job
from mops.parquet.schemas import unified
from mops.study.groups import IDENTITY_FIELDS
from mops.study.ids_and_seeds import short_id

Key: TypeAlias = "str | tuple[Any, ...]"
"""A parameter set (param_id), a simulation (param_id, seed) or a loss (param_id, target, name)."""

_IDENTITY = {field.name for field in IDENTITY_FIELDS}
_EXAMPLES = 5
_GROUPS_AT_ONCE = 256
_KEYS = ["param_id", "seed"]


@dataclass(frozen=True)
class Comparison:
    """What one part of two jobs' results has in common, and what differs.

    Parameters
    ----------
    what
        ``parameter sets``, ``simulations``, ``output NAME`` or ``losses``.
    same, different
        How many of both jobs are equal, and how many are not. Of parameter sets and simulations none can differ: they
        are equal or only in one job.
    only_a, only_b
        How many only one job has.
    examples
        Some that differ or are only in one job, as text.
    """

    what: str
    same: int
    different: int
    only_a: int
    only_b: int
    examples: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether both jobs have the same."""
        return not (self.different or self.only_a or self.only_b)


def compare(a: Job, b: Job) -> list[Comparison]:
    """Compare the results of two jobs.

    Simulations belong together if they have the same parameters and seed, whatever their group and replicate. The rows
    of a simulation are equal if they have the same values in the same order, after both jobs' columns got one type.

    Returns
    -------
    list of Comparison
        For the parameter sets, the simulations, each output, and the losses.
    """
    params = [job.params(columns=["param_id", "group", "seeds"]).to_arrow() for job in (a, b)]
    sets = [dict.fromkeys(table["param_id"].to_pylist()) for table in params]
    found = [_comparison("parameter sets", *sets), _comparison("simulations", *map(_simulations, params))]
    both = _by_groups(*params)
    names = dict.fromkeys([*a.output_names(), *b.output_names()])
    found += [_compare_output(name, _rows(a, name), _rows(b, name), both) for name in names]
    return [*found, _comparison("losses", _losses(a), _losses(b))]


def _comparison(what: str, a: Mapping[Key, object], b: Mapping[Key, object]) -> Comparison:
    different = [key for key in a if key in b and a[key] != b[key]]
    only_a, only_b = [key for key in a if key not in b], [key for key in b if key not in a]
    examples = [f"{_text(key)} differs" for key in different[:3]]
    examples += [f"{_text(key)} is only in the first job" for key in only_a[:2]]
    examples += [f"{_text(key)} is only in the second job" for key in only_b[:2]]
    n_same = len(a) - len(only_a) - len(different)
    return Comparison(what, n_same, len(different), len(only_a), len(only_b), tuple(examples))


def _text(key: Key) -> str:
    if isinstance(key, str):
        return f"set {short_id(key)}"
    identity, *rest = key
    return f"set {short_id(identity)}, {'seed ' if len(rest) == 1 else ''}{' '.join(map(str, rest))}"


def _simulations(params: pa.Table) -> dict[Key, object]:
    pairs = zip(params["param_id"].to_pylist(), params["seeds"].to_pylist(), strict=True)
    return {(identity, seed): None for identity, seeds in pairs for seed in seeds}


def _losses(job: Job) -> dict[Key, object]:
    rows = job.losses().to_arrow().to_pylist()
    return {(row["param_id"], row["target"], row["name"]): row["loss"] for row in rows}


def _rows(job: Job, output: str) -> ds.Dataset:
    if output in job.output_names():
        return job.dataset("outputs", output)
    return ds.dataset(pa.schema(IDENTITY_FIELDS).empty_table())


def _by_groups(a: pa.Table, b: pa.Table) -> list[tuple[list[int], list[int]]]:
    """Return the groups of both jobs, some at a time: those of the same parameter sets come together."""
    of_a, of_b = (dict(zip(table["param_id"].to_pylist(), table["group"].to_pylist(), strict=True)) for table in (a, b))
    identities = list(dict.fromkeys([*of_a, *of_b]))
    return [
        ([of_a[one] for one in some if one in of_a], [of_b[one] for one in some if one in of_b])
        for some in (identities[at : at + _GROUPS_AT_ONCE] for at in range(0, len(identities), _GROUPS_AT_ONCE))
    ]


def _compare_output(
    output: str, a: ds.Dataset, b: ds.Dataset, both: Iterable[tuple[list[int], list[int]]]
) -> Comparison:
    schema, other = _common_columns(a.schema, b.schema)
    found = Comparison(f"output {output}", 0, 0, 0, 0, ())
    for groups_a, groups_b in both:
        mine, theirs = _some(a, schema, groups_a), _some(b, schema, groups_b)
        found = _sum(found, _comparison(found.what, *_compared(mine, theirs)))
    if not other:
        return found
    example = f"only one job has the column, or its types differ: {', '.join(other)}"
    return replace(found, same=0, different=found.same + found.different, examples=(example, *found.examples))


def _common_columns(a: pa.Schema, b: pa.Schema) -> tuple[pa.Schema, list[str]]:
    """Return the columns of both jobs with a type for the values of both, and the names of all others."""
    common, other = [], sorted({*a.names} ^ {*b.names})
    for name in (name for name in a.names if name in b.names):
        try:
            common.append(unified([pa.schema([a.field(name)]), pa.schema([b.field(name)])], name).field(name))
        except CorruptRecord:  # no type holds the values of both
            other.append(name)
    return pa.schema(common), other


def _sum(one: Comparison, other: Comparison) -> Comparison:
    numbers = {name: getattr(one, name) + getattr(other, name) for name in ("same", "different", "only_a", "only_b")}
    return replace(one, **numbers, examples=(*one.examples, *other.examples)[:_EXAMPLES])


def _some(rows: ds.Dataset, schema: pa.Schema, groups: list[int]) -> pa.Table:
    """Return the rows of some groups in one order, with the types of both jobs."""
    table = rows.to_table(schema.names, filter=pc.field("group").isin(groups)).cast(schema)
    return table.take(pc.sort_indices(table, [(name, "ascending") for name in _KEYS]))


def _compared(a: pa.Table, b: pa.Table) -> tuple[dict[Key, object], dict[Key, object]]:
    """Return a value for each simulation of each table; they are equal if its rows are."""
    n_rows = [_n_rows(table) for table in (a, b)]
    aligned = {key for key, n in n_rows[0].items() if n_rows[1].get(key) == n}
    mine, theirs = (table.filter(pa.array([key in aligned for key in _keys(table)], pa.bool_())) for table in (a, b))
    differs = pa.array([False] * len(mine), pa.bool_())
    for name in (name for name in a.schema.names if name not in _IDENTITY):
        differs = pc.or_(differs, _differ(mine[name].combine_chunks(), theirs[name].combine_chunks()))
    changed = {key for key, is_other in zip(_keys(mine), differs.to_pylist(), strict=True) if is_other}
    return n_rows[0], {key: (n, "changed") if key in changed else n for key, n in n_rows[1].items()}


def _keys(table: pa.Table) -> list[Key]:
    return list(zip(*(table[name].to_pylist() for name in _KEYS), strict=True))


def _n_rows(table: pa.Table) -> dict[Key, object]:
    counted = table.group_by(_KEYS, use_threads=False).aggregate([([], "count_all")])
    return dict(zip(_keys(counted), counted["count_all"].to_pylist(), strict=True))


def _differ(a: pa.Array, b: pa.Array) -> pa.Array:
    """Tell for each value whether it differs; nulls are equal, and so are two that are not a number."""
    if pa.types.is_nested(a.type) or pa.types.is_null(a.type):
        pairs = zip(a.to_pylist(), b.to_pylist(), strict=True)
        return pa.array([repr(one) != repr(other) for one, other in pairs], pa.bool_())  # NaN has one text
    same = pc.fill_null(pc.equal(a, b), fill_value=False)
    same = pc.or_(same, pc.and_(pc.is_null(a), pc.is_null(b)))
    if pa.types.is_floating(a.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(a), pc.is_nan(b)), fill_value=False))
    return pc.invert(same)
