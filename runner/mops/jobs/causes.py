"""Groups the failures of a job by cause, chunk by chunk: a job may have millions of failures.

Failures have one cause if these are equal: the verdict, the target, the first line of the message without numbers, ids
and folders, and the last place in the project's code. They have one reason if the verdict and the message are equal,
for which mops need not read tracebacks. A row with the target ``*`` is the consequence of a failed simulation, so it
has no cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mops.jobs.narrow_ranges import narrow_ranges
from mops.jobs.summary import Reason
from mops.jobs.tables.parameters import Parameters
from mops.study.ranges import Ranges
from mops.units import VARYING

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
# The most causes with ranges: a person reads no more, and each costs time for each chunk of parameter sets.
_WITH_RANGES = 50

_LATER_LINES = r"(?s)\n.*"
# A file outside of the project has an absolute path, and code from a text is in <string>. Compiled code of a library,
# such as pyarrow/error.pxi, has a relative path too.
_FRAME = re.compile(r'^[ |+-]*File "([^"/<][^"]*)", line (\d+),? in (.+)$', re.MULTILINE)
_OF_CAUSE = ("reason", "target", "kind", "place")
_OF_REASON = ("reason", "kind")

Groups = npt.NDArray[np.int32]


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
    place: str = ""
    rank: tuple[int, int] | None = None
    first: dict[str, Any] = field(default_factory=dict)


class _Groups:
    """Counts failures that have equal keys. It holds four bytes for each failure, and one failure of each key."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._found: dict[tuple[Any, ...], _Counted] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        rows = pa.Table.from_batches([batch])
        rows = rows.filter(pc.fill_null(pc.not_equal(rows["target"], "*"), fill_value=True))
        if not len(rows):
            return
        rows = rows.take(pc.sort_indices(rows, [("group", "ascending"), ("replicate", "ascending")]))
        keyed = rows.select(["reason", "target", "group"]).append_column("kind", without_varying(rows["message"]))
        if "place" in self._keys:
            keyed = keyed.append_column("place", _places(rows))
        keyed = keyed.append_column("row", pa.array(range(len(rows)), pa.int64()))
        # Without threads, the rows of a group keep their order.
        found = keyed.group_by(self._keys, use_threads=False).aggregate([("row", "min"), ("group", "list")])
        keys = zip(*(found[name].to_pylist() for name in self._keys), strict=True)
        for key, row, groups in zip(keys, found["row_min"].to_pylist(), found["group_list"], strict=True):
            self._add(key, groups.values.to_numpy(), rows.slice(row, 1))

    def _add(self, key: tuple[Any, ...], groups: Groups, row: pa.Table) -> None:
        is_other = key not in self._found and len(self._found) >= _MOST_CAUSES
        if is_other:
            key = tuple({"reason": key[0], "kind": OTHER_CAUSES, "place": ""}.get(name) for name in self._keys)
        counted = self._found.setdefault(key, _Counted(place=key[-1] if "place" in self._keys else ""))
        counted.n += len(groups)
        counted.groups.append(np.unique(groups))
        (first,) = row.to_pylist()
        rank = first["group"], -1 if first["replicate"] is None else first["replicate"]
        if counted.rank is None or rank < counted.rank:
            counted.rank, counted.first = rank, first | ({"message": OTHER_CAUSES, "traceback": ""} if is_other else {})

    def most_first(self) -> list[Cause]:
        """Return the causes, the most frequent first; of equally frequent ones, the first in study order."""
        most_first = sorted(self._found.values(), key=lambda counted: (-counted.n, counted.rank))
        return [Cause(one.n, np.unique(np.concatenate(one.groups)), one.place, one.first) for one in most_first]


def causes_of(batches: Iterable[pa.RecordBatch], keys: Sequence[str] = _OF_CAUSE) -> list[Cause]:
    """Return the causes of failures (columns ``COLUMNS``), the most frequent first."""
    found = _Groups(keys)
    for batch in batches:
        found.add(batch)
    return found.most_first()


def reasons_of(batches: Iterable[pa.RecordBatch]) -> list[Reason]:
    """Return the reasons of failures (``COLUMNS``; not ids, seeds and tracebacks), the most frequent first."""
    return [Reason(one.n, one.first["reason"], one.text) for one in causes_of(batches, _OF_REASON)]


def cause_table(
    causes: Sequence[Cause],
    parameters: Parameters,
    finished: Ranges,  # the groups that have run
) -> pa.Table:
    """Return the table of ``Job.causes``."""
    ranges = narrow_ranges(parameters.chunks, [cause.groups for cause in causes[:_WITH_RANGES]], finished)
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
