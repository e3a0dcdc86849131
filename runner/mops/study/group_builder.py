"""Makes groups of a study's entries: all entries with one param_id are one group, in order of first appearance.

Entries are kept as arrays, about 70 bytes and the parameters' JSON, compressed, for each; seeds that follow from
the parameters are computed when a piece of groups is loaded. Which entries are right is
:mod:`mops.study.study_file`'s and :mod:`mops.study.parameter_file`'s.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mops.study.groups import GroupChunk, GroupTable, Indices, bounds_of
from mops.study.ids_and_seeds import identity_of, replicate_seed

SIMULATIONS_LIMIT = 100_000_000

_ID_BYTES = 32


class StudyGroups(GroupTable):
    """The groups that a study asks for.

    Parameters
    ----------
    kinds
        What the values of each parameter are (:func:`mops.study.values.kind_of`), in order of first appearance.
    """

    def __init__(self, entries: _Entries, kinds: dict[str, set[str]]):
        self.kinds = kinds
        bounds = bounds_of(entries.counts)

        # Not a method: a study in a cycle of references would be frozen with all else (attempt.attempt.frozen_heap).
        def load(number: int) -> GroupChunk:
            return entries.piece(*bounds[number : number + 2])

        super().__init__(bounds, load, int(entries.counts.sum()))


@dataclass
class _Entries:
    """The entries of a study, in order of their groups.

    Parameters
    ----------
    ids
        For each group.
    params
        For each entry, in the order of the file.
    first
        The number of each group's first entry in that order.
    seeds
        For each entry: its own seed or null.
    offsets
        Group ``i`` has the entries ``offsets[i]`` up to but not ``offsets[i + 1]``.
    counts
        Simulations of each group.
    """

    ids: npt.NDArray[np.uint8]
    params: _CompressedTexts
    seeds: pa.Array
    first: Indices
    offsets: Indices
    n_replicates: int
    counts: Indices = field(init=False)

    def __post_init__(self) -> None:
        # Right for groups of one entry; GroupBuilder corrects the others.
        is_derived = self.seeds.is_null().to_numpy(zero_copy_only=False)[self.offsets[:-1]]
        self.counts = np.where(is_derived, self.n_replicates, 1)

    def identity(self, group: int) -> str:
        return bytes(self.ids[group]).hex()

    def own_seeds(self, start: int, stop: int) -> Iterator[list[int | None]]:
        """Yield the own seeds, or None, of the entries of each group."""
        offsets = self.offsets[start : stop + 1].tolist()
        own = self.seeds.slice(offsets[0], offsets[-1] - offsets[0]).to_pylist()
        return (own[a - offsets[0] : b - offsets[0]] for a, b in pairwise(offsets))

    def seeds_of(self, identity: str, own: Sequence[int | None]) -> tuple[Sequence[int], list[int]]:
        """Return a group's seeds, and which of its entries have a seed that stands in one before."""
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
        """Return consecutive groups."""
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
    """Texts without line ends, compressed: the JSON of a million sets shrinks from 92 MB to 27."""

    def __init__(self) -> None:
        self._packed: list[tuple[bytes, int]] = []
        self._starts = [0]
        self._opened: tuple[int, list[str]] = (-1, [])

    def add(self, texts: Sequence[str]) -> None:
        data = "\n".join(texts).encode()
        self._packed.append((pa.compress(data, codec="zstd", asbytes=True), len(data)))
        self._starts.append(self._starts[-1] + len(texts))

    def at(self, numbers: Indices) -> list[str]:
        """Return the texts of these numbers, which grow."""
        found: list[str] = []
        while len(found) < len(numbers):
            batch = bisect_right(self._starts, int(numbers[len(found)])) - 1
            stop = int(np.searchsorted(numbers, self._starts[batch + 1]))
            texts, start = self._open(batch), self._starts[batch]
            found += [texts[number - start] for number in numbers[len(found) : stop].tolist()]
        return found

    def _open(self, batch: int) -> list[str]:
        if self._opened[0] != batch:
            packed, size = self._packed[batch]
            text = pa.decompress(packed, size, codec="zstd", asbytes=True).decode()
            self._opened = batch, text.split("\n")
        return self._opened[1]


class GroupBuilder:
    """Takes entries as they are read, and makes groups of them.

    Parameters
    ----------
    n_replicates
        Simulations of an entry without a seed of its own.
    """

    def __init__(self, n_replicates: int):
        self._n_replicates = n_replicates
        self._ids = bytearray()
        self._params = _CompressedTexts()
        self._seeds: list[pa.Array] = []
        self._numbers = array("q")
        self.kinds: dict[str, set[str]] = {}
        self._n_simulations = 0

    @property
    def full(self) -> bool:
        """Whether more is asked for than a study may have; the same simulation twice counts twice."""
        return self._n_simulations > SIMULATIONS_LIMIT

    def saw(self, name: str, kind: str) -> None:
        """Note what a parameter's value is."""
        self.kinds.setdefault(name, set()).add(kind)

    def add(self, params: Sequence[str], seeds: Sequence[int | None], numbers: Sequence[int]) -> None:
        """Take entries.

        Parameters
        ----------
        params
            Their canonical JSON.
        seeds
            Their own seeds; None: the entry has ``n_replicates`` that follow from its parameters.
        numbers
            Where they stand in the file, growing.
        """
        own = pa.array(seeds, pa.uint64())
        self._ids += b"".join(map(identity_of, params))
        self._params.add(params)
        self._seeds.append(own)
        self._numbers.extend(numbers)
        self._n_simulations += len(own) + own.null_count * (self._n_replicates - 1)

    def build(self) -> tuple[StudyGroups, list[int]]:
        """Return the groups, and the numbers of the entries with a seed that the same parameters had before.

        At least one entry must have been taken; the builder is used up.
        """
        ids = np.frombuffer(self._ids, np.uint8).reshape(-1, _ID_BYTES)
        seeds, numbers = pa.concat_arrays(self._seeds), np.frombuffer(self._numbers, np.int64)
        offsets = np.arange(len(ids) + 1)
        first = offsets[:-1]
        if not _all_differ(ids):
            order, offsets = _by_group(ids)
            first = order[offsets[:-1]]
            ids, seeds, numbers = ids[first], seeds.take(pa.array(order)), numbers[order]
        entries = _Entries(ids, self._params, seeds, first, offsets, self._n_replicates)
        repeated = _count_several(entries, numbers)
        return StudyGroups(entries, self.kinds), repeated


def _all_differ(ids: npt.NDArray[np.uint8]) -> bool:
    """Tell whether no identity stands twice; by 8 bytes of each, so that a false alarm costs only time."""
    ordered = np.sort(ids.view(np.uint64)[:, 0])
    return not bool((ordered[1:] == ordered[:-1]).any())


def _by_group(ids: npt.NDArray[np.uint8]) -> tuple[Indices, Indices]:
    """Return the entries in order of their groups, and where each group begins; groups by first appearance."""
    whole = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_ID_BYTES), len(ids), [None, pa.py_buffer(ids)])
    codes = whole.dictionary_encode().indices.to_numpy()
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes))])
    return np.argsort(codes, kind="stable"), offsets


def _count_several(entries: _Entries, numbers: Indices) -> list[int]:
    """Count the simulations where seeds may coincide; return the numbers of the entries in which they do."""
    repeated: list[int] = []
    several = np.diff(entries.offsets) > 1
    if entries.n_replicates > 1:  # two replicates of one set can have one seed: it has 32 bits
        several |= entries.counts > 1
    for group in np.flatnonzero(several).tolist():
        (own,) = entries.own_seeds(group, group + 1)
        seeds, again = entries.seeds_of(entries.identity(group), own)
        entries.counts[group] = len(seeds)
        repeated += (int(numbers[entries.offsets[group] + entry]) for entry in again)
    return sorted(repeated)
