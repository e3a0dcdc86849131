"""A storage with a job and jobs derived from it, and the rows that their readers must return."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from made import ID

from mops.attempt.claimed_job import end_state
from mops.jobs.chosen_groups import Choice, ExtendedGroups, choose, sources_of, taken_over_counts
from mops.jobs.derive import wanted
from mops.jobs.job import Job
from mops.jobs.reuse import failures_of
from mops.parquet.encoder import encode
from mops.project.bundle import Bundle
from mops.project.project import ModelSpec
from mops.storage.compaction import Compacted, Run, compact
from mops.storage.files import Files
from mops.storage.job_options import NO_OPTIONS
from mops.storage.job_records import DerivedFiles, JobRecord, create_derived, create_job, keep_reference, load_job
from mops.storage.joblog.log import CurrentPart, JobLog
from mops.storage.joblog.records import Part
from mops.storage.params_file import encode_groups, load_groups
from mops.storage.paths import table_of
from mops.storage.sources import FirstReplicates, verify_job
from mops.study.groups import IDENTITY_FIELDS, StudyGroups
from mops.study.ids_and_seeds import param_id
from mops.study.ranges import Ranges
from mops.study.study_file import parse_study
from mops.task import FAILURES, LOSSES
from mops.verdicts import Counts

TARGETS = ("t:one", "t:two")
OUTPUT = "daily"
_numbers = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """The verdict of each replicate and of each target of a group; None: good."""

    replicates: tuple[str | None, ...]
    targets: tuple[str | None, ...]

    @property
    def scored(self) -> bool:
        return not any(self.replicates)

    @property
    def counts(self) -> Counts:
        failed = sum(map(bool, self.replicates))
        lost = sum(map(bool, self.targets)) if self.scored else len(TARGETS)
        verdicts = Counter(filter(None, self.replicates + (self.targets if self.scored else ())))
        return Counts(len(self.replicates) - failed, failed, len(TARGETS) - lost, lost, dict(verdicts))

    @property
    def verdicts(self) -> set[str]:
        return set(filter(None, self.replicates + (self.targets if self.scored else ())))


HEALTHY = Outcome((None, None), (None, None))


@dataclass(frozen=True)
class Truth:
    """What readers must find of a group: the job that has each replicate, the job that has its losses, the outcome."""

    ran: tuple[str, ...]
    scored: str
    outcome: Outcome


class World:
    """A storage with a job and the jobs derived from it, and the expected rows of each group."""

    def __init__(self, files: Files, n_groups: int):
        self.files, self.n_groups = files, n_groups
        self.truth: dict[int, Truth] = {}
        self.seeds = [[10 * group, 10 * group + 1] for group in range(n_groups)]

    def first(self, outcomes: list[Outcome], commits: list[int], at: str = "now", job_id: str = ID) -> Job:
        groups = _groups(list(enumerate(self.seeds)))
        spec = ModelSpec("m:f", "baseline", TARGETS, None)
        numbers = (self.n_groups, 2 * self.n_groups)
        record = JobRecord("first", job_id, at, "0" * 64, spec, *numbers, NO_OPTIONS, study="", project="")
        create_job(self.files, record, Bundle("0" * 64, b"zip", ()), "{}", encode_groups(groups, self.files.spool()))
        keep_reference(self.files, record.paths, {OUTPUT: {"y": "string"}})
        return self.run("first", dict(enumerate(outcomes)), commits)

    def derive(self, parent: Job, name: str, verdicts: str) -> Job:
        """Create the job that retries groups with these verdicts."""
        return self._create(parent, name, choose(parent.record, failures_of(parent), verdicts=wanted(verdicts)))

    def rescore(self, parent: Job, name: str) -> Job:
        """Create the job that evaluates all targets again."""
        return self._create(parent, name, choose(parent.record, failures_of(parent), all_targets=True))

    def extend(self, parent: Job, name: str, more: dict[int, list[int]]) -> Job:
        """Create the job that also has these seeds of groups, some of which may be new."""
        old = load_groups(self.files, parent.record.paths)
        groups = ExtendedGroups(old, None, _groups(list(more.items())))
        params = encode_groups(groups, self.files.spool())
        choice = choose(parent.record, failures_of(parent), extended=groups)
        for group, seeds in more.items():
            self.seeds += [[] for _ in range(group + 1 - len(self.seeds))]
            self.seeds[group] = list(dict.fromkeys([*self.seeds[group], *seeds]))
        self.n_groups = len(self.seeds)
        assert (groups.n_groups, groups.n_simulations) == (self.n_groups, self.n_simulations)
        return self._create(parent, name, choice, DerivedFiles(params))

    @property
    def n_simulations(self) -> int:
        return sum(map(len, self.seeds))

    def _create(self, parent: Job, name: str, choice: Choice, files: DerivedFiles = DerivedFiles()) -> Job:  # noqa: B008
        its = parent.record
        counts = taken_over_counts(choice, load_groups(self.files, its.paths), failures_of(parent), len(TARGETS))
        sources = sources_of(its, choice)
        record = replace(its, job=name, parent=its.job, sources=sources, taken_over_counts=counts)
        record = replace(record, n_groups=self.n_groups, n_simulations=self.n_simulations)
        create_derived(self.files, record, its.paths, files)
        return Job(self.files, name)

    def run(self, name: str, outcomes: dict[int, Outcome], commits: list[int]) -> Job:
        """Commit the groups to run, in portions of these sizes, and end the job."""
        record = load_job(self.files, name)
        log = JobLog(self.files, record.paths)
        log.claim("person")
        left = list(record.todo(log.view.committed))
        for size in [*commits, len(left)]:
            # Every other group first, so that the groups of a commit are not neighbours.
            left.sort(key=lambda group: (group % 2, group))
            groups, left = left[:size], left[size:]
            if groups:
                self.commit(log, name, groups, outcomes)
        log.end(end_state(record, log.view), totals=log.view.counts)
        return Job(self.files, name)

    def commit(self, log: JobLog, name: str, groups: list[int], outcomes: dict[int, Outcome]) -> None:
        record = load_job(self.files, name)
        first = FirstReplicates(self.files, record)
        n_stored = {group: first.n(group) for group in groups}
        assert n_stored == {g: len(self.truth[g].ran) if g in record.simulated else 0 for g in groups}
        for group in groups:
            ran = self.truth[group].ran[: n_stored[group]] if n_stored[group] else ()
            n_new = len(self.seeds[group]) - len(ran)
            self.truth[group] = Truth((*ran, *[name] * n_new), name, outcomes[group])
        tables = {kind: self.rows(kind, groups) for kind in ("outputs", "losses", "failures")}
        new = [row["replicate"] >= n_stored[row["group"]] for row in tables["outputs"].to_pylist()]
        tables["outputs"] = tables["outputs"].filter(pa.array(new, pa.bool_()))
        parts = [self.part(name, kind, table) for kind, table in tables.items() if table.num_rows]
        counts = sum((outcomes[group].counts for group in groups), Counts())
        log.commit(Ranges.of(groups), parts, counts - Counts(simulations_good=sum(n_stored.values())))

    def compact(self, name: str) -> Compacted:
        """Merge neighbouring parts of a job in pairs."""
        return compact(self.files, load_job(self.files, name), plan=pairs)

    def part(self, name: str, kind: str, table: pa.Table) -> Part:
        path = load_job(self.files, name).paths.part(kind, OUTPUT if kind == "outputs" else None, 1, next(_numbers))
        encoded = encode(table, self.files.spool())
        self.files.put(path, encoded.content)
        return Part(path, encoded.rows, encoded.bytes, encoded.digest)

    def rows(self, kind: str, groups: list[int]) -> pa.Table:
        """Return the expected rows of these groups, in the given order."""
        makers = {"outputs": _outputs, "losses": _losses, "failures": _failures}
        schemas = {"outputs": pa.schema([*IDENTITY_FIELDS, pa.field("y", pa.string())]), "losses": LOSSES}
        rows = [row for group in groups for row in makers[kind](group, self.seeds[group], self.truth[group])]
        return pa.Table.from_pylist(rows, schema=schemas.get(kind, FAILURES))

    def assert_reads_true(self, job: Job) -> None:
        """Check every reader against the expected rows."""
        everything = list(range(self.n_groups))
        expected = {kind: self.rows(kind, everything) for kind in ("outputs", "losses", "failures")}
        outputs = job.outputs(OUTPUT)
        assert same(outputs.to_arrow(), expected["outputs"])
        assert len(outputs) == expected["outputs"].num_rows
        assert same(job.losses().to_arrow(), expected["losses"])
        assert same(job.failures().to_arrow(), expected["failures"])
        assert [table.rows for table in job.tables()] == [table.num_rows for table in expected.values()]
        status = job.status()
        assert status.counts == sum((told.outcome.counts for told in self.truth.values()), Counts())
        assert (status.groups, status.n_simulations) == (self.n_groups, self.n_simulations)
        assert status.state == ("partial" if status.counts.failed else "succeeded")
        assert verify_job(self.files, job.name) == []


def pairs(parts: Iterable[CurrentPart]) -> list[Run]:
    """Plan to merge two parts of each table, while there are two."""
    tables = defaultdict[tuple[str, str | None], list[CurrentPart]](list)
    for part in parts:
        tables[table_of(part.part.path)].append(part)
    runs = [table[at : at + 2] for table in tables.values() for at in range(0, len(table), 2)]
    return [run for run in runs if len(run) == 2]


def same(one: pa.Table, other: pa.Table) -> bool:
    """Tell whether two tables have the same columns and rows, in any order."""
    if one.num_rows == other.num_rows == 0:
        return True
    assert sorted(one.schema.names) == sorted(other.schema.names)
    return Counter(map(str, one.to_pylist())) == Counter(map(str, other.select(one.schema.names).to_pylist()))


def _head(group: int) -> dict[str, Any]:
    return {"param_id": param_id({"x": group}), "group": group}


def _groups(seeds: list[tuple[int, list[int]]]) -> StudyGroups:
    sets = [{"params": {"x": group}, "seed": seed} for group, mine in seeds for seed in mine]
    return parse_study({"model": "m:f", "parameter_sets": sets}, where="study.json").groups


def _outputs(group: int, seeds: list[int], told: Truth) -> Iterator[dict[str, Any]]:
    for replicate, verdict in enumerate(told.outcome.replicates):
        if verdict is None:
            yield _head(group) | {"replicate": replicate, "seed": seeds[replicate], "y": told.ran[replicate]}


def _losses(group: int, seeds: list[int], told: Truth) -> Iterator[dict[str, Any]]:
    for target, verdict in zip(TARGETS, told.outcome.targets, strict=True):
        if told.outcome.scored and verdict is None:
            yield _head(group) | {"target": target, "name": told.scored, "loss": 1.0, "n_replicates": len(seeds)}


def _failures(group: int, seeds: list[int], told: Truth) -> Iterator[dict[str, Any]]:
    outcome = told.outcome
    texts = {"message": told.scored, "traceback": "", "attempts": 1, "signals": ""}
    for replicate, verdict in enumerate(outcome.replicates):
        if verdict is not None:
            one = {"replicate": replicate, "seed": seeds[replicate], "target": None, "reason": verdict}
            yield _head(group) | one | texts
    none = {"replicate": None, "seed": None}
    if not outcome.scored:
        yield _head(group) | none | {"target": "*", "reason": next(filter(None, outcome.replicates))} | texts
        return
    for target, verdict in zip(TARGETS, outcome.targets, strict=True):
        if verdict is not None:
            yield _head(group) | none | {"target": target, "reason": verdict} | texts
