"""Decides what a retry, an extension or a rescoring runs and takes over, from what mops/jobs/derive.py has read."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, takewhile
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import UsageError
from mops.storage.job_records import JobRecord, Source
from mops.study.checks import kind_of
from mops.study.groups import PIECE_GROUPS, PIECE_SIMULATIONS, SIMULATIONS_LIMIT, GroupChunk, GroupTable, StudyGroups
from mops.study.ids_and_seeds import replicate_seed
from mops.study.ranges import Ranges
from mops.verdicts import Counts


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
        again: dict[str, list[int]] = {}  # the seeds of the added sets that the job has too, by param_id
        if self._added is not None:
            ids = pa.concat_arrays([piece.ids for piece in self._old.pieces()])
            for added in self._added.pieces():
                known = pc.is_in(added.ids, ids)
                if pc.any(known).as_py():
                    both = zip(_entries(added), known.to_pylist(), strict=True)
                    again |= {entry.id: entry.seeds for entry, is_known in both if is_known}
        number = count()
        for piece in self._old.pieces():
            for entry in _entries(piece):
                group, derived = next(number), []
                if self._n_replicates is not None and replicate_seed(entry.id, 0) in entry.seeds:
                    derived = [replicate_seed(entry.id, i) for i in range(self._n_replicates)]
                seeds = list(dict.fromkeys([*entry.seeds, *derived, *again.get(entry.id, ())]))
                if len(seeds) > len(entry.seeds):
                    self.longer.append(group)
                yield entry._replace(seeds=seeds)
        for piece in self._added.pieces() if self._added is not None else ():
            yield from (entry for entry in _entries(piece) if entry.id not in again)


def _entries(piece: GroupChunk) -> Iterator[_Entry]:
    offsets, seeds = piece.offsets.tolist(), piece.seeds.tolist()
    for i, (identity, params) in enumerate(zip(piece.ids.to_pylist(), piece.params.to_pylist(), strict=True)):
        yield _Entry(identity, params, seeds[offsets[i] : offsets[i + 1]])


@dataclass(frozen=True)
class Choice:
    """The groups that a derived job runs; it takes over the others as they are."""

    again: Ranges  # their losses and failures of the parent do not count
    simulated: Ranges  # those of `again` whose simulations of the parent count, all of them good
    mended: Ranges  # those of `again` with a failed simulation of the parent, whose good ones the job copies


def choose(
    parent: JobRecord,
    failures: pa.Table,  # of the parent, from `mops.jobs.reuse.failures_of`
    *,
    verdicts: Collection[str] = (),  # run the groups that have these failures
    all_targets: bool = False,  # evaluate all targets of the groups without a failed simulation
    extended: ExtendedGroups | None = None,  # run what these have and the parent lacks
) -> Choice:
    """Choose the groups that a job derived from a complete job runs."""
    failed = groups_of(failures.filter(pc.is_null(failures["target"])))
    good = failed.complement(parent.n_groups)
    again = groups_of(failures.filter(pc.is_in(failures["reason"], pa.array(sorted(verdicts), pa.string()))))
    if all_targets:
        # Without a target before, no row says why the groups with a failed simulation have no losses. So they run, too.
        again |= good if parent.spec.targets else good | failed
    if extended is not None:
        again |= Ranges.of(extended.longer) | Ranges.joined([(parent.n_groups, extended.n_groups)])
    # Targets can be evaluated on stored rows only if the parent stores all outputs.
    if parent.spec.outputs is not None and parent.spec.targets:
        return Choice(again, Ranges(), Ranges())
    return Choice(again, again & good, again & failed if extended is not None else Ranges())


def groups_of(failures: pa.Table) -> Ranges:
    """Return the groups that some failures are of."""
    return Ranges.of(pc.unique(failures["group"]).to_pylist())


def sources_of(parent: JobRecord, choice: Choice) -> tuple[Source, ...]:
    """Return the jobs whose parts have rows that a job derived from a complete job takes over, the oldest first."""
    # The record of the parent names its sources, so this reads no other record.
    again = choice.again - choice.simulated
    left = [
        replace(source, losses=source.losses - choice.again, outputs=source.outputs - again)
        for source in (*parent.sources, parent.own)
    ]
    return tuple(source for source in left if source.losses or source.outputs)


def taken_over_counts(
    choice: Choice,
    groups: GroupTable,  # of the parent
    failures: pa.Table,  # of the parent: columns `group`, `target` and `reason`
    n_targets: int,  # of each group of the derived job
) -> Counts:
    """Count the simulations and targets that a derived job takes over from its parent."""
    whole = choice.again.complement(len(groups))
    theirs = failures.filter(pc.is_in(failures["group"], pa.array(list(whole), pa.int32())))
    rows = _counted(theirs["target"])
    simulations_failed = rows.pop(None, 0)
    without_losses = rows.pop("*", 0)  # one row for all targets of a group
    targets_failed = without_losses * n_targets + sum(rows.values())
    n_simulations = sum(map(groups.n_replicates, whole)) + sum(map(groups.n_replicates, choice.simulated))
    return Counts(
        simulations_good=n_simulations - simulations_failed,
        simulations_failed=simulations_failed,
        targets_good=len(whole) * n_targets - targets_failed,
        targets_failed=targets_failed,
        verdicts=_counted(theirs.filter(pc.fill_null(pc.not_equal(theirs["target"], "*"), fill_value=True))["reason"]),
    )


def _counted(values: pa.ChunkedArray) -> dict[Any, int]:
    return {kind["values"]: kind["counts"] for kind in pc.value_counts(values).to_pylist()}
