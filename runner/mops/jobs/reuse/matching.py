"""Decides which simulations of a new job are taken from other jobs, in bounded memory.

Some of the new job's groups at a time are matched with all groups of the other jobs: by parameter set and seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mops.attempt.reuse_plan import PLAN, encode_plan
from mops.jobs.reuse.unreadable import UNREADABLE, warn_unreadable
from mops.parquet.encoder import Encoded
from mops.storage.backends.base import Spool
from mops.storage.job_records import JobRecord, ReuseSource
from mops.storage.joblog.records import LogView
from mops.study.groups import GroupChunk

_GROUPS_AT_ONCE = 1 << 16
_SIMULATIONS_AT_ONCE = 1 << 20
_REFUSED = 1 << 30  # the number of a job from which nothing may be taken
_MOST_REFUSED = 5  # how many refused jobs are read for one warning

Numbers = npt.NDArray[np.intp]


class Pieces(Protocol):
    """A table of groups."""

    def pieces(self) -> Iterator[GroupChunk]:
        """Yield the groups in order."""


class Source(Protocol):
    """A job that has simulations: :class:`mops.jobs.reuse.sources.Offer`."""

    @property
    def record(self) -> JobRecord:
        """The job's record."""

    @property
    def view(self) -> LogView:
        """Its log, with a complete end."""

    @property
    def groups(self) -> Pieces:
        """Its groups."""

    @property
    def stored(self) -> npt.NDArray[np.bool_]:
        """For each group, whether the job has some of its simulations."""

    def has(self, group: int, replicates: Numbers) -> npt.NDArray[np.bool_]:
        """Tell for each of these replicates of a stored group whether the job has its simulation."""


@dataclass(frozen=True)
class Found:
    """The simulations that a new job takes from other jobs: for its record, and their table."""

    reuse: tuple[ReuseSource, ...]
    table: Encoded[Spool]


class Refused:
    """Jobs from which a new job may take nothing. One of them may have simulations that no other job has."""

    # It reads only the first few jobs, and looks in them for the first missing simulations only.

    def __init__(
        self,
        sources: Sequence[Source] = (),  # those to name first
    ):
        self._left = list(sources[:_MOST_REFUSED])
        self.n_lost = 0  # how many simulations only the job `source` has
        self.source: Source | None = None

    def look(self, batch: _Batch) -> None:
        """Look for simulations that were not found elsewhere, in the first job that has any."""
        if batch.is_full:
            return
        sources = self._left if self.source is None else [self.source]
        self._left = []
        for source in sources:
            with suppress(*UNREADABLE):  # nothing is taken from it in any case
                batch.add(_REFUSED, source)
            if n_found := batch.drop(_REFUSED):
                self.n_lost += n_found
                self.source = source
                return


def match(
    groups: Pieces,
    offers: Sequence[Source],
    spool: Callable[[], Spool],
    refused: Refused | None = None,  # looks at what is not found
) -> Found | None:
    """Find each simulation of a study in the first of several jobs that has it; None: none has any."""
    counts: Counter[str] = Counter()
    readable = dict(enumerate(offers))

    def tables() -> Iterator[pa.Table]:
        for pieces in _batches(groups):
            batch = _matched(pieces, readable)
            if refused is not None:
                refused.look(batch)
            table = batch.table([offer.record.job for offer in offers])
            counts.update({one["values"]: one["counts"] for one in table["source"].value_counts().to_pylist()})
            yield table

    encoded = encode_plan(tables(), spool())
    sources = tuple(
        ReuseSource(offer.record.job, offer.record.id, counts[offer.record.job])
        for offer in offers
        if counts[offer.record.job]
    )
    return Found(sources, encoded) if sources else None


def _batches(groups: Pieces) -> Iterator[list[GroupChunk]]:
    some: list[GroupChunk] = []
    for piece in groups.pieces():
        n_groups, n_simulations = sum(map(len, some)), sum(len(one.seeds) for one in some)
        is_full = n_groups + len(piece) > _GROUPS_AT_ONCE or n_simulations + len(piece.seeds) > _SIMULATIONS_AT_ONCE
        if some and is_full:
            yield some
            some = []
        some.append(piece)
    if some:
        yield some


class _Batch:
    """Some groups of the new job, and where each of their simulations was found; -1: nowhere."""

    def __init__(self, pieces: Sequence[GroupChunk]):
        self.start = pieces[0].start
        self.ids = pa.concat_arrays([piece.ids for piece in pieces])
        self.seeds = np.concatenate([_own(piece) for piece in pieces])
        self.offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(piece.offsets) for piece in pieces]))])
        self.sources, self.groups, self.replicates = (np.full(len(self.seeds), -1, np.int32) for _ in range(3))

    @property
    def is_full(self) -> bool:
        return bool((self.sources >= 0).all())

    def add(self, number: int, source: Source) -> None:
        for piece in source.groups.pieces():
            at = pc.index_in(piece.ids, self.ids)
            is_there = at.is_valid().to_numpy(zero_copy_only=False)
            is_there &= source.stored[piece.start : piece.start + len(piece)]
            seeds, offsets = _own(piece), piece.offsets - piece.offsets[0]
            for theirs in np.flatnonzero(is_there).tolist():
                group, mine = piece.start + theirs, at[theirs].as_py()
                self._add_group(number, source, group, mine, seeds[offsets[theirs] : offsets[theirs + 1]])

    def _add_group(self, number: int, source: Source, group: int, mine: int, seeds: npt.NDArray[np.uint64]) -> None:
        begin, end = self.offsets[mine : mine + 2].tolist()
        _, ours, theirs = np.intersect1d(self.seeds[begin:end], seeds, assume_unique=True, return_indices=True)
        is_new = (self.sources[begin + ours] < 0) & source.has(group, theirs)
        places = begin + ours[is_new]
        self.sources[places], self.groups[places], self.replicates[places] = number, group, theirs[is_new]

    def drop(self, number: int) -> int:
        """Forget what was found in one job, and return how much it was."""
        found = self.sources == number
        self.sources[found] = -1
        return int(found.sum())

    def table(self, names: Sequence[str]) -> pa.Table:
        found = np.flatnonzero(self.sources >= 0)
        groups = np.searchsorted(self.offsets, found, side="right") - 1
        columns = [
            pa.array((self.start + groups).astype(np.int32)),
            pa.array((found - self.offsets[groups]).astype(np.int32)),
            pa.DictionaryArray.from_arrays(pa.array(self.sources[found]), pa.array(names, pa.string())),
            pa.array(self.groups[found]),
            pa.array(self.replicates[found]),
        ]
        return pa.table(columns, schema=PLAN)


def _own(piece: GroupChunk) -> npt.NDArray[np.uint64]:
    """Return the seeds of a chunk, whose array may have more."""
    return piece.seeds[piece.offsets[0] : piece.offsets[-1]]


def _matched(pieces: Sequence[GroupChunk], readable: dict[int, Source]) -> _Batch:
    """Look for some groups in each job, by its number. A job that cannot be read leaves ``readable``."""
    batch = _Batch(pieces)
    for number, offer in list(readable.items()):
        if batch.is_full:
            break
        try:
            batch.add(number, offer)
        except UNREADABLE as bad:
            warn_unreadable(offer.record.job, bad)
            batch.drop(number)
            del readable[number]
    return batch
