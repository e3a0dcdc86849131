"""Groups the failures of a job by cause, chunk by chunk: a job may have millions of failures.

Failures have one cause if these are equal: the verdict, the target, the first line of the message without numbers, ids
and folders, and the last place in the project's code. They have one reason if the verdict and the message are equal,
for which mops need not read tracebacks. A row with the target ``*`` is the consequence of a failed simulation, so it
has no cause.

A cause also has the parameters whose range in its sets is clearly narrower than in all of them. A range is narrow if
so few of all sets have a value in it that, with random sets instead of those that failed, a range with at most as many
sets has a probability of at most 5 %. A single value is also named if all sets with it failed, and no other set did.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, inf, lgamma
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mops.jobs.scan import Parameters
from mops.jobs.summary import Reason
from mops.units import VARYING, listed

_CHANCE = 0.05
_MOST_SHARE = 2 / 3  # of all sets; a wider range tells a person little
_MOST_VALUES = 1_000  # different texts of a parameter: with more, it is a name and not a setting
_VALUES_SHOWN = 4

Groups = npt.NDArray[np.int32]


@dataclass(frozen=True)
class NarrowRange:
    """The values of a parameter in some sets and in all sets."""

    parameter: str
    some: tuple[Any, ...]  # numbers: the least and the greatest; otherwise: each value
    all: tuple[Any, ...]
    share: float  # of all sets that have a value of `some`
    is_number: bool
    is_exact: bool  # whether each set with a value of `some` failed

    def __str__(self) -> str:
        """Return it for people: ``beta: 0.41 to 0.5 (all sets: 0.01 to 0.5)``."""
        text = f"{self.parameter}: {self._text(self.some)} (all sets: {self._text(self.all)})"
        return f"{text}; every such set fails" if self.is_exact else text

    def _text(self, values: tuple[Any, ...]) -> str:
        if self.is_number:
            low, high = (_number(value) for value in values)
            return low if low == high else f"{low} to {high}"
        return listed(values, _VALUES_SHOWN)


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.4g}"


def narrow_ranges(
    parameters: pa.Table,  # row i has the parameters of group i
    some: Sequence[Groups],  # the groups of each selection
    # Of each group. Only those that have run are all sets, because sets often come in the order of a parameter.
    has_run: npt.NDArray[np.bool_],
) -> list[list[NarrowRange]]:
    """Return the narrow ranges of each selection of parameter sets, the narrowest first."""
    found: list[list[NarrowRange]] = [[] for _ in some]
    for name in parameters.column_names:
        column = parameters[name].combine_chunks()
        is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        values, is_there = (each.to_numpy(zero_copy_only=False) for each in (column, column.is_valid()))
        different, counts = np.unique(values[has_run & is_there], return_counts=True)
        if not is_number and len(different) > _MOST_VALUES:
            continue
        up_to, n_all = np.append(0, np.cumsum(counts)), int(counts.sum())
        for ranges, groups in zip(found, some, strict=True):
            mine = np.unique(theirs := values[groups][is_there[groups]])
            n = len(theirs)
            if not 0 < n < n_all:
                continue
            if is_number:
                first, end = np.searchsorted(different, mine[0]), np.searchsorted(different, mine[-1], "right")
                m = int(up_to[end] - up_to[first])
                chance, is_one_value = _chance_of_range(n_all, n, m), mine[0] == mine[-1]
                shown, every = ((float(one[0]), float(one[-1])) for one in (mine, different))
            else:
                m = int(counts[np.isin(different, mine)].sum())
                chance = exp(_log_ways(len(different), len(mine))) * _ratio(m, n_all, n)
                is_one_value = len(mine) == 1
                shown, every = tuple(mine.tolist()), tuple(different.tolist())
            is_exact = m == n > 1
            if (m <= _MOST_SHARE * n_all and chance <= _CHANCE) or (is_exact and is_one_value):
                ranges.append(NarrowRange(name, shown, every, m / n_all, is_number, is_exact))
    return [sorted(ranges, key=lambda one: one.share) for ranges in found]


def _chance_of_range(n_all: int, n: int, m: int) -> float:
    """Return the probability that ``n`` random ones of ``n_all`` things in a row are among ``m`` neighbours."""
    starts_early = (n_all - m) * exp(_log_ways(m - 1, n - 1) - _log_ways(n_all, n))
    return starts_early + _ratio(m, n_all, n)


def _ratio(m: int, n_all: int, n: int) -> float:
    return exp(_log_ways(m, n) - _log_ways(n_all, n))


def _log_ways(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) if 0 <= k <= n else -inf


# The columns of failures for `causes_of`; `traceback` as a dictionary.
COLUMNS = ("param_id", "group", "replicate", "seed", "target", "reason", "message", "traceback")

CAUSES = pa.schema(
    [
        pa.field("cause", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("target", pa.string()),
        pa.field("place", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("sets", pa.int64(), nullable=False),
        pa.field("ranges", pa.list_(pa.string()), nullable=False),
        pa.field("param_id", pa.string(), nullable=False),
        pa.field("group", pa.int32(), nullable=False),
        pa.field("replicate", pa.int32()),
        pa.field("seed", pa.uint64()),
        pa.field("params", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
        pa.field("traceback", pa.string(), nullable=False),
    ]
)

OTHER_CAUSES = "other messages"

_MOST_CAUSES = 1_000
# The most causes with ranges: a person reads no more, and each costs time for each parameter.
_WITH_RANGES = 50

_LATER_LINES = r"(?s)\n.*"
# A file outside of the project has an absolute path, and code from a text is in <string>. Compiled code of a library,
# such as pyarrow/error.pxi, has a relative path too.
_FRAME = re.compile(r'^[ |+-]*File "([^"/<][^"]*)", line (\d+),? in (.+)$', re.MULTILINE)
_OF_CAUSE = ("reason", "target", "kind", "place")
_OF_REASON = ("reason", "kind")


@dataclass(frozen=True)
class Cause:
    """Failures with one cause."""

    n: int  # the number of simulations, or of scores of the target
    groups: Groups = field(repr=False)  # in which they are, sorted
    place: str  # the last place in the project's code: `model.py:12 in run`; empty: unknown
    first: dict[str, Any] = field(repr=False)  # the row of the first failure, in study order

    @property
    def text(self) -> str:
        """The first line of the message of the first failure."""
        return str(self.first["message"].strip().partition("\n")[0])


def without_varying(messages: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return ``mops.units.without_varying`` of the first line of each message."""
    lines = pc.replace_substring_regex(messages, _LATER_LINES, "")
    for pattern, instead in VARYING:
        lines = pc.replace_substring_regex(lines, pattern, instead)
    return lines


def place_in_project(
    traceback: str,
    *,
    exact: bool = True,  # False: without the line, because simulations that run too long are in many lines of one loop
) -> str:
    """Return the last place in the project's code that a traceback or the last output of a process names."""
    frames = _FRAME.findall(traceback)
    if not frames:
        return ""
    # Python's traceback ends with the innermost frame. The fault handler's begins with it.
    frames = [frame for frame in frames if frame[0].endswith(".py")] or frames
    file, line, function = frames[0 if "(most recent call first)" in traceback else -1]
    return f"{file}:{line} in {function}" if exact else f"{file} in {function}"


@dataclass
class _Counted:
    n: int = 0
    groups: list[Groups] = field(default_factory=list)
    rank: tuple[int, int] | None = None
    first: dict[str, Any] = field(default_factory=dict)


def causes_of(batches: Iterable[pa.RecordBatch], keys: Sequence[str] = _OF_CAUSE) -> list[Cause]:
    """Return the causes of failures (columns ``COLUMNS``), the most frequent first."""
    # It holds four bytes for each failure, and one failure of each cause.
    found: dict[tuple[Any, ...], _Counted] = {}
    for key, groups, first in (one for batch in batches for one in _grouped(batch, keys)):
        of = key
        if key not in found and len(found) >= _MOST_CAUSES:
            of = tuple({"reason": key[0], "kind": OTHER_CAUSES, "place": ""}.get(name) for name in keys)
            first |= {"message": OTHER_CAUSES, "traceback": ""}
        counted = found.setdefault(of, _Counted())
        counted.n += len(groups)
        counted.groups.append(np.unique(groups))
        rank = first["group"], -1 if first["replicate"] is None else first["replicate"]
        if counted.rank is None or rank < counted.rank:
            counted.rank, counted.first = rank, first
    # Of equally frequent causes, the first one in study order comes first.
    return [
        Cause(one.n, np.unique(np.concatenate(one.groups)), of[-1] if "place" in keys else "", one.first)
        for of, one in sorted(found.items(), key=lambda item: (-item[1].n, item[1].rank))
    ]


def _grouped(batch: pa.RecordBatch, keys: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], Groups, dict[str, Any]]]:
    """Yield the failures of a batch that have equal keys: the keys, the group of each failure, and the first row."""
    rows = pa.Table.from_batches([batch])
    rows = rows.filter(pc.fill_null(pc.not_equal(rows["target"], "*"), fill_value=True))
    if not len(rows):
        return
    rows = rows.take(pc.sort_indices(rows, [("group", "ascending"), ("replicate", "ascending")]))
    keyed = rows.select(["reason", "target", "group"]).append_column("kind", without_varying(rows["message"]))
    if "place" in keys:
        keyed = keyed.append_column("place", _places(rows))
    keyed = keyed.append_column("row", pa.array(range(len(rows)), pa.int64()))
    # Without threads, the rows of a group keep their order.
    found = keyed.group_by(keys, use_threads=False).aggregate([("row", "min"), ("group", "list")])
    of_each = zip(*(found[name].to_pylist() for name in keys), strict=True)
    for key, row, groups in zip(of_each, found["row_min"].to_pylist(), found["group_list"], strict=True):
        (first,) = rows.slice(row, 1).to_pylist()
        yield key, groups.values.to_numpy(), first


def reasons_of(batches: Iterable[pa.RecordBatch]) -> list[Reason]:
    """Return the reasons of failures (``COLUMNS``; not ids, seeds and tracebacks), the most frequent first."""
    return [Reason(one.n, one.first["reason"], one.text) for one in causes_of(batches, _OF_REASON)]


def cause_table(causes: Sequence[Cause], parameters: Parameters, has_run: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the table of ``Job.causes``; ``has_run`` as for :func:`narrow_ranges`."""
    columns = parameters.columns(list(parameters.fields(())))
    ranges = narrow_ranges(columns, [cause.groups for cause in causes[:_WITH_RANGES]], has_run)
    ranges += [[]] * (len(causes) - len(ranges))
    params = parameters.texts([cause.first["group"] for cause in causes])
    of_first = ("target", "param_id", "group", "replicate", "seed", "message", "traceback")
    rows = [
        {name: cause.first[name] for name in of_first}
        | {
            "cause": cause.text,
            "verdict": cause.first["reason"],
            "stage": "model" if cause.first["target"] is None else "target",
            "place": cause.place,
            "n": cause.n,
            "sets": len(cause.groups),
            "ranges": list(map(str, narrow)),
            "params": text,
        }
        for cause, narrow, text in zip(causes, ranges, params, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=CAUSES)


def _places(rows: pa.Table) -> pa.Array:
    tracebacks = rows["traceback"].combine_chunks()
    used = pc.unique(tracebacks.indices)
    texts = tracebacks.dictionary.take(used).to_pylist()
    exact, rough = (
        pa.array([place_in_project(text, exact=is_exact) for text in texts], pa.string()) for is_exact in (True, False)
    )
    at = pc.index_in(tracebacks.indices, used)
    return pc.if_else(pc.equal(rows["reason"].combine_chunks(), "timeout"), rough.take(at), exact.take(at))
