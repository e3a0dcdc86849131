"""Derived jobs: the groups that they inherit, the groups that run again, and what readers see."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mops.attempt.claimed_job import end_state
from mops.errors import CorruptRecord, JobError
from mops.jobs import derived_jobs
from mops.jobs.job import Job
from mops.parquet.encoder import encode
from mops.project.bundle import Bundle
from mops.project.project import ModelSpec
from mops.storage.ancestors import verify_job
from mops.storage.files import Files
from mops.storage.job_options import NO_OPTIONS
from mops.storage.job_records import JobRecord, create_derived, create_job, keep_reference, load_job
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Part
from mops.storage.joblog.verify import coverage_problems
from mops.storage.params_file import encode_groups
from mops.storage.paths import JobPaths
from mops.study.groups import IDENTITY_FIELDS
from mops.study.ids_and_seeds import param_id
from mops.study.ranges import Ranges
from mops.study.study_file import parse_study
from mops.task import FAILURES, LOSSES
from mops.verdicts import VERDICTS, Counts

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
        return Counts(len(self.replicates) - failed, failed, len(TARGETS) - lost, lost)

    @property
    def verdicts(self) -> set[str]:
        return set(filter(None, self.replicates + (self.targets if self.scored else ())))


HEALTHY = Outcome((None, None), (None, None))


class World:
    """A storage with a job and the jobs derived from it, and the expected rows of each group."""

    def __init__(self, files: Files, n_groups: int):
        self.files, self.n_groups = files, n_groups
        self.truth: dict[int, tuple[str, Outcome]] = {}

    def first(self, outcomes: list[Outcome], commits: list[int]) -> Job:
        sets = [{"params": {"x": i}, "seed": 10 * i + replicate} for i in range(self.n_groups) for replicate in (0, 1)]
        groups = parse_study({"model": "m:f", "parameter_sets": sets}, where="study.json").groups
        spec = ModelSpec("m:f", "baseline", TARGETS, None)
        numbers = (self.n_groups, 2 * self.n_groups)
        record = JobRecord("first", "now", "0" * 64, spec, *numbers, NO_OPTIONS, study="", project="")
        create_job(self.files, record, Bundle("0" * 64, b"zip", ()), "{}", encode_groups(groups, self.files.spool()))
        keep_reference(self.files, JobPaths("first"), {OUTPUT: {"y": "string"}})
        return self.run("first", dict(enumerate(outcomes)), commits)

    def derive(self, parent: Job, name: str, verdicts: str) -> Job:
        """Create the job that retries groups with these verdicts."""
        record = parent.record
        view = JobLog(self.files, JobPaths(parent.name)).read()
        chosen = derived_jobs.parent(parent, record, view, derived_jobs.wanted(verdicts))
        create_derived(self.files, replace(record, job=name, parent=chosen), chosen)
        return Job(self.files, name)

    def run(self, name: str, outcomes: dict[int, Outcome], commits: list[int]) -> Job:
        """Commit the groups to run, in portions of these sizes, and end the job."""
        log, record = JobLog(self.files, JobPaths(name)), load_job(self.files, name)
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
        self.truth |= {group: (name, outcomes[group]) for group in groups}
        tables = {
            kind: rows for kind in ("outputs", "losses", "failures") if (rows := self.rows(kind, groups)).num_rows
        }
        parts = [self.part(name, kind, table) for kind, table in tables.items()]
        counts = sum((outcomes[group].counts for group in groups), Counts())
        log.commit(Ranges.of(groups), parts, counts)

    def part(self, name: str, kind: str, table: pa.Table) -> Part:
        path = JobPaths(name).part(kind, OUTPUT if kind == "outputs" else None, 1, next(_numbers))
        encoded = encode(table, self.files.spool())
        self.files.put(path, encoded.content)
        return Part(path, encoded.rows, encoded.bytes, encoded.digest)

    def rows(self, kind: str, groups: list[int]) -> pa.Table:
        """Return the expected rows of these groups, in the given order."""
        makers = {"outputs": _outputs, "losses": _losses, "failures": _failures}
        schemas = {"outputs": pa.schema([*IDENTITY_FIELDS, pa.field("y", pa.string())]), "losses": LOSSES}
        rows = [row for group in groups for row in makers[kind](group, *self.truth[group])]
        return pa.Table.from_pylist(rows, schema=schemas.get(kind, FAILURES))

    def assert_reads_true(self, job: Job) -> None:
        """Check every reader against the expected rows."""
        everything = list(range(self.n_groups))
        expected = {kind: self.rows(kind, everything) for kind in ("outputs", "losses", "failures")}
        outputs = job.outputs(OUTPUT)
        assert same(outputs.to_table(), expected["outputs"])
        assert outputs.count_rows() == expected["outputs"].num_rows
        assert same(job.losses(), expected["losses"])
        assert same(job.failures(), expected["failures"])
        assert [table.rows for table in job.tables()] == [table.num_rows for table in expected.values()]
        status = job.status()
        assert status.counts == sum((outcome.counts for _, outcome in self.truth.values()), Counts())
        assert (status.groups, status.n_simulations) == (self.n_groups, 2 * self.n_groups)
        assert status.state == ("partial" if status.counts.failed else "succeeded")
        assert verify_job(self.files, job.name) == []


def same(one: pa.Table, other: pa.Table) -> bool:
    """Tell whether two tables have the same columns and rows in any order."""
    assert one.schema.names == other.schema.names or one.num_rows == other.num_rows == 0
    return Counter(map(str, one.to_pylist())) == Counter(map(str, other.to_pylist()))


def _head(group: int) -> dict[str, Any]:
    return {"param_id": param_id({"x": group}), "group": group}


def _outputs(group: int, job: str, outcome: Outcome) -> Iterator[dict[str, Any]]:
    for replicate, verdict in enumerate(outcome.replicates):
        if verdict is None:
            yield _head(group) | {"replicate": replicate, "seed": 10 * group + replicate, "y": job}


def _losses(group: int, job: str, outcome: Outcome) -> Iterator[dict[str, Any]]:
    for target, verdict in zip(TARGETS, outcome.targets, strict=True):
        if outcome.scored and verdict is None:
            yield _head(group) | {"target": target, "name": job, "loss": 1.0, "n_replicates": 2}


def _failures(group: int, job: str, outcome: Outcome) -> Iterator[dict[str, Any]]:
    texts = {"message": job, "traceback": "", "attempts": 1, "signals": ""}
    for replicate, verdict in enumerate(outcome.replicates):
        if verdict is not None:
            one = {"replicate": replicate, "seed": 10 * group + replicate, "target": None, "reason": verdict}
            yield _head(group) | one | texts
    none = {"replicate": None, "seed": None}
    if not outcome.scored:
        yield _head(group) | none | {"target": "*", "reason": next(filter(None, outcome.replicates))} | texts
        return
    for target, verdict in zip(TARGETS, outcome.targets, strict=True):
        if verdict is not None:
            yield _head(group) | none | {"target": target, "reason": verdict} | texts


verdict = st.one_of(st.none(), st.none(), st.sampled_from(("oom", "timeout", "error")))
outcome = st.builds(Outcome, st.tuples(verdict, verdict), st.tuples(verdict, verdict))
commits = st.lists(st.integers(1, 4), max_size=4)


@given(st.data(), st.lists(outcome, min_size=1, max_size=9))
@settings(max_examples=100, deadline=None)
def test_a_chain_of_retries_has_each_group_once_as_it_ran_last(data: st.DataObject, outcomes: list[Outcome]) -> None:
    """Rows, counts, state and verify are right for any failures, commits and retried verdicts."""
    world = World(Files.open(f"memory://derived-{next(_numbers)}"), len(outcomes))
    job = world.first(outcomes, data.draw(commits))
    world.assert_reads_true(job)
    for step in range(data.draw(st.integers(1, 3))):
        there = set().union(*(outcome.verdicts for _, outcome in world.truth.values()))
        if not there:
            return
        wanted = data.draw(st.sampled_from([*sorted(there), "all"]))
        meant = there if wanted == "all" else {wanted}
        due = {group for group, (_, outcome) in world.truth.items() if outcome.verdicts & meant}
        before = dict(world.truth)
        job = world.derive(job, f"retry-{step}", wanted)
        assert set(job.record.due) == due
        again = {group: data.draw(outcome) for group in sorted(due)}
        world.run(job.name, again, data.draw(commits))
        assert {group for group in before if world.truth[group] != before[group]} <= due
        world.assert_reads_true(job)


# One derived job in detail


ILL = Outcome((None, "timeout"), (None, None))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return six groups in three commits: (0, 2), (4, 1), (3, 5). Groups 1, 4 and 5 failed."""
    made = World(Files.open(str(tmp_path / "storage")), 6)
    made.first([HEALTHY, ILL, HEALTHY, HEALTHY, ILL, ILL], [2, 2])
    return made


@pytest.fixture
def derived(world: World) -> Job:
    world.derive(Job(world.files, "first"), "second", "timeout")
    return world.run("second", dict.fromkeys((1, 4, 5), HEALTHY), [])


def test_a_parent_does_not_change(world: World, derived: Job) -> None:
    parent = Job(world.files, "first")
    assert parent.status().state == "partial"
    assert parent.failures().num_rows == 6
    assert set(parent.outputs(OUTPUT).to_table()["y"].to_pylist()) == {"first"}
    assert derived.status().parent == "first"
    assert parent.status().parent is None


def test_parts_of_the_parent_are_read_whole_filtered_or_left_out(derived: Job) -> None:
    """A commit whose groups all run again is left out, and one without a group that runs again is read whole."""
    outputs = derived.tables()[0]
    own, others = [[path for path in outputs.paths if f"/{name}/" in path] for name in ("second", "first")]
    assert (len(own), len(others)) == (1, 1)
    assert [part.without for part in outputs.filtered] == [((5, 6),)]
    assert set(derived.paths(OUTPUT)) == {
        path.partition("/storage/")[2] for path in [*outputs.paths, *(part.path for part in outputs.filtered)]
    }


READERS: dict[str, Callable[[ds.Dataset], list[int]]] = {
    "table": lambda rows: rows.to_table()["group"].to_pylist(),
    "columns": lambda rows: rows.to_table(columns=["group"])["group"].to_pylist(),
    "batches": lambda rows: [group for batch in rows.to_batches() for group in batch["group"].to_pylist()],
    "scanner": lambda rows: ds.Scanner.from_dataset(rows).to_table()["group"].to_pylist(),
    "head": lambda rows: rows.head(100)["group"].to_pylist(),
    "sorted": lambda rows: rows.sort_by("group").to_table()["group"].to_pylist(),
    "joined": lambda rows: rows.join(ds.dataset(GROUPS), "group").to_table()["group"].to_pylist(),
    "filtered": lambda rows: rows.filter(pc.field("group") < 100).to_table()["group"].to_pylist(),
    "polars": lambda rows: pl.scan_pyarrow_dataset(rows).collect()["group"].to_list(),
    "duckdb": lambda rows: [group for (group,) in duckdb.from_arrow(rows).select('"group"').fetchall()],
}
GROUPS = pa.table({"group": pa.array(range(6), pa.int32()), "more": [1] * 6})


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_no_reader_returns_a_row_of_a_group_that_ran_again(
    derived: Job, read: Callable[[ds.Dataset], list[int]]
) -> None:
    assert sorted(read(derived.outputs(OUTPUT))) == sorted([*range(6), *range(6)])


@pytest.mark.parametrize("group", range(6))
def test_a_filter_works_on_the_joined_dataset(derived: Job, group: int) -> None:
    found = derived.outputs(OUTPUT).to_table(filter=pc.field("group") == group)
    assert found.schema.names == ["param_id", "group", "replicate", "seed", "y"]
    assert found["y"].to_pylist() == ["second" if group in (1, 4, 5) else "first"] * 2


def test_a_derived_job_shows_inherited_groups_before_it_runs(world: World) -> None:
    job = world.derive(Job(world.files, "first"), "second", "timeout")
    assert (job.status().state, job.status().groups) == ("submitted", 3)
    assert job.status().counts == Counts(6, 0, 6, 0)
    log = JobLog(world.files, JobPaths("second"))
    log.claim("person")
    world.commit(log, "second", [4], {4: HEALTHY})
    assert job.record.todo(log.view.committed) == Ranges(((1, 2), (5, 6)))
    assert job.status().groups == 4
    assert sorted(set(job.outputs(OUTPUT).to_table()["group"].to_pylist())) == [0, 2, 3, 4]
    assert end_state(job.record, log.view) == "cancelled"
    assert verify_job(world.files, "second") == []


def test_a_job_with_other_failures_left_is_partial() -> None:
    world = World(Files.open(f"memory://{next(_numbers)}"), 2)
    first = world.first([Outcome(("oom", None), (None, None)), ILL], [])
    world.derive(first, "second", "oom")
    assert world.run("second", {0: HEALTHY}, []).status().state == "partial"


def test_a_derived_job_has_the_study_bundle_and_schema_of_its_parent(world: World, derived: Job) -> None:
    own, its = JobPaths("second"), JobPaths("first")
    for name in ("study", "params", "schema"):
        assert world.files.get(getattr(own, name)) == world.files.get(getattr(its, name))
    assert derived.record.bundle == load_job(world.files, "first").bundle


def test_without_a_schema_of_the_parent_the_pilot_makes_it() -> None:
    world = World(Files.open(f"memory://{next(_numbers)}"), 1)
    job = world.first([Outcome(("error", "error"), (None, None))], [])
    world.files.remove([JobPaths("first").schema])
    derived = world.derive(job, "second", "all")
    assert derived.output_names() == []
    keep_reference(world.files, JobPaths("second"), {OUTPUT: {"y": "string"}})
    world.assert_reads_true(world.run("second", {0: HEALTHY}, []))


def test_a_killed_retry_can_be_repeated(world: World) -> None:
    """A retry writes `job.json` last, so the files of a killed retry are not a job and do not block its name."""
    job = Job(world.files, "first")
    world.derive(job, "second", "all")
    world.files.remove([JobPaths("second").record])
    world.derive(job, "second", "all")
    with pytest.raises(JobError, match="job 'second' exists already"):
        world.derive(job, "second", "all")


# Damaged storages


def test_a_missing_parent_is_an_error_and_never_fewer_rows(world: World, derived: Job) -> None:
    shutil.rmtree(Path(world.files.url, "jobs", "first"))
    job = Job(world.files, "second")
    assert job.status().counts == Counts(12, 0, 12, 0)
    for read in (lambda: job.outputs(OUTPUT), job.losses, job.failures, job.tables):
        with pytest.raises(CorruptRecord, match="takes rows over from job 'first', which was deleted or replaced"):
            read()
    assert "which was deleted or replaced" in verify_job(world.files, "second")[0]


def test_another_job_with_the_name_of_the_parent_is_an_error(world: World, derived: Job) -> None:
    shutil.rmtree(Path(world.files.url, "jobs", "first"))
    World(world.files, 6).first([HEALTHY] * 6, [2, 2])
    with pytest.raises(CorruptRecord, match="was deleted or replaced"):
        Job(world.files, "second").losses()
    assert "which was deleted or replaced" in verify_job(world.files, "second")[0]


def test_verify_finds_a_commit_of_an_inherited_group(world: World) -> None:
    world.derive(Job(world.files, "first"), "second", "timeout")
    log = JobLog(world.files, JobPaths("second"))
    log.claim("person")
    world.commit(log, "second", [0, 1], dict.fromkeys((0, 1), HEALTHY))
    assert verify_job(world.files, "second") == ["record 2: commits groups 0 to 0, which belong to the parent"]


def test_verify_finds_a_group_that_never_ran_again(world: World) -> None:
    world.derive(Job(world.files, "first"), "second", "timeout")
    log = JobLog(world.files, JobPaths("second"))
    log.claim("person")
    world.commit(log, "second", [1], {1: HEALTHY})
    log.end("succeeded", totals=log.view.counts)
    assert verify_job(world.files, "second") == ["record 3: the job is succeeded with 1 of 3 groups"]
    assert coverage_problems([], 6, Ranges(((0, 6),))) == []


def test_verify_checks_the_parts_of_the_parent(world: World, derived: Job) -> None:
    part = world.files.list("jobs/first/losses")[0].path
    Path(world.files.url, part).unlink()
    assert verify_job(world.files, "second") == [f"{part}: missing"]


@pytest.mark.parametrize("field", ["job", "k", "nonce", "groups", "counts"])
def test_a_record_whose_parent_is_malformed_is_corrupt(world: World, derived: Job, field: str) -> None:
    path = Path(world.files.url, JobPaths("second").record)
    record = json.loads(path.read_text())
    del record["parent"][field]
    path.write_text(json.dumps(record))
    with pytest.raises(CorruptRecord, match=field):
        load_job(world.files, "second")


# Which groups run again


def test_every_verdict_can_be_named() -> None:
    assert derived_jobs.wanted(" oom , timeout") == {"oom", "timeout"}
    assert derived_jobs.wanted(["error"]) == {"error"}
    assert derived_jobs.wanted("all") == set(VERDICTS)
