"""A study's groups as chunks of Arrow data, which are loaded on demand.

group_builder.py makes groups and chunks at submit. In a runner the chunks come from the job's ``params.parquet``. Child
processes import this module: only numpy and pyarrow.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mops.study.values import Params

# The first columns of each row of an output.
IDENTITY_FIELDS = (
    pa.field("param_id", pa.string(), nullable=False),
    pa.field("group", pa.int32(), nullable=False),
    pa.field("replicate", pa.int32(), nullable=False),
    pa.field("seed", pa.uint64(), nullable=False),
)

PIECE_GROUPS = 512
# The most groups and simulations of a chunk, which has one group at least: about 0.15 MiB, at most 16 MiB. Chunks of
# 8,192 groups left 2 MiB of fragmented memory for each 1,000 groups. Smaller chunks need more Parquet metadata: 15 MiB
# for a million groups, and 31 MiB with 256 groups in a chunk.
PIECE_SIMULATIONS = 1_000_000

_PIECES_KEPT = 4

T = TypeVar("T")
Indices = npt.NDArray[np.int64]
Seeds = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Group:
    """A parameter set with all its replicates: replicate ``i`` has seed ``seeds[i]``."""

    index: int
    param_id: str
    params: Params
    seeds: tuple[int, ...]

    @property
    def n_replicates(self) -> int:
        """The number of its simulations."""
        return len(self.seeds)


@dataclass(frozen=True)
class GroupPart:
    """A parameter set with some of its replicates: ``seeds`` has only the seeds of the replicates to run."""

    index: int
    param_id: str
    params: Params
    n_replicates: int
    seeds: Mapping[int, int]  # a group of 100,000 replicates has 600 KB of seeds, which each of its tasks would carry


@dataclass(frozen=True)
class GroupChunk:
    """Consecutive groups."""

    start: int  # the index of the first group
    ids: pa.Array  # as strings
    params: pa.Array  # canonical JSON
    seeds: Seeds  # group ``start + i`` has ``seeds[offsets[i]:offsets[i + 1]]``
    offsets: Indices

    def __len__(self) -> int:
        return len(self.ids)

    def groups(self, first: int, last: int) -> list[Group]:
        """Return the groups from ``first`` up to ``last``, without the latter, counted in the chunk."""
        n = last - first
        ids = self.ids.slice(first, n).to_pylist()
        params = list(map(json.loads, self.params.slice(first, n).to_pylist()))
        offsets = self.offsets[first : last + 1]
        seeds = self.seeds[offsets[0] : offsets[-1]].tolist()
        bounds = (offsets - offsets[0]).tolist()
        begin = self.start + first
        return [Group(begin + i, ids[i], params[i], tuple(seeds[bounds[i] : bounds[i + 1]])) for i in range(n)]


class Recent(Generic[T]):
    """The values that were used last, by key: a reader that moves in order loads each about once."""

    def __init__(self, most: int):
        self._most = most
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, load: Callable[[], T]) -> T:
        """Return a value; ``load`` is called if it is not kept."""
        if key not in self._kept:
            self._kept[key] = load()
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


class GroupTable:
    """The groups of a study, in study order. Thread-safe."""

    # Only the last few chunks are in memory. The window of a job moves through the study in order, so mops loads each
    # chunk about once. ``bounds``: the index of each chunk's first group, and the number of groups.
    def __init__(self, bounds: Sequence[int], load: Callable[[int], GroupChunk], n_simulations: int):
        self._bounds, self._load = list(bounds), load
        self.n_simulations = n_simulations
        self._kept: Recent[GroupChunk] = Recent(_PIECES_KEPT)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._bounds[-1]

    def pieces(self) -> Iterator[GroupChunk]:
        """Load each chunk in order, and keep none."""
        return map(self._load, range(len(self._bounds) - 1))

    def group(self, index: int) -> Group:
        """Return one group."""
        piece = self._piece_of(index)
        at = index - piece.start
        seeds = piece.seeds[piece.offsets[at] : piece.offsets[at + 1]].tolist()
        return Group(index, piece.ids[at].as_py(), json.loads(piece.params[at].as_py()), tuple(seeds))

    def part(self, index: int, replicates: Sequence[int]) -> GroupPart:
        """Return one group with the seeds of these replicates."""
        piece = self._piece_of(index)
        at = index - piece.start
        first, last = int(piece.offsets[at]), int(piece.offsets[at + 1])
        seeds = {replicate: int(piece.seeds[first + replicate]) for replicate in replicates}
        return GroupPart(index, piece.ids[at].as_py(), json.loads(piece.params[at].as_py()), last - first, seeds)

    def groups(self, indices: Sequence[int]) -> tuple[Group, ...]:
        """Return the groups of these indices, in this order. Consecutive indices cost least."""
        found: list[Group] = []
        at = 0
        while at < len(indices):
            first = indices[at]
            piece = self._piece_of(first)
            n = 1
            while at + n < len(indices) and indices[at + n] == first + n < piece.start + len(piece):
                n += 1
            found += piece.groups(first - piece.start, first - piece.start + n)
            at += n
        return tuple(found)

    def n_replicates(self, index: int) -> int:
        """Return how many simulations a group has."""
        piece = self._piece_of(index)
        at = index - piece.start
        return int(piece.offsets[at + 1] - piece.offsets[at])

    def param_ids(self, indices: Sequence[int]) -> pa.Array:
        """Return the param_id of each index."""
        groups, codes = np.unique(np.asarray(indices), return_inverse=True)
        return self._ids(groups).take(pa.array(codes))

    def identity(self, simulations: Sequence[tuple[int, int]], rows: Sequence[int]) -> list[pa.Array]:
        """Return the identity columns for runs of rows: ``rows[i]`` rows of (group, replicate) ``simulations[i]``."""
        pairs = np.asarray(simulations).reshape(len(simulations), 2)
        groups, codes = np.unique(pairs[:, 0], return_inverse=True)
        seeds = np.empty(len(pairs), np.uint64)
        for piece, span in self._spans(groups):
            here = (codes >= span.start) & (codes < span.stop)
            seeds[here] = piece.seeds[piece.offsets[pairs[here, 0] - piece.start] + pairs[here, 1]]
        return identity_columns(self._ids(groups), codes, pairs, seeds, rows)

    def identify(self, table: pa.Table, simulations: Sequence[tuple[int, int]], rows: Sequence[int]) -> pa.Table:
        """Return the table with its identity columns in front; param_id is dictionary-encoded."""
        return with_identity(table, self.identity(simulations, rows))

    def _piece_of(self, index: int) -> GroupChunk:
        if not 0 <= index < len(self):
            raise IndexError(f"group {index} is not among the {len(self)} groups")
        number = bisect_right(self._bounds, index) - 1
        with self._lock:
            return self._kept.get(number, lambda: self._load(number))

    def _spans(self, groups: Indices) -> Iterator[tuple[GroupChunk, slice]]:
        """Yield each chunk that holds some of the sorted indices, and the slice of these indices."""
        at = 0
        while at < len(groups):
            piece = self._piece_of(int(groups[at]))
            stop = int(np.searchsorted(groups, piece.start + len(piece)))
            yield piece, slice(at, stop)
            at = stop

    def _ids(self, groups: Indices) -> pa.Array:
        found = [piece.ids.take(pa.array(groups[span] - piece.start)) for piece, span in self._spans(groups)]
        return pa.concat_arrays([pa.array([], pa.string()), *found])


def identity_columns(
    ids: pa.Array, codes: Indices, simulations: Indices, seeds: Seeds, rows: Sequence[int]
) -> list[pa.Array]:
    """Return the identity columns for runs of rows."""
    # ``ids``: The param_id of each distinct group; ``codes`` has the position of each run's group in it.
    # ``simulations`` has each run's group and replicate: an array of shape (runs, 2).
    return [
        pa.DictionaryArray.from_arrays(pa.array(np.repeat(codes.astype(np.int32), rows)), ids),
        pa.array(np.repeat(simulations[:, 0].astype(np.int32), rows)),
        pa.array(np.repeat(simulations[:, 1].astype(np.int32), rows)),
        pa.array(np.repeat(seeds, rows)),
    ]


def with_identity(table: pa.Table, identity: list[pa.Array]) -> pa.Table:
    """Return a table with its identity columns (:func:`identity_columns`) in front."""
    columns = [*identity, *table.columns]
    fields = [f.with_type(c.type) for f, c in zip(IDENTITY_FIELDS, columns, strict=False)]
    return pa.table(columns, schema=pa.schema([*fields, *table.schema]))


def bounds_of(counts: npt.NDArray[np.int64]) -> list[int]:
    """Divide groups with these numbers of simulations into chunks; return each chunk's first index, and the end."""
    ends = np.cumsum(counts)
    bounds = [0]
    while bounds[-1] < len(counts):
        first = bounds[-1]
        before = int(ends[first - 1]) if first else 0
        by_simulations = int(np.searchsorted(ends, before + PIECE_SIMULATIONS, side="right"))
        bounds.append(max(first + 1, min(first + PIECE_GROUPS, by_simulations, len(counts))))
    return bounds
