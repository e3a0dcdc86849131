"""Compaction: fewer parts with the same rows in the same order, for every reader, after a kill at any moment."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made import ID, AtRequest, created, hooked, on_disk
from retried_jobs import HEALTHY, OUTPUT, Outcome, World, pairs
from storages import VERSITYGW

from mops.errors import CorruptRecord, JobError, MopsError, PartMissing
from mops.jobs.data import JobData
from mops.jobs.job import Job
from mops.jobs.removal import clean, delete, plan_deletion
from mops.parquet.encoder import encode
from mops.storage import compaction
from mops.storage.compaction import Compacted, compact, compact_at_end, merged
from mops.storage.files import Files
from mops.storage.job_records import load_job
from mops.storage.joblog.log import JobLog, read_whole
from mops.storage.joblog.records import Part
from mops.storage.joblog.verify import verify
from mops.storage.paths import JobPaths
from soak import moments, spread

PATHS = JobPaths("first", ID)
ILL = Outcome((None, "timeout"), (None, None))
N_GROUPS = 8
_numbers = itertools.count()


def made(files: Files, n_groups: int = N_GROUPS) -> World:
    """Create a complete job with a commit for each group. Half of the groups have failures."""
    world = World(files, n_groups)
    world.first([HEALTHY, ILL] * (n_groups // 2), [1] * n_groups)
    return world


def in_memory() -> Files:
    return Files.open(f"memory://compaction-{next(_numbers)}")


@cache
def first_small() -> World:
    """Create a job of four commits in memory."""
    return made(in_memory(), 4)


def small() -> World:
    """Return a copy of the job of four commits."""
    first, world = first_small(), World(in_memory(), 4)
    for entry in first.files.list(""):
        world.files.put(entry.path, first.files.get(entry.path))
    world.truth = dict(first.truth)
    return world


def at_each_request(
    act: Callable[[World], object], make: Callable[[], World] = small
) -> Iterator[tuple[World, Files, AtRequest]]:
    """Yield new worlds and their storages, which act at the first request, at a later one, ... and last at none."""
    for number in moments():
        world = make()
        at = AtRequest(number, lambda world=world: act(world))
        yield world, hooked(world.files, at), at
        if not at.has_acted:
            return


def compact_in_pairs(world: World, files: Files) -> Compacted:
    return compact(files, load_job(world.files, "first"), plan=pairs)


def compact_and_clean(world: World) -> None:
    world.compact("first")
    clean(Job(world.files, "first"))


@pytest.fixture
def world(files: Files) -> World:
    return made(files)


@pytest.fixture
def fresh() -> Iterator[World]:
    """Return a job in memory."""
    return made(in_memory())


def rows_of(job: Job) -> list[list[dict]]:
    tables = (job.outputs(OUTPUT).to_arrow(), job.losses().to_arrow(), job.failures().to_arrow())
    return [table.to_pylist() for table in tables]


def part_files(files: Files, job: str = "first") -> set[str]:
    return {e.path for kind in ("outputs", "losses", "failures") for e in files.list(f"jobs/{job}/{ID}/{kind}")}


def current(files: Files, job: str = "first") -> set[str]:
    return {one.part.path for one in read_whole(files, JobPaths(job, ID)).parts}


def assert_intact(world: World, rows: list[list[dict]]) -> None:
    job = Job(world.files, "first")
    assert rows_of(job) == rows
    assert job.verify() == []


def assert_clean_is_right(world: World, rows: list[list[dict]], *, last_attempt: bool = False) -> None:
    """After a clean, the job has its rows, and no other part is there."""
    clean(Job(world.files, "first"), last_attempt=last_attempt)
    assert part_files(world.files) == current(world.files)
    assert_intact(world, rows)


@pytest.mark.parametrize("storage", ["local", "memory"], indirect=True)
def test_parts_are_merged_and_rows_and_their_order_stay(world):
    job, files = Job(world.files, "first"), world.files
    rows, status = rows_of(job), job.status()
    done = job.compact()
    assert (done.parts_before, done.parts) == (16, 3)
    assert done.bytes < done.bytes_before
    assert_intact(world, rows)
    world.assert_reads_true(job)
    assert len(part_files(files)) == 16 + 3
    clean(job)
    assert part_files(files) == current(files)
    assert len(current(files)) == 3
    assert_intact(world, rows)
    assert vars(job.status()) == vars(status)
    assert [table.rows for table in job.tables()] == [12, 8, 8]


@on_disk
def test_a_second_compaction_finds_nothing_and_writes_nothing_and_an_export_is_whole(world, tmp_path):
    job = Job(world.files, "first")
    job.compact()
    before = world.files.list(PATHS.root)
    done = job.compact()
    assert (done.parts_before, done.parts) == (3, 3)
    assert world.files.list(PATHS.root) == before
    exported = {file.name: file.rows for file in job.export(tmp_path / "exported", "csv")}
    assert exported == {"daily": 12, "losses": 8, "failures": 8, "params": 8}


@pytest.mark.parametrize("state", ["running", "cancelled", "submitted"])
def test_a_job_that_is_not_complete_is_refused(state):
    files = in_memory()
    created(files, "job")
    if state != "submitted":
        log = JobLog(files, JobPaths("job", ID))
        log.claim("person")
        if state == "cancelled":
            log.end("cancelled", log.view.counts)
    before = files.list("")
    with pytest.raises(JobError, match="job 'job' is not complete: only the parts of a complete job can be merged"):
        Job(files, "job").compact()
    assert files.list("") == before


@on_disk
def test_a_compaction_of_a_parent_and_of_a_derived_job_keeps_the_rows_of_both(world):
    first = Job(world.files, "first")
    rows = rows_of(first)
    second = world.derive(first, "second", "timeout")
    world.run("second", dict.fromkeys((1, 3, 5, 7), HEALTHY), [1, 1, 1])
    world.assert_reads_true(second)
    expected = rows_of(second)
    for name in ("first", "second"):
        Job(world.files, name).compact()
        world.assert_reads_true(second)
        assert rows_of(second) == expected
        assert rows_of(first) == rows
    assert {path for path in second.paths(OUTPUT) if "first" in path} == set(first.paths(OUTPUT))


# Types


@on_disk
def test_the_merged_part_has_the_widest_types(files):
    tables = [
        pa.table({"param_id": ["a"], "group": pa.array([n], pa.int32()), "y": column, "z": nested})
        for n, (column, nested) in enumerate(
            [
                (pa.array([1], pa.int8()), pa.nulls(1)),
                (pa.array([None], pa.null()), pa.array([[{"a": None}]])),
                (pa.array([300], pa.int16()), pa.array([[{"a": 1.5}]])),
                (pa.array([2**40], pa.int64()), pa.array([[]], pa.list_(pa.struct({"a": pa.float32()})))),
            ]
        )
    ]
    written = merged(files, [stored(files, table) for table in tables], {})
    found = pq.read_table(pa.BufferReader(written.content.read()))
    assert found.schema.field("y").type == pa.int64()
    assert found["y"].to_pylist() == [1, None, 300, 2**40]
    assert found["z"].to_pylist() == [None, [{"a": None}], [{"a": 1.5}], []]
    assert found["param_id"].type == pa.string()
    assert found["group"].to_pylist() == [0, 1, 2, 3]


@on_disk
def test_parts_without_rows_are_merged(files):
    empty = pa.table({"param_id": pa.array([], pa.string()), "group": pa.array([], pa.int32())})
    written = merged(files, [stored(files, empty) for _ in range(4)], {})
    assert (written.rows, pq.read_schema(pa.BufferReader(written.content.read())).names) == (0, ["param_id", "group"])


def stored(files: Files, table: pa.Table) -> Part:
    encoded, path = encode(table, files.spool()), PATHS.part("outputs", OUTPUT, 1, next(_numbers))
    files.put(path, encoded.content)
    return Part(path, encoded.rows, encoded.bytes, encoded.digest)


# Damage


@on_disk
def test_a_damaged_part_is_not_merged(storage, world):
    """A new part with a valid SHA-256 would hide the damage."""
    path = Job(world.files, "first").paths(OUTPUT)[3]
    data = bytearray(storage.bytes_at(path))
    data[10] ^= 1
    storage.lay(path, bytes(data))
    with pytest.raises(CorruptRecord, match="the SHA-256 of this part differs from the committed one"):
        Job(world.files, "first").compact()
    assert storage.bytes_at(path) == bytes(data)


@on_disk
def test_a_missing_part_is_an_error(storage, world):
    path = Job(world.files, "first").paths(OUTPUT)[3]
    storage.drop(path)
    for read in (Job(world.files, "first").compact, lambda: rows_of(Job(world.files, "first"))):
        with pytest.raises(CorruptRecord, match="a committed part of job 'first' is missing"):
            read()


def test_verify_finds_a_compaction_that_does_not_fit(fresh):
    fresh.compact("first")
    good = json.loads(fresh.files.get(PATHS.compaction))
    first, *others = good["merges"]
    stray = f"jobs/first/{ID}/losses/9-9.parquet"
    for change, problem in {
        ("removed", ()): "it replaces no part",
        ("removed", (stray,)): f"it replaces parts that do not count: {stray}",
        ("removed", tuple(first["removed"][::-1])): "it replaces parts that do not follow one another",
        ("ranges", ((0, 5),)): "its groups are not those of its parts",
        ("part", (first["part"][0], 99, *first["part"][2:])): "its part has 99 rows instead of",
    }.items():
        changed = good | {"merges": [first | dict([change]), *others]}
        fresh.files.put(PATHS.compaction, json.dumps(changed).encode())
        problems = Job(fresh.files, "first").verify()
        assert f"the compaction, {first['part'][0]}: {problem}" in problems[0], (change, problems)
    fresh.files.put(PATHS.compaction, b"{}")
    assert "compacted.json: this record is not what mops wrote" in Job(fresh.files, "first").verify()[0]
    fresh.files.put(PATHS.compaction, json.dumps(good).encode())
    clean(Job(fresh.files, "first"))
    for damaged in (PATHS.compaction, PATHS.log_record(2)):  # without the old parts, verify looked again without end
        whole = fresh.files.get(damaged)
        fresh.files.put(damaged, b"{}")
        assert any("this record is not what mops wrote" in problem for problem in Job(fresh.files, "first").verify())
        fresh.files.put(damaged, whole)
    fresh.files.put(PATHS.compaction, json.dumps(good).encode())
    assert Job(fresh.files, "first").verify() == []


# Two compactions


@pytest.mark.parametrize(
    "act",
    [lambda world: world.compact("first"), lambda world: clean(Job(world.files, "first")), compact_and_clean],
    ids=["a compaction", "a clean", "both"],  # after both, the old parts of the compaction are removed
)
def test_what_happens_at_any_request_of_a_compaction_changes_no_row(act):
    rows = rows_of(Job(first_small().files, "first"))
    for world, files, _ in at_each_request(act):
        done = compact_in_pairs(world, files)
        assert done.parts == len(current(world.files)) <= done.parts_before
        assert_intact(world, rows)
        assert_clean_is_right(world, rows)


@on_disk
def test_compactions_at_once_change_no_row(world):
    rows, ended = rows_of(Job(world.files, "first")), []

    def run() -> None:
        ended.append(Job(Files.open(world.files.url), "first").compact())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [done.parts for done in ended] == [3] * 4
    assert_intact(world, rows)
    assert len(part_files(world.files)) == 16 + 3  # those that came later have removed their parts
    clean(Job(world.files, "first"))
    assert part_files(world.files) == current(world.files)


@pytest.mark.parametrize("how", ["another compaction", "--last-attempt"])
def test_clean_keeps_parts_of_a_killed_compaction_until_none_of_them_can_count(fresh, how):
    path = PATHS.compacted("losses", None, "ab", 1)
    fresh.files.put(path, b"rows")
    done = clean(Job(fresh.files, "first"))
    assert (done.paths, done.kept) == ((), 1)
    rows = rows_of(Job(fresh.files, "first"))
    if how == "another compaction":
        fresh.compact("first")
    else:
        assert clean(Job(fresh.files, "first"), last_attempt=True, dry_run=True).paths == (path,)
    done = clean(Job(fresh.files, "first"), last_attempt=how == "--last-attempt")
    assert path in done.paths
    assert done.kept == 0
    fresh.compact("first")
    assert_intact(fresh, rows)


# Kills


MOMENTS = {
    "before a part": ("put_new", "/outputs/", 1),
    "between parts": ("put_new", "/failures/", 1),
    "before the record": ("put_new", "/compacted.json", 1),
    "after the record": ("get", "/deleted.json", 2),
}
KILLED = """
import os, sys
from made import hooked
from mops.storage.compaction import compact
from mops.storage.files import Files
from mops.storage.job_records import load_job

name, folder, number, n_seen = sys.argv[2], sys.argv[3], int(sys.argv[4]), 0

def kill(request, path):
    global n_seen
    n_seen += request == name and folder in (path or "")
    if n_seen == number:
        os.kill(os.getpid(), 9)

files = Files.open(sys.argv[1])
compact(hooked(files, kill), load_job(files, "first"))
"""


IN_OTHER_PROCESSES = [  # the test after this one ends a compaction at each request, without a process
    *(("local", moment) for moment in spread(MOMENTS, 2)),
    *(pytest.param("versitygw", moment, marks=VERSITYGW.marks) for moment in spread(MOMENTS, 2)),
    *(pytest.param("azure", moment, marks=pytest.mark.azurite) for moment in spread(MOMENTS, 0)),  # make soak
]


@pytest.mark.parametrize(("storage", "moment"), IN_OTHER_PROCESSES, indirect=["storage"])
def test_a_killed_compaction_loses_no_row(storage, world, moment):
    rows = rows_of(Job(world.files, "first"))
    arguments = [storage.url, *map(str, MOMENTS[moment])]
    ran = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=Path(__file__).parent, timeout=60)
    assert ran.returncode == -signal.SIGKILL
    assert_intact(world, rows)
    clean(Job(world.files, "first"))
    assert_intact(world, rows)
    done = Job(world.files, "first").compact()
    assert done.parts == 3
    assert_intact(world, rows)
    clean(Job(world.files, "first"))
    assert_intact(world, rows)
    assert part_files(world.files) == current(world.files)


class Killed(BaseException):
    """Stands for a kill: no code of mops handles it."""


def test_a_compaction_that_ends_at_any_request_loses_no_row():
    def kill(_: World) -> None:
        raise Killed

    rows = rows_of(Job(first_small().files, "first"))
    for world, files, _ in at_each_request(kill):
        with contextlib.suppress(Killed):
            compact_in_pairs(world, files)
        assert_intact(world, rows)
        assert_clean_is_right(world, rows, last_attempt=True)


# Readers during a compaction and a clean

READERS: dict[str, Callable[[Job], object]] = {
    "outputs": lambda job: job.outputs(OUTPUT).to_arrow().to_pylist(),
    "losses": lambda job: job.losses().to_arrow().to_pylist(),
    "failures": lambda job: job.failures().to_arrow().to_pylist(),
    "reasons": lambda job: job.reasons(),
    "causes": lambda job: job.causes().to_arrow().to_pylist(),
    "rows of tables": lambda job: [table.rows for table in job.tables()],
    "verify": lambda job: job.verify(),
}


def derived() -> World:
    """Return the small job and a job that is derived from it."""
    world = small()
    world.derive(Job(world.files, "first"), "second", "timeout")
    world.run("second", dict.fromkeys((1, 3), HEALTHY), [])
    return world


@pytest.mark.parametrize(("make", "name"), [(small, "first"), (derived, "second")], ids=["the job", "its parent"])
@pytest.mark.parametrize("read", READERS)
def test_a_compaction_at_any_request_of_a_reader_changes_nothing_for_it(read, make, name):
    for world, files, _ in at_each_request(lambda world: world.compact("first"), make):
        expected = READERS[read](Job(world.files, name))
        assert READERS[read](Job(files, name)) == expected


@pytest.mark.parametrize("read", READERS)
def test_a_reader_during_a_clean_of_merged_parts_gets_all_rows_or_a_clear_error(read):
    expected = READERS[read](Job(first_small().files, "first"))
    for world, files, _ in at_each_request(compact_and_clean):
        try:
            found = READERS[read](Job(files, "first"))
        except PartMissing:
            assert read in ("outputs", "losses", "failures"), "only a scan that is under way misses a part"
        else:
            assert found == expected
        assert READERS[read](Job(world.files, "first")) == expected


def test_a_dataset_whose_parts_were_cleaned_says_to_read_again(world):
    job = Job(world.files, "first")
    rows, others = job.dataset("outputs", OUTPUT), job.dataset("outputs", OUTPUT)
    job.compact()
    assert others.count_rows() == job.outputs(OUTPUT).to_arrow().num_rows  # Arrow keeps what it needs for this
    clean(job)
    for read in (rows.to_table, lambda: list(rows.to_batches())):
        with pytest.raises(CorruptRecord, match="a committed part of job 'first' is missing") as error:
            read()
        assert error.value.hint.startswith("read again if `mops jobs clean` has just removed parts that were merged")


@on_disk
def test_failures_are_grouped_again_if_a_clean_removes_their_parts_meanwhile(world):
    expected, now = JobData.read(world.files, "first"), JobData.read(world.files, "first")
    now.dataset("failures")  # the parts that the clean removes
    reasons, causes = expected.reasons, expected.cause_table
    Job(world.files, "first").compact()
    clean(Job(world.files, "first"))
    assert now.reasons == reasons
    assert now.cause_table.equals(causes)
    assert reasons


def test_a_blob_that_is_removed_while_arrow_reads_it_is_a_missing_file(azure):
    """It was an error of Azure's client."""
    files = Files.open(azure.url)
    files.put("a", b"x" * 100_000_000)
    filesystem, path = files.arrow("a")
    with filesystem.open_input_file(path) as opened:
        assert opened.read(10) == b"x" * 10
        files.remove(["a"])
        opened.seek(90_000_000)
        with pytest.raises(FileNotFoundError):
            opened.read(10)


def test_paths_of_a_derived_job_are_those_after_a_compaction_of_its_parent(fresh):
    """A Job object that had been read named removed files."""
    derived = fresh.derive(Job(fresh.files, "first"), "again", "timeout")
    derived.losses().to_arrow()
    fresh.compact("first")
    clean(Job(fresh.files, "first"))
    assert all(fresh.files.size(path) for path in derived.paths(OUTPUT))
    named = [path.removeprefix(f"{fresh.files.url}/") for table in derived.tables() for path in table.paths]
    assert all(fresh.files.size(path) for path in named)


def test_verify_of_a_job_that_ends_and_is_compacted_meanwhile_finds_no_problem():
    ends = JobPaths("first", ID).log_record(6)
    end = first_small().files.get(ends)

    def before_its_end() -> World:
        world = small()
        world.files.remove([ends])
        return world

    def finish(world: World) -> None:
        world.files.put(ends, end)
        compact_and_clean(world)

    for world, files, at in at_each_request(finish, before_its_end):
        found = verify(files, JobPaths("first", ID), 4)
        assert not [problem for problem in found if "missing" in problem]
        assert not at.has_acted or Job(world.files, "first").verify() == []


# The end of an attempt, and deletions


def test_an_attempt_compacts_a_job_if_a_table_has_many_parts(fresh, monkeypatch):
    record = load_job(fresh.files, "first")
    compact_at_end(fresh.files, record)
    assert len(current(fresh.files)) == 16
    monkeypatch.setattr(compaction, "MANY_PARTS", 8)
    compact_at_end(fresh.files, record)
    assert sorted(map(len, (Job(fresh.files, "first").paths(OUTPUT), current(fresh.files)))) == [1, 3]


def test_a_compaction_at_the_end_that_takes_too_long_leaves_the_job_as_it_is(fresh, monkeypatch, caplog):
    monkeypatch.setattr(compaction, "MANY_PARTS", 4)
    monkeypatch.setattr(compaction, "WAIT_SECONDS", 0.0)
    before = fresh.files.list("")
    compact_at_end(fresh.files, load_job(fresh.files, "first"))
    assert fresh.files.list("") == before
    assert "small parts were not merged (merging takes more than 0 s); to merge them: mops jobs compact" in caplog.text


def test_a_fault_of_the_compaction_at_the_end_is_a_warning(fresh, monkeypatch, caplog):
    monkeypatch.setattr(compaction, "MANY_PARTS", 4)
    fresh.files.remove(Job(fresh.files, "first").paths(OUTPUT)[:1])
    compact_at_end(fresh.files, load_job(fresh.files, "first"))
    assert "first: the results are complete, but small parts were not merged" in caplog.text


def test_no_error_of_the_compaction_at_the_end_fails_a_complete_job(fresh, monkeypatch, caplog):
    monkeypatch.setattr(compaction, "MANY_PARTS", 4)
    monkeypatch.setattr(compaction, "compact", lambda *_, **__: 1 / 0)
    compact_at_end(fresh.files, load_job(fresh.files, "first"))
    assert "ZeroDivisionError" in caplog.text


def test_ctrl_c_during_the_compaction_at_the_end_reaches_the_caller(fresh, monkeypatch, caplog):
    """A program that runs studies in a loop began the next one."""

    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(compaction, "MANY_PARTS", 4)
    monkeypatch.setattr(compaction, "compact", pressed)
    with pytest.raises(KeyboardInterrupt):
        compact_at_end(fresh.files, load_job(fresh.files, "first"))
    assert "stopped merging small parts; the results are complete" in caplog.text


@on_disk
def test_a_deletion_removes_every_file_of_a_compaction(world):
    world.compact("first")
    plan_deletion(world.files, ["first"])
    list(delete(world.files, ["first"]))
    assert [entry.path for entry in world.files.list("jobs")] == []


def test_a_compaction_of_a_deleted_job_does_not_touch_the_next_job_of_its_name():
    def replace(world: World) -> None:
        list(delete(world.files, ["first"]))
        world.truth = {}
        world.first([HEALTHY] * 4, [1] * 4, at="later", job_id="fedcba9876543210")

    for world, files, at in at_each_request(replace):
        with contextlib.suppress(MopsError):
            compact_in_pairs(world, files)
        assert [entry.path for entry in world.files.list(PATHS.root) if at.has_acted] == []
        world.assert_reads_true(Job(world.files, "first"))
        assert Job(world.files, "first").verify() == []
