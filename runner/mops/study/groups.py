"""A study's groups as chunks of Arrow data, which are loaded on demand; and how a submit makes them.

A :class:`GroupTable` has the groups. At submit the :class:`GroupBuilder` makes one group for each param_id, in order of
first appearance. Arrays keep the entries: each needs about 70 bytes and the compressed JSON of its parameters. Loading
a chunk computes the seeds that follow from the parameters. In a runner the chunks come from the job's
``params.parquet``. Child processes import this module: only numpy and pyarrow.
"""

from __future__ import annotations

import json
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from json.encoder import encode_basestring
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mops.study.checks import Params, kind_of
from mops.study.ids_and_seeds import identity_of

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

SIMULATIONS_LIMIT = 100_000_000  # of a study

_ID_BYTES = 32

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
        return self.groups((index,))[0]

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

    def identify(self, table: pa.Table, simulations: Sequence[tuple[int, int]], rows: Sequence[int]) -> pa.Table:
        """Return a table with its identity columns: ``rows[i]`` rows are of (group, replicate) ``simulations[i]``."""
        pairs = np.asarray(simulations).reshape(len(simulations), 2)
        groups, codes = np.unique(pairs[:, 0], return_inverse=True)
        seeds = np.empty(len(pairs), np.uint64)
        for piece, span in self._spans(groups):
            here = (codes >= span.start) & (codes < span.stop)
            seeds[here] = piece.seeds[piece.offsets[pairs[here, 0] - piece.start] + pairs[here, 1]]
        return identified(table, self._ids(groups), codes, pairs, seeds, rows)

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


def identified(
    table: pa.Table,
    ids: pa.Array,  # the param_id of each distinct group
    codes: Indices,  # the place in it of the group of each run of rows
    simulations: Indices,  # the group and replicate of each run: an array of shape (runs, 2)
    seeds: Seeds,
    rows: Sequence[int],  # in each run
) -> pa.Table:
    """Return a table with its identity columns in front; param_id is dictionary-encoded."""
    identity = [
        pa.DictionaryArray.from_arrays(pa.array(np.repeat(codes.astype(np.int32), rows)), ids),
        pa.array(np.repeat(simulations[:, 0].astype(np.int32), rows)),
        pa.array(np.repeat(simulations[:, 1].astype(np.int32), rows)),
        pa.array(np.repeat(seeds, rows)),
    ]
    fields = [f.with_type(c.type) for f, c in zip(IDENTITY_FIELDS, identity, strict=True)]
    return pa.table([*identity, *table.columns], schema=pa.schema([*fields, *table.schema]))


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


class StudyGroups(GroupTable):
    """The groups of a study."""

    def __init__(self, entries: _Entries, kinds: dict[str, set[str]], constants: dict[str, str]):
        # The kinds of each parameter's values (checks.kind_of), in order of first appearance; and the value, as JSON
        # text, of each parameter that has the same value in all of several entries.
        self.kinds, self.constants = kinds, constants
        bounds = bounds_of(entries.counts)

        # Not a method: attempt.attempt.frozen_heap would freeze a study in a cycle of references.
        def load(number: int) -> GroupChunk:
            return entries.piece(*bounds[number : number + 2])

        super().__init__(bounds, load, int(entries.counts.sum()))


@dataclass
class _Entries:
    """The entries of a study, in order of their groups."""

    ids: npt.NDArray[np.uint8]  # of each group
    params: _CompressedTexts  # of each entry, in the order of the file
    seeds: pa.Array  # the own seed of each entry, or null
    first: Indices  # the number of each group's first entry in that order
    offsets: Indices  # group ``i`` has the entries ``offsets[i]`` up to ``offsets[i + 1]``, without the latter
    n_replicates: int
    counts: Indices = field(init=False)  # the number of simulations of each group

    def __post_init__(self) -> None:
        # Right for groups of one entry. GroupBuilder corrects the other groups.
        is_derived = self.seeds.is_null().to_numpy(zero_copy_only=False)[self.offsets[:-1]]
        self.counts = np.where(is_derived, self.n_replicates, 1)

    def simulations(self, start: int, stop: int) -> tuple[list[str], Seeds, Indices, list[int]]:
        """Return the ids of groups, their seeds, how many each has, and the entries that repeat an earlier seed."""
        text = self.ids[start:stop].tobytes().hex()
        ids = [text[at : at + 2 * _ID_BYTES] for at in range(0, len(text), 2 * _ID_BYTES)]
        begin, end = self.offsets[start], self.offsets[stop]
        own = self.seeds.slice(begin, end - begin)
        groups = np.repeat(np.arange(len(ids)), np.diff(self.offsets[start : stop + 1]))  # of each entry
        # Only the first entry of a group without an own seed adds the seeds that follow from the parameters.
        derived = np.flatnonzero(own.is_null().to_numpy(zero_copy_only=False))
        needed, first = np.unique(groups[derived], return_index=True)
        counts = np.ones(len(own), np.int64)
        counts[derived] = 0
        counts[derived[first]] = self.n_replicates
        seeds = np.repeat(own.fill_null(0).to_numpy(), counts)
        entries = np.repeat(np.arange(len(own)), counts)
        is_derived = np.isin(entries, derived)
        seeds[is_derived] = _derived_seeds([ids[group] for group in needed], self.n_replicates).ravel()
        order = np.lexsort((seeds, groups[entries]))  # stable, so the first of equal seeds is the one that counts
        in_order, of_group = seeds[order], groups[entries[order]]
        again = order[1:][(in_order[1:] == in_order[:-1]) & (of_group[1:] == of_group[:-1])]
        is_new = np.ones(len(seeds), np.bool_)
        is_new[again] = False
        repeated = {*entries[again].tolist(), *np.delete(derived, first).tolist()}
        n_seeds = np.bincount(groups[entries[is_new]], minlength=len(ids))
        return ids, seeds[is_new], n_seeds, sorted(begin + entry for entry in repeated)

    def piece(self, start: int, stop: int) -> GroupChunk:
        ids, seeds, counts, _ = self.simulations(start, stop)
        params = pa.array(self.params.at(self.first[start:stop]), pa.string())
        return GroupChunk(start, pa.array(ids, pa.string()), params, seeds, np.concatenate([[0], np.cumsum(counts)]))


def _derived_seeds(ids: Sequence[str], n_replicates: int) -> Seeds:
    """Return the seeds of the replicates (`ids_and_seeds.replicate_seed`) of these ids, a row for each."""
    digests = bytearray()
    for identity in ids:
        for i in range(n_replicates):
            digests += blake2b(f"{identity}:{i}".encode(), digest_size=8).digest()
    return (np.frombuffer(digests, ">u8") % 2**32).astype(np.uint64).reshape(len(ids), n_replicates)


@dataclass
class _CompressedTexts:
    """Compressed texts without line ends. The JSON of a million parameter sets shrinks from 92 MB to 27 MB."""

    # bench/tricks.py, check of Parquet: -4 % of memory for 100,000 parameter sets.
    _packed: list[tuple[bytes, int]] = field(default_factory=list)
    _starts: list[int] = field(default_factory=lambda: [0])
    _opened: tuple[int, list[str]] = (-1, [])

    def add(self, texts: Sequence[str]) -> None:
        data = "\n".join(texts).encode()
        self._packed.append((pa.compress(data, codec="zstd", asbytes=True), len(data)))
        self._starts.append(self._starts[-1] + len(texts))

    def at(self, numbers: Indices) -> list[str]:
        """Return the texts of these numbers, which are in ascending order."""
        found: list[str] = []
        while len(found) < len(numbers):
            batch = bisect_right(self._starts, int(numbers[len(found)])) - 1
            start, stop = self._starts[batch], int(np.searchsorted(numbers, self._starts[batch + 1]))
            if self._opened[0] != batch:
                packed, size = self._packed[batch]
                text = pa.decompress(packed, size, codec="zstd", asbytes=True).decode()
                self._opened = batch, text.split("\n")
            texts = self._opened[1]
            found += [texts[number - start] for number in numbers[len(found) : stop].tolist()]
        return found


@dataclass(frozen=True)
class Column:
    """The values of a parameter: their JSON, or null if the parameter is absent, and their kinds (checks.kind_of)."""

    # JSON and not the values: one column of CSV or of a list may have 1, 1.0, "1" and integers beyond 64 bits.
    json: pa.Array
    kinds: set[str]


def json_column(
    values: Sequence[bool | int | float | str | None], absent: npt.NDArray[np.bool_] | None = None
) -> Column:
    """Return values as a column; None, or a place that ``absent`` marks, is null."""
    if absent is None and None in values:
        absent = np.array([value is None for value in values])
    # One call of the C encoder: JSON texts have no line ends.
    texts = _lines.encode(values)[1:-1].split("\n") if values else []
    types = set(map(type, values)) - {int, type(None)}
    kinds = {kind.__name__ for kind in types} | {kind_of(value) for value in values if type(value) is int}
    return Column(pa.array(texts, pa.string(), mask=absent), kinds)


_lines = json.JSONEncoder(separators=("\n", ":"), ensure_ascii=False)


@dataclass
class _SeenValues:
    """The values of a parameter: in how many entries, the first one, and whether another differs."""

    n: int = 0
    first: str | None = None
    varies: bool = False


class GroupBuilder:
    """Takes the entries of a study, and makes groups from them."""

    def __init__(self, n_replicates: int):
        # Of an entry without an own seed.
        self._n_replicates = n_replicates
        self._ids = bytearray()
        self._params = _CompressedTexts()
        self._seeds: list[pa.Array] = []
        self.numbers = array("q")  # the places in the file of the entries that it has taken
        self.kinds: dict[str, set[str]] = {}
        self.values: dict[str, _SeenValues] = {}
        self._n_simulations = 0

    @property
    def full(self) -> bool:
        """Whether the study has too many simulations. A repeated simulation counts again."""
        return self._n_simulations > SIMULATIONS_LIMIT

    def add(self, columns: Mapping[str, Column], seeds: Sequence[int | None], numbers: Sequence[int]) -> list[str]:
        """Take entries: their parameters, their own seeds, their ascending places in the file.

        An entry without an own seed has ``n_replicates`` seeds that follow from its parameters. Return the canonical
        JSON of each entry.
        """
        for name, column in columns.items():
            self.kinds.setdefault(name, set()).update(column.kinds)
            seen = self.values.setdefault(name, _SeenValues())
            if (n := len(column.json) - column.json.null_count) == 0:
                continue
            if not seen.n:
                seen.first = column.json.drop_null()[0].as_py()
            seen.n += n
            seen.varies = seen.varies or not pc.all(pc.equal(column.json, seen.first)).as_py()  # without nulls
        texts = _canonical_texts(columns, len(seeds))
        own = pa.array(seeds, pa.uint64())
        self._ids += b"".join(map(identity_of, texts))
        self._params.add(texts)
        self._seeds.append(own)
        self.numbers.extend(numbers)
        self._n_simulations += len(own) + own.null_count * (self._n_replicates - 1)
        return texts

    def build(self) -> tuple[StudyGroups, list[int]]:
        """Return the groups, and the numbers of the entries that repeat a seed of the same parameters."""
        # The builder must have taken an entry, and takes no more afterwards.
        ids = np.frombuffer(self._ids, np.uint8).reshape(-1, _ID_BYTES)
        seeds, numbers = pa.concat_arrays(self._seeds), np.frombuffer(self.numbers, np.int64)
        offsets = np.arange(len(ids) + 1)
        first = offsets[:-1]
        ordered = np.sort(ids.view(np.uint64)[:, 0])  # 8 bytes of each identity: a false alarm costs only time
        if (ordered[1:] == ordered[:-1]).any():
            whole = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_ID_BYTES), len(ids), [None, pa.py_buffer(ids)])
            codes = whole.dictionary_encode().indices.to_numpy()  # numbers groups in order of first appearance
            order = np.argsort(codes, kind="stable")
            offsets = np.concatenate([[0], np.cumsum(np.bincount(codes))])
            first = order[offsets[:-1]]
            ids, seeds, numbers = ids[first], seeds.take(pa.array(order)), numbers[order]
        entries = _Entries(ids, self._params, seeds, first, offsets, self._n_replicates)
        repeated: list[int] = []
        several = np.diff(offsets) > 1  # groups whose seeds may coincide
        if self._n_replicates > 1:  # seeds have 32 bits, so two replicates can have the same seed
            several |= entries.counts > 1
        for start, stop in pairwise(bounds_of(entries.counts)):
            if several[start:stop].any():
                _, _, entries.counts[start:stop], again = entries.simulations(start, stop)
                repeated += numbers[again].tolist()
        n = len(self.numbers)
        same = {name: seen for name, seen in self.values.items() if seen.n == n > 1 and not seen.varies}
        constants = {name: str(seen.first) for name, seen in same.items()}
        kinds = {name: kinds for name, kinds in self.kinds.items() if kinds}  # without columns that have no value
        return StudyGroups(entries, kinds, constants), sorted(repeated)


def _canonical_texts(columns: Mapping[str, Column], n_rows: int) -> list[str]:
    """Return the canonical JSON of each row: sorted names, without absent parameters."""
    if not columns:
        return ["{}"] * n_rows
    members = [
        pc.binary_join_element_wise(encode_basestring(name), columns[name].json, ":")  # null if the value is null
        for name in sorted(columns)
    ]
    # pyarrow leaves out rows of which all members are null, so each row has an empty member in front.
    joined = pc.binary_join_element_wise("", *members, ",", null_handling="skip")
    return [f"{{{text[1:]}}}" for text in joined.to_pylist()]
