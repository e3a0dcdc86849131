"""Groups failures by cause, chunk by chunk: a job may have millions of failures.

Failures have one cause if these are equal: the verdict, the target, the first line of the message without numbers, ids
and folders, and the last place in the project's code. A row with the target ``*`` is the consequence of a failed
simulation, so it has no cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mops.units import VARYING

# The columns of failures that `Causes` needs; `traceback` as a dictionary.
COLUMNS = ("param_id", "group", "replicate", "seed", "target", "reason", "message", "traceback")

OTHER_CAUSES = "other messages"

_MOST_CAUSES = 1_000

_LATER_LINES = r"(?s)\n.*"
# A file outside of the project has an absolute path, and code from a text is in <string>. Compiled code of a library,
# such as pyarrow/error.pxi, has a relative path too.
_FRAME = re.compile(r'^[ |+-]*File "([^"/<][^"]*)", line (\d+),? in (.+)$', re.MULTILINE)
_KEYS = ["reason", "target", "kind", "place"]

Groups = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Cause:
    """Failures with one cause."""

    n: int  # the number of simulations, or of scores of the target
    groups: Groups = field(repr=False)  # in which they are, sorted
    place: str  # the last place in the project's code: `model.py:12 in run`; empty: unknown
    first: dict[str, Any] = field(repr=False)  # the row of the first failure, in study order


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


class Causes:
    """Counts failures by cause. It holds four bytes for each failure, and the texts of one failure of each cause."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], _Counted] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a chunk of the columns ``COLUMNS``."""
        rows = pa.Table.from_batches([batch])
        rows = rows.filter(pc.fill_null(pc.not_equal(rows["target"], "*"), fill_value=True))
        if not len(rows):
            return
        rows = rows.take(pc.sort_indices(rows, [("group", "ascending"), ("replicate", "ascending")]))
        keyed = rows.select(["reason", "target", "group"])
        keyed = keyed.append_column("kind", without_varying(rows["message"])).append_column("place", _places(rows))
        keyed = keyed.append_column("row", pa.array(range(len(rows)), pa.int64()))
        # Without threads, the rows of a group keep their order.
        found = keyed.group_by(_KEYS, use_threads=False).aggregate([("row", "min"), ("group", "list")])
        keys = zip(*(found[name].to_pylist() for name in _KEYS), strict=True)
        for key, row, groups in zip(keys, found["row_min"].to_pylist(), found["group_list"], strict=True):
            self._add(key, groups.values.to_numpy(), rows.slice(row, 1))

    def _add(self, key: tuple[Any, ...], groups: Groups, row: pa.Table) -> None:
        is_other = key not in self._found and len(self._found) >= _MOST_CAUSES
        if is_other:
            key = (key[0], None, OTHER_CAUSES, "")
        counted = self._found.setdefault(key, _Counted(place=key[-1]))
        counted.n += len(groups)
        counted.groups.append(np.unique(groups))
        (first,) = row.to_pylist()
        rank = first["group"], -1 if first["replicate"] is None else first["replicate"]
        if counted.rank is None or rank < counted.rank:
            counted.rank, counted.first = rank, first | ({"message": OTHER_CAUSES, "traceback": ""} if is_other else {})

    def result(self) -> list[Cause]:
        """Return the causes, the most frequent first; of equally frequent ones, the first in study order."""
        most_first = sorted(self._found.values(), key=lambda counted: (-counted.n, counted.rank))
        return [Cause(one.n, np.unique(np.concatenate(one.groups)), one.place, one.first) for one in most_first]


def causes_of(batches: Iterable[pa.RecordBatch]) -> list[Cause]:
    """Return the causes of failures (columns ``COLUMNS``), the most frequent first."""
    causes = Causes()
    for batch in batches:
        causes.add(batch)
    return causes.result()


def _places(rows: pa.Table) -> pa.Array:
    tracebacks = rows["traceback"].combine_chunks()
    used = pc.unique(tracebacks.indices)
    texts = tracebacks.dictionary.take(used).to_pylist()
    exact, rough = (
        pa.array([place_in_project(text, exact=is_exact) for text in texts], pa.string()) for is_exact in (True, False)
    )
    at = pc.index_in(tracebacks.indices, used)
    return pc.if_else(pc.equal(rows["reason"].combine_chunks(), "timeout"), rough.take(at), exact.take(at))
