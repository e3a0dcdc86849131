"""Makes groups from a study's entries: one group for each param_id, in order of first appearance.

Arrays keep the entries. Each entry needs about 70 bytes and the compressed JSON of its parameters. Loading a chunk of
groups computes the seeds that follow from the parameters.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mops.study.groups import GroupChunk, GroupTable, Indices, bounds_of
from mops.study.ids_and_seeds import identity_of, replicate_seed

SIMULATIONS_LIMIT = 100_000_000

_ID_BYTES = 32


class StudyGroups(GroupTable):
    """The groups of a study."""

    def __init__(self, entries: _Entries, kinds: dict[str, set[str]], constants: dict[str, str]):
        # The kinds of each parameter's values (values.kind_of), in order of first appearance; and the value, as JSON
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

    def own_seeds(self, start: int, stop: int) -> Iterator[list[int | None]]:
        """Yield the own seeds of each group's entries; None: an entry has no own seed."""
        offsets = self.offsets[start : stop + 1].tolist()
        own = self.seeds.slice(offsets[0], offsets[-1] - offsets[0]).to_pylist()
        return (own[a - offsets[0] : b - offsets[0]] for a, b in pairwise(offsets))

    def seeds_of(self, identity: str, own: Sequence[int | None]) -> tuple[Sequence[int], list[int]]:
        """Return a group's seeds, and the entries that repeat a seed of an earlier entry."""
        if len(own) == 1 and own[0] is not None:
            return [own[0]], []
        derived = [replicate_seed(identity, i) for i in range(self.n_replicates)] if None in own else []
        if len(own) == 1 and len(set(derived)) == len(derived):
            return derived, []
        known: dict[int, None] = {}
        repeated = []
        for entry, seed in enumerate(own):
            added = derived if seed is None else [seed]
            n_before = len(known)
            known.update(dict.fromkeys(added))
            if len(known) < n_before + len(added):
                repeated.append(entry)
        return list(known), repeated

    def piece(self, start: int, stop: int) -> GroupChunk:
        text = self.ids[start:stop].tobytes().hex()
        ids = [text[at : at + 2 * _ID_BYTES] for at in range(0, len(text), 2 * _ID_BYTES)]
        own = self.own_seeds(start, stop)
        seeds = [self.seeds_of(identity, mine)[0] for identity, mine in zip(ids, own, strict=True)]
        return GroupChunk(
            start,
            pa.array(ids, pa.string()),
            pa.array(self.params.at(self.first[start:stop]), pa.string()),
            np.array([seed for mine in seeds for seed in mine], np.uint64),
            np.array([0, *accumulate(map(len, seeds))], np.int64),
        )


class _CompressedTexts:
    """Compressed texts without line ends. The JSON of a million parameter sets shrinks from 92 MB to 27 MB."""

    # bench/tricks.py, check of Parquet: -4 % of memory for 100,000 parameter sets.
    def __init__(self) -> None:
        self._packed: list[tuple[bytes, int]] = []
        self._starts = [0]
        self._opened: tuple[int, list[str]] = (-1, [])

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


@dataclass
class SeenValues:
    """The values of a parameter: in how many entries, the first one, and whether another differs."""

    as_json: Callable[[Any], str]
    n: int = 0
    first: object = None
    varies: bool = False

    @property
    def text(self) -> str:
        """The first value as JSON text."""
        return self.as_json(self.first)

    def add(self, values: Iterable[object]) -> None:
        """Take more values."""
        for value in values:
            self.first = value if self.n == 0 else self.first
            self.n += 1
            self.varies |= value != self.first


class GroupBuilder:
    """Takes the entries of a study, and makes groups from them."""

    def __init__(self, n_replicates: int):
        # Of an entry without an own seed.
        self._n_replicates = n_replicates
        self._ids = bytearray()
        self._params = _CompressedTexts()
        self._seeds: list[pa.Array] = []
        self._numbers = array("q")
        self.kinds: dict[str, set[str]] = {}
        self.values: dict[str, SeenValues] = {}
        self._n_simulations = 0

    @property
    def full(self) -> bool:
        """Whether the study has too many simulations. A repeated simulation counts again."""
        return self._n_simulations > SIMULATIONS_LIMIT

    @property
    def n_entries(self) -> int:
        """The entries that it has taken."""
        return len(self._numbers)

    def saw(self, name: str, kind: str) -> None:
        """Note the kind of a parameter's value."""
        self.kinds.setdefault(name, set()).add(kind)

    def saw_values(self, name: str, values: Iterable[object], as_json: Callable[[Any], str] = json.dumps) -> None:
        """Note values of a parameter."""
        self.values.setdefault(name, SeenValues(as_json)).add(values)

    def add(self, params: Sequence[str], seeds: Sequence[int | None], numbers: Sequence[int]) -> None:
        """Take entries: the canonical JSON of their parameters, their own seeds, their ascending places in the file."""
        # An entry without an own seed has ``n_replicates`` seeds that follow from its parameters.
        own = pa.array(seeds, pa.uint64())
        self._ids += b"".join(map(identity_of, params))
        self._params.add(params)
        self._seeds.append(own)
        self._numbers.extend(numbers)
        self._n_simulations += len(own) + own.null_count * (self._n_replicates - 1)

    def build(self) -> tuple[StudyGroups, list[int]]:
        """Return the groups, and the numbers of the entries that repeat a seed of the same parameters."""
        # The builder must have taken an entry, and takes no more afterwards.
        ids = np.frombuffer(self._ids, np.uint8).reshape(-1, _ID_BYTES)
        seeds, numbers = pa.concat_arrays(self._seeds), np.frombuffer(self._numbers, np.int64)
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
        repeated = _count_several(entries, numbers)
        n = len(self._numbers)
        constants = {name: seen.text for name, seen in self.values.items() if seen.n == n > 1 and not seen.varies}
        return StudyGroups(entries, self.kinds, constants), repeated


def _count_several(entries: _Entries, numbers: Indices) -> list[int]:
    """Count the simulations of groups whose seeds may coincide; return the numbers of the entries that repeat one."""
    repeated: list[int] = []
    several = np.diff(entries.offsets) > 1
    if entries.n_replicates > 1:  # seeds have 32 bits, so two replicates can have the same seed
        several |= entries.counts > 1
    for group in np.flatnonzero(several).tolist():
        (own,) = entries.own_seeds(group, group + 1)
        seeds, again = entries.seeds_of(bytes(entries.ids[group]).hex(), own)
        entries.counts[group] = len(seeds)
        repeated += (int(numbers[entries.offsets[group] + entry]) for entry in again)
    return sorted(repeated)
