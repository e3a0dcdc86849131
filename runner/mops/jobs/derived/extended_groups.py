"""Adds replicates and parameter sets to the groups of a job, whose numbers stay the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, takewhile
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import UsageError
from mops.study.checks import kind_of
from mops.study.groups import PIECE_GROUPS, PIECE_SIMULATIONS, SIMULATIONS_LIMIT, GroupChunk, GroupTable, StudyGroups
from mops.study.ids_and_seeds import replicate_seed


class _Entry(NamedTuple):
    id: str  # the param_id
    params: str  # canonical JSON
    seeds: list[int]


def n_replicates_of(groups: GroupTable) -> int:
    """Return the replicates of the parameter sets without an own seed; 1 if all have one."""
    for piece in groups.pieces():
        for entry in _entries(piece):
            seeds = set(entry.seeds)
            if n := sum(1 for _ in takewhile(lambda i: replicate_seed(entry.id, i) in seeds, count())):  # noqa: B023
                return n
    return 1


class ExtendedGroups:
    """The groups of a job with more replicates, and then the new groups of more parameter sets."""

    # A new seed comes after the seeds that a group has. So group and replicate of each simulation stay the same.

    def __init__(
        self,
        old: GroupTable,  # the groups of the job
        n_replicates: int | None,  # of parameter sets without an own seed; None: as many as they have
        added: StudyGroups | None,  # the groups of the added parameter sets; sets that the job has add their seeds
        columns: Sequence[str] = (),  # of the job's parameters (`mops.storage.params_file.parameter_columns`)
    ):
        self._old, self._n_replicates, self._added = old, n_replicates, added
        self.kinds: dict[str, set[str]] = {}  # of each parameter's values
        for piece in old.pieces():
            for text in piece.params.to_pylist():
                for name, value in json.loads(text).items():
                    self.kinds.setdefault(name, set()).add(kind_of(value))
        # Canonical JSON sorts the names, and the study may have another order, which decides who is called param.NAME.
        places = {column: place for place, column in enumerate(columns)}
        order = sorted(self.kinds, key=lambda name: places.get(name, places.get(f"param.{name}", len(places))))
        self.kinds = {name: self.kinds[name] for name in order}
        for name, kinds in added.kinds.items() if added is not None else ():
            self.kinds.setdefault(name, set()).update(kinds)
        # `pieces` fills these: the numbers of the job's groups that have more seeds now, and the size of all groups.
        self.longer: list[int] = []
        self.n_groups = self.n_simulations = 0

    def pieces(self) -> Iterator[GroupChunk]:
        """Yield the groups in order, as ``GroupTable.pieces``; raise UsageError if there are too many simulations."""
        self.longer, self.n_groups, self.n_simulations = [], 0, 0
        waiting: list[_Entry] = []
        n_waiting = 0
        for entry in self._all():
            if waiting and (len(waiting) == PIECE_GROUPS or n_waiting + len(entry.seeds) > PIECE_SIMULATIONS):
                yield self._chunk(waiting)
                waiting, n_waiting = [], 0
            waiting.append(entry)
            n_waiting += len(entry.seeds)
        yield self._chunk(waiting)

    def _chunk(self, entries: list[_Entry]) -> GroupChunk:
        seeds = np.array([seed for entry in entries for seed in entry.seeds], np.uint64)
        offsets = np.array([0, *accumulate(len(entry.seeds) for entry in entries)], np.int64)
        ids, params = pa.array([entry.id for entry in entries]), pa.array([entry.params for entry in entries])
        chunk = GroupChunk(self.n_groups, ids, params, seeds, offsets)
        self.n_groups += len(entries)
        self.n_simulations += len(seeds)
        if self.n_simulations > SIMULATIONS_LIMIT:
            raise UsageError(
                "the study would have too many simulations",
                where="extend",
                hint=f"the limit is {SIMULATIONS_LIMIT:,}: add less, or split the study",
            )
        return chunk

    def _all(self) -> Iterator[_Entry]:
        again = self._sets_of_both()
        number = count()
        for piece in self._old.pieces():
            for entry in _entries(piece):
                group, seeds = next(number), self._longer_seeds(entry, again.get(entry.id, ()))
                if len(seeds) > len(entry.seeds):
                    self.longer.append(group)
                yield entry._replace(seeds=seeds)
        for piece in self._added.pieces() if self._added is not None else ():
            yield from (entry for entry in _entries(piece) if entry.id not in again)

    def _longer_seeds(self, entry: _Entry, added: tuple[int, ...] | list[int]) -> list[int]:
        derived: list[int] = []
        if self._n_replicates is not None and replicate_seed(entry.id, 0) in entry.seeds:
            derived = [replicate_seed(entry.id, i) for i in range(self._n_replicates)]
        return list(dict.fromkeys([*entry.seeds, *derived, *added]))

    def _sets_of_both(self) -> dict[str, list[int]]:
        """Return the seeds of the added sets that the job has too, by param_id."""
        if self._added is None:
            return {}
        ids = pa.concat_arrays([piece.ids for piece in self._old.pieces()])
        return {
            entry.id: entry.seeds
            for piece in self._added.pieces()
            if pc.any(pc.is_in(piece.ids, ids)).as_py()
            for entry, known in zip(_entries(piece), pc.is_in(piece.ids, ids).to_pylist(), strict=True)
            if known
        }


def _entries(piece: GroupChunk) -> Iterator[_Entry]:
    offsets, seeds = piece.offsets.tolist(), piece.seeds.tolist()
    for i, (identity, params) in enumerate(zip(piece.ids.to_pylist(), piece.params.to_pylist(), strict=True)):
        yield _Entry(identity, params, seeds[offsets[i] - offsets[0] : offsets[i + 1] - offsets[0]])
