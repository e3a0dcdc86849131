"""Which groups of a job a retry, an extension or a rescoring runs again, and the groups of an extension."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, takewhile
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import JobError, UsageError
from mops.jobs.job import Job
from mops.storage.job_records import JobRecord, Source
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import LogView
from mops.storage.params_file import load_groups
from mops.study.checks import kind_of
from mops.study.groups import PIECE_GROUPS, PIECE_SIMULATIONS, SIMULATIONS_LIMIT, GroupChunk, GroupTable, StudyGroups
from mops.study.ids_and_seeds import replicate_seed
from mops.study.ranges import Ranges
from mops.verdicts import VERDICTS, Counts


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


def wanted(verdicts: str | Iterable[str]) -> frozenset[str]:
    """Return the verdicts to retry, from names or a text like ``oom,timeout`` or ``all``; raise UsageError."""
    words = verdicts.split(",") if isinstance(verdicts, str) else verdicts
    names = [text for word in words if (text := word.strip())]
    unknown = [repr(name) for name in names if name not in (*VERDICTS, "all")]
    if unknown or not names:
        raise UsageError(
            f"unknown verdict: {', '.join(unknown)}" if unknown else "no verdict is named",
            where="the verdicts to retry",
            hint=f"use {', '.join(VERDICTS)}, or all",
        )
    return frozenset(VERDICTS) if "all" in names else frozenset(names)


def complete_view(job: Job) -> LogView:
    """Return the view of a job's log; raise JobError if the job is not complete."""
    view = JobLog(job.files, job.record.paths).read()
    if view.complete:
        return view
    state = job.status().state
    complete = f"mops jobs watch {job.name}" if state == "running" else f"mops jobs resume {job.name}"
    raise JobError(
        f"job {job.name!r} is {state}: only a complete job can be retried, extended or scored again",
        where=job.files.url,
        hint=f"complete the job first: {complete}",
    )


@dataclass(frozen=True)
class Choice:
    """The groups that a derived job runs."""

    again: Ranges  # their losses and failures of the parent do not count: the job runs them again
    simulated: Ranges  # those of `again` whose simulations of the parent count


def sources_of(parent: JobRecord, choice: Choice) -> tuple[Source, ...]:
    """Return the jobs whose parts have rows that a job derived from a complete job takes over, the oldest first."""
    # The record of the parent names its sources, so this reads no other record.
    again = choice.again - choice.simulated
    left = [
        replace(source, losses=source.losses - choice.again, outputs=source.outputs - again)
        for source in (*parent.sources, parent.own)
    ]
    return tuple(source for source in left if source.losses or source.outputs)


def retried(
    job: Job,
    verdicts: frozenset[str],
    failures: pa.Table,  # from `failures_of`
) -> Choice:
    """Choose the groups of a job that have certain failures. If only targets failed, the simulations count."""
    if not failures.num_rows:
        raise JobError(
            f"no simulation or target of job {job.name!r} has failed",
            where=job.files.url,
            hint=f"read the results: mops jobs results {job.name}",
        )
    groups = Ranges.of(_groups(failures.filter(pc.is_in(failures["reason"], pa.array(sorted(verdicts))))))
    if not groups:
        found = {v: len(_groups(failures.filter(pc.equal(failures["reason"], v)))) for v in VERDICTS}
        counts = ", ".join(f"{n:,} with {verdict}" for verdict, n in found.items() if n)
        raise JobError(
            f"job {job.name!r} has no failure with the verdict {' or '.join(v for v in VERDICTS if v in verdicts)}",
            where=job.files.url,
            hint=f"name a verdict that the job has; parameter sets with failures: {counts}",
        )
    return Choice(groups, with_stored_inputs(job.record, groups - with_failed_simulations(failures)))


def scored_again(job: Job, failures: pa.Table) -> Choice:
    """Choose all groups without a failed simulation, to evaluate their targets again on the stored simulations."""
    failed = with_failed_simulations(failures)
    good = failed.complement(job.record.n_groups)
    if not good:
        raise JobError(
            f"every parameter set of job {job.name!r} has a failed simulation",
            where=job.files.url,
            hint=f"run it again: mops jobs retry {job.name} --verdict all",
        )
    # Without a target before, no row says why these groups have no losses. So they run again.
    return Choice(good if job.record.spec.targets else good | failed, good)


def with_groups(job: Job, choice: Choice, groups: ExtendedGroups, failures: pa.Table) -> Choice:
    """Add the groups that have more seeds now, and the new ones."""
    # Of the parent's simulations of a group with a failed one, those that are good come by a reuse (`with_gaps`).
    longer = Ranges.of(groups.longer)
    added = Ranges(((job.record.n_groups, groups.n_groups),)) if groups.n_groups > job.record.n_groups else Ranges()
    failed = with_failed_simulations(failures)
    simulated = choice.simulated | with_stored_inputs(job.record, longer - failed)
    return Choice(choice.again | longer | added, simulated)


def with_gaps(job: Job, choice: Choice, failures: pa.Table) -> Ranges:
    """Return the groups that run again because simulations of them have failed, and whose others can be kept."""
    failed = with_failed_simulations(failures)
    return with_stored_inputs(job.record, choice.again & failed)


def with_failed_simulations(failures: pa.Table) -> Ranges:
    """Return the groups that have a failed simulation."""
    return Ranges.of(_groups(failures.filter(pc.is_null(failures["target"]))))


def with_stored_inputs(record: JobRecord, groups: Ranges) -> Ranges:
    """Return the groups whose targets can be evaluated on stored rows: none if some outputs are not stored."""
    return groups if record.spec.outputs is None or not record.spec.targets else Ranges()


def taken_over_counts(job: Job, choice: Choice, n_targets: int, failures: pa.Table) -> Counts:
    """Count what a derived job with ``n_targets`` targets takes over from its parent."""
    table = load_groups(job.files, job.record.paths)
    whole = choice.again.complement(len(table))
    n_simulated = sum(map(table.n_replicates, choice.simulated))
    return counts_of(whole, failures, table, n_targets) + Counts(simulations_good=n_simulated)


def _groups(failures: pa.Table) -> list[int]:
    groups: list[int] = pc.unique(failures["group"]).to_pylist()
    return groups


def counts_of(
    groups: Ranges,
    failures: pa.Table,  # of the job: columns `group`, `target` and `reason`
    table: GroupTable,
    n_targets: int,  # of each group
) -> Counts:
    """Count the simulations and targets of some committed groups."""
    theirs = failures.filter(pc.is_in(failures["group"], pa.array(list(groups), pa.int32())))
    rows = _counted(theirs["target"])
    simulations_failed = rows.pop(None, 0)
    without_losses = rows.pop("*", 0)  # one row for all targets of a group
    targets_failed = without_losses * n_targets + sum(rows.values())
    return Counts(
        simulations_good=sum(map(table.n_replicates, groups)) - simulations_failed,
        simulations_failed=simulations_failed,
        targets_good=len(groups) * n_targets - targets_failed,
        targets_failed=targets_failed,
        verdicts=_counted(theirs.filter(pc.fill_null(pc.not_equal(theirs["target"], "*"), fill_value=True))["reason"]),
    )


def _counted(values: pa.ChunkedArray) -> dict[Any, int]:
    return {kind["values"]: kind["counts"] for kind in pc.value_counts(values).to_pylist()}
