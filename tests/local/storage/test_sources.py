"""Derived jobs: the groups that they inherit, the groups that run again, and what readers see."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import ID
from retried_jobs import HEALTHY, OUTPUT, Outcome, World

from mops.attempt.claimed_job import end_state
from mops.errors import CorruptRecord, JobError
from mops.jobs.derive import wanted as wanted_verdicts
from mops.jobs.job import Job
from mops.jobs.removal import delete, plan_deletion
from mops.storage.files import Files
from mops.storage.job_records import keep_reference, load_job
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.verify import coverage_problems
from mops.storage.paths import JobPaths, NamePaths
from mops.storage.sources import verify_job
from mops.study.ranges import Ranges
from mops.verdicts import VERDICTS, Counts
from soak import SOAKING

_numbers = itertools.count()

verdict = st.one_of(st.none(), st.none(), st.sampled_from(("oom", "timeout", "error")))
outcome = st.builds(Outcome, st.tuples(verdict, verdict), st.tuples(verdict, verdict))
commits = st.lists(st.integers(1, 4), max_size=4)


@given(st.data(), st.lists(outcome, min_size=1, max_size=9))
@settings(max_examples=100 if SOAKING else 15, deadline=None)
def test_a_chain_of_derived_jobs_has_each_row_once_as_it_ran_last(data: st.DataObject, outcomes: list[Outcome]) -> None:
    """Rows, counts, state and verify are right for any failures, commits, derived jobs and compactions."""
    world = World(Files.open(f"memory://derived-{next(_numbers)}"), len(outcomes))
    job = world.first(outcomes, data.draw(commits))
    world.assert_reads_true(job)
    for step in range(data.draw(st.integers(1, 4))):
        before = dict(world.truth)
        derive = data.draw(st.sampled_from([_retry, _extend, _rescore]))
        derived = derive(world, job, f"job-{step}", data)
        if derived is None:
            continue
        job, due, stored = derived
        assert set(job.record.due) == due
        again = {group: _outcome(data, len(world.seeds[group]), stored.get(group, 0)) for group in sorted(due)}
        world.run(job.name, again, data.draw(commits))
        assert {group for group in world.truth if world.truth[group] != before.get(group)} <= due
        for group, n in stored.items():
            assert world.truth[group].ran[:n] == before[group].ran, "a stored simulation counts"
        world.assert_reads_true(job)
        names = {name for told in world.truth.values() for name in (*told.ran, told.scored)}
        if compacted := data.draw(st.sets(st.sampled_from(sorted(names)))):
            for name in sorted(compacted):
                world.compact(name)
            world.assert_reads_true(job)


Derived = tuple[Job, set[int], dict[int, int]]
"""A derived job, the groups that it commits, and how many stored replicates some of them have."""


def _outcome(data: st.DataObject, n_replicates: int, n_stored: int) -> Outcome:
    new = [data.draw(verdict) for _ in range(n_replicates - n_stored)]
    return Outcome((*[None] * n_stored, *new), (data.draw(verdict), data.draw(verdict)))


def _stored(world: World, groups: set[int]) -> dict[int, int]:
    return {group: len(world.truth[group].ran) for group in groups if world.truth[group].outcome.scored}


def _retry(world: World, job: Job, name: str, data: st.DataObject) -> Derived | None:
    there = set().union(*(told.outcome.verdicts for told in world.truth.values()))
    if not there:
        return None
    wanted = data.draw(st.sampled_from([*sorted(there), "all"]))
    meant = there if wanted == "all" else {wanted}
    due = {group for group, told in world.truth.items() if told.outcome.verdicts & meant}
    return world.derive(job, name, wanted), due, _stored(world, due)


def _extend(world: World, job: Job, name: str, data: st.DataObject) -> Derived | None:
    n = world.n_groups
    more = {group: [1_000 + seed for seed in data.draw(st.sets(st.integers(0, 3)))] for group in range(n + 2)}
    more = {group: seeds for group, seeds in more.items() if set(seeds) - {*(world.seeds[group:] or [[]])[0]}}
    more = {group: seeds for group, seeds in more.items() if group <= n or n in more}
    if not more:
        return None
    longer = {group for group in more if group < n}
    return world.extend(job, name, more), {*more}, _stored(world, longer)


def _rescore(world: World, job: Job, name: str, data: st.DataObject) -> Derived | None:
    due = {group for group, told in world.truth.items() if told.outcome.scored}
    return (world.rescore(job, name), due, _stored(world, due)) if due else None


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
    assert parent.failures().to_arrow().num_rows == 6
    assert set(parent.outputs(OUTPUT).to_arrow()["y"].to_pylist()) == {"first"}
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
    assert sorted(read(derived.dataset("outputs", OUTPUT))) == sorted([*range(6), *range(6)])


@pytest.mark.parametrize("group", range(6))
def test_a_filter_works_on_the_joined_dataset(derived: Job, group: int) -> None:
    found = derived.dataset("outputs", OUTPUT).to_table(filter=pc.field("group") == group)
    assert found.schema.names == ["param_id", "group", "replicate", "seed", "y"]
    assert found["y"].to_pylist() == ["second" if group in (1, 4, 5) else "first"] * 2


def test_a_derived_job_shows_inherited_groups_before_it_runs(world: World) -> None:
    job = world.derive(Job(world.files, "first"), "second", "timeout")
    assert (job.status().state, job.status().groups) == ("submitted", 3)
    assert job.status().counts == Counts(6, 0, 6, 0)
    log = JobLog(world.files, JobPaths("second", ID))
    log.claim("person")
    world.commit(log, "second", [4], {4: HEALTHY})
    assert job.record.todo(log.view.committed) == Ranges(((1, 2), (5, 6)))
    assert job.status().groups == 4
    assert sorted(set(job.outputs(OUTPUT).to_arrow()["group"].to_pylist())) == [0, 2, 3, 4]
    assert end_state(job.record, log.view) == "cancelled"
    assert verify_job(world.files, "second") == []


def test_a_job_with_other_failures_left_is_partial() -> None:
    world = World(Files.open(f"memory://{next(_numbers)}"), 2)
    first = world.first([Outcome(("oom", None), (None, None)), ILL], [])
    world.derive(first, "second", "oom")
    assert world.run("second", {0: HEALTHY}, []).status().state == "partial"


def test_a_derived_job_has_the_study_bundle_and_schema_of_its_parent(world: World, derived: Job) -> None:
    own, its = JobPaths("second", ID), JobPaths("first", ID)
    for name in ("study", "params", "schema"):
        assert world.files.get(getattr(own, name)) == world.files.get(getattr(its, name))
    assert derived.record.bundle == load_job(world.files, "first").bundle


def test_without_a_schema_of_the_parent_the_first_good_simulation_makes_it() -> None:
    world = World(Files.open(f"memory://{next(_numbers)}"), 1)
    job = world.first([Outcome(("error", "error"), (None, None))], [])
    world.files.remove([JobPaths("first", ID).schema])
    derived = world.derive(job, "second", "all")
    assert derived.output_names() == []
    keep_reference(world.files, JobPaths("second", ID), {OUTPUT: {"y": "string"}})
    world.assert_reads_true(world.run("second", {0: HEALTHY}, []))


def test_a_killed_retry_can_be_repeated(world: World) -> None:
    """A retry writes `job.json` last, so the files of a killed retry are not a job and do not block its name."""
    job = Job(world.files, "first")
    world.derive(job, "second", "all")
    world.files.remove([NamePaths("second").record])
    world.derive(job, "second", "all")
    with pytest.raises(JobError, match="job 'second' exists already"):
        world.derive(job, "second", "all")


# Damaged storages


def test_a_missing_parent_is_an_error_and_never_fewer_rows(world: World, derived: Job) -> None:
    shutil.rmtree(Path(world.files.url, "jobs", "first"))
    job = Job(world.files, "second")
    assert job.status().counts == Counts(12, 0, 12, 0)
    for read in (job.outputs(OUTPUT).to_arrow, job.losses().to_arrow, job.failures().to_arrow, job.tables):
        with pytest.raises(CorruptRecord, match="takes rows over from job 'first', which was deleted or replaced"):
            read()
    assert "which was deleted or replaced" in verify_job(world.files, "second")[0]


def test_another_job_with_the_name_of_the_parent_is_an_error(world: World, derived: Job) -> None:
    shutil.rmtree(Path(world.files.url, "jobs", "first"))
    World(world.files, 6).first([HEALTHY] * 6, [2, 2], job_id="fedcba9876543210")
    with pytest.raises(CorruptRecord, match="was deleted or replaced"):
        Job(world.files, "second").losses().to_arrow()
    assert "which was deleted or replaced" in verify_job(world.files, "second")[0]


def test_verify_finds_a_commit_of_an_inherited_group(world: World) -> None:
    world.derive(Job(world.files, "first"), "second", "timeout")
    log = JobLog(world.files, JobPaths("second", ID))
    log.claim("person")
    world.commit(log, "second", [0, 1], dict.fromkeys((0, 1), HEALTHY))
    assert verify_job(world.files, "second") == ["record 2: commits groups 0 to 0, which the job takes over"]


def test_verify_finds_a_group_that_never_ran_again(world: World) -> None:
    world.derive(Job(world.files, "first"), "second", "timeout")
    log = JobLog(world.files, JobPaths("second", ID))
    log.claim("person")
    world.commit(log, "second", [1], {1: HEALTHY})
    log.end("succeeded", totals=log.view.counts)
    assert verify_job(world.files, "second") == ["record 3: the job is succeeded with 1 of 3 groups"]
    assert coverage_problems([], 6, Ranges(((0, 6),))) == []


def test_verify_checks_the_parts_of_the_parent(world: World, derived: Job) -> None:
    part = world.files.list(f"jobs/first/{ID}/losses")[0].path
    Path(world.files.url, part).unlink()
    assert verify_job(world.files, "second") == [f"{part}: missing"]


@pytest.mark.parametrize("field", ["job", "id", "losses", "outputs"])
def test_a_record_whose_source_is_malformed_is_corrupt(world: World, derived: Job, field: str) -> None:
    path = Path(world.files.url, NamePaths("second").record)
    record = json.loads(path.read_text())
    del record["sources"][0][field]
    path.write_text(json.dumps(record))
    with pytest.raises(CorruptRecord, match=field):
        load_job(world.files, "second")


def test_verify_finds_groups_that_a_source_does_not_have(world: World, derived: Job) -> None:
    path = Path(world.files.url, NamePaths("second").record)
    record = json.loads(path.read_text())
    record["sources"][0]["losses"] += [[6, 8]]
    path.write_text(json.dumps(record | {"n_groups": 8}))
    assert any("takes groups 6 to 7 over from job 'first'" in problem for problem in verify_job(world.files, "second"))


# Jobs that were derived from derived jobs


def test_a_record_names_every_job_that_has_rows_and_no_other(world: World, derived: Job) -> None:
    """A rescoring needs the outputs of all jobs before it, and no losses of theirs."""
    rescored = world.rescore(derived, "third")
    first, second = rescored.record.sources
    assert (first.job, first.losses, first.outputs) == ("first", Ranges(), Ranges.of([0, 2, 3]))
    assert (second.job, second.losses, second.outputs) == ("second", Ranges(), Ranges.of([1, 4, 5]))
    assert rescored.record.simulated == rescored.record.due == Ranges(((0, 6),))
    with pytest.raises(JobError, match="has rows that other jobs read: second, third") as caught:
        plan_deletion(world.files, ["first"])
    assert caught.value.hint == "delete them too: mops jobs delete third second first"


def test_a_job_whose_groups_all_ran_again_later_may_be_deleted(world: World) -> None:
    """Both retries run the same groups, so the second one needs no row of the first one."""
    world.derive(Job(world.files, "first"), "second", "timeout")
    second = world.run("second", dict.fromkeys((1, 4, 5), Outcome(("oom", None), (None, None))), [])
    third = world.derive(second, "third", "oom")
    assert [source.job for source in third.record.sources] == ["first"]
    assert third.status().parent == "second"
    world.run("third", dict.fromkeys((1, 4, 5), HEALTHY), [])
    assert [one.job for one in delete(world.files, [plan.job for plan in plan_deletion(world.files, ["second"])])]
    world.assert_reads_true(third)
    with pytest.raises(JobError, match="has rows that other jobs read: third"):
        plan_deletion(world.files, ["first"])
    world.assert_reads_true(world.run(world.rescore(third, "fourth").name, dict.fromkeys(range(6), HEALTHY), [2]))


# Which groups run again


def test_every_verdict_can_be_named() -> None:
    assert wanted_verdicts(" oom , timeout") == {"oom", "timeout"}
    assert wanted_verdicts(["error"]) == {"error"}
    assert wanted_verdicts("all") == set(VERDICTS)
