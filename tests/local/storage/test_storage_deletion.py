"""Deleting jobs. An interrupted deletion leaves a whole job, or files that another deletion removes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made import (
    ID,
    AtRequest,
    Hooked,
    below,
    claimed,
    commit,
    created,
    ended,
    finished,
    hooked,
    lives,
    on_disk,
    part,
    timeless,
)
from storages import VERSITYGW
from tenacity import stop_after_attempt

from mops.errors import JobDeleted, JobError, MopsError, OtherFormat
from mops.jobs.job import Job
from mops.jobs.listing import list_jobs
from mops.jobs.removal import Deleted, delete, derived_jobs, plan_deletion
from mops.jobs.submit import run
from mops.storage.backends.base import PATIENT
from mops.storage.files import Files
from mops.storage.job_records import (
    Deletion,
    Source,
    check_not_deleted,
    create_derived,
    give_name,
    load_job,
    mark_deletion,
)
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Part, RunRequest
from mops.storage.joblog.verify import verify
from mops.storage.paths import JobPaths, NamePaths, bundle_path
from mops.storage.sources import verify_job
from mops.study.ranges import Ranges
from mops.verdicts import Counts
from soak import moments

HERE = os.uname().nodename
OTHER_ID = "fedcba9876543210"
PATHS = JobPaths("job", ID)


def gone(files: Files, *jobs: str) -> list[Deleted]:
    return list(delete(files, [one.job for one in plan_deletion(files, jobs)]))


def ended_process() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def interrupted(files: Files, name: str = "job", *, host: str = HERE) -> JobLog:
    """Create a job whose runner has died on this host, or is silent on another."""
    created(files, name)
    log = claimed(files, name, host=host)
    lives(files, name, 1, host=host, pid=ended_process())
    commit(files, log, name, 0)
    part(files, name, 1, 9)
    return log


MAKE: dict[str, Callable[[Files], object]] = {
    "new": created,
    "complete": finished,
    "interrupted": interrupted,
    "cancelled": lambda files: ended(files, interrupted(files), None, "cancelled"),
}


@pytest.mark.parametrize(
    ("storage", "state"),
    [
        *(("local", state) for state in MAKE),
        *((kind, "interrupted") for kind in ("memory", "s3")),
        pytest.param("versitygw", "interrupted", marks=VERSITYGW.marks),
        pytest.param("azure", "interrupted", marks=pytest.mark.azurite),
    ],
    indirect=["storage"],
)
def test_a_deleted_job_leaves_only_its_bundle_and_its_name_can_be_used_again(files, state):
    MAKE[state](files)
    expected = len(below(files))
    (found,) = plan_deletion(files, ["job"])
    assert (found.state, found.files) == ({"new": "submitted", "complete": "succeeded"}.get(state, state), expected)
    (deleted,) = delete(files, ["job"])
    assert deleted.files >= expected
    assert [entry.path for entry in files.list("")] == [bundle_path("00" * 32)]
    assert list_jobs(files) == []
    finished(files)
    assert verify(files, PATHS, 3) == []
    assert Job(files, "job").status().attempt == 1


def test_a_deletion_on_a_disk_removes_folders_too(local):
    files = Files.open(local.url)
    finished(files)
    gone(files, "job")
    assert [path.name for path in Path(local.url, "jobs").iterdir()] == []


@on_disk
def test_deleting_a_running_job_is_refused_with_its_host_and_process(files):
    created(files)
    claimed(files)
    lives(files, "job", 1, host="far-away", pid=7, age_s=0)
    before = below(files)
    with pytest.raises(JobError) as caught:
        plan_deletion(files, ["job"])
    assert timeless(caught.value) == (
        "job 'job' is running: process 7 on far-away, last seen (some) s ago\n"
        f"  at: {files.url}\n"
        "hint: stop the job first: mops jobs cancel job"
    )
    with pytest.raises(JobError, match="is running"):
        list(delete(files, ["job"]))
    assert below(files) == before


@on_disk
def test_all_jobs_that_cannot_be_deleted_are_listed_and_none_is_deleted(files):
    finished(files, "done")
    created(files, "runs")
    claimed(files, "runs")
    lives(files, "runs", 1, age_s=0)
    with pytest.raises(JobError) as caught:
        plan_deletion(files, ["done", "runs", "nothing", "../x"])
    assert timeless(caught.value) == (
        "3 jobs cannot be deleted:\n"
        "  job 'runs' is running: process 1 on elsewhere, last seen (some) s ago\n"
        "  job 'nothing' does not exist\n"
        "  no job can be named '../x'\n"
        f"  at: {files.url}\n"
        "hint: list the jobs and their states: mops jobs list"
    )
    assert [job.job for job in list_jobs(files)] == ["runs", "done"]


# Runners that were only silent


def test_a_runner_of_a_deleted_job_stops_and_writes_nothing_into_the_next_job_of_the_name(files):
    """Regression: 1,143 of 1,200 rows of a job came from a deleted job, and verify found no problem."""
    old = interrupted(files, host="far-away")
    gone(files, "job")
    record = created(files, job_id=OTHER_ID)
    new = claimed(files, job_id=OTHER_ID)
    with pytest.raises(JobDeleted, match="of its log no longer exists"):
        commit(files, old, "job", 1)
    with pytest.raises(JobDeleted, match="of its log no longer exists"):
        old.poll()
    for group in range(3):
        path = record.paths.part("outputs", "daily", 1, group)
        files.create(path, b"new")
        new.commit(Ranges.of([group]), [Part(path, 3, 3, hashlib.sha256(b"new").hexdigest())], Counts(1))
    ended(files, new, record, "succeeded")
    assert Job(files, "job").status().groups == 3
    assert verify_job(files, "job") == []
    gone(files, "job")
    assert below(files) == [], "also what the runner of the deleted job has written"


@on_disk
def test_a_runner_that_was_asked_for_a_deleted_job_does_not_run_the_next_job_of_its_name(files):
    """A pod of the deleted job starts again, or starts a day later."""
    created(files, job_id=OTHER_ID)
    with pytest.raises(JobDeleted, match="for which this runner was started, was deleted; another job has its name"):
        run(Job(files, "job"), asked=RunRequest(0, "ab", ID))
    assert Job(files, "job").status().attempt == 0


def test_a_resume_during_a_deletion_keeps_the_job_or_learns_of_the_deletion(memory):
    """A resume that has read the record before the deletion may claim at any request of the deletion."""
    files = Files.open(memory.url)
    outcomes = set()
    for at in range(1, 60):
        name = f"job-{at}"
        record = created(files, name)
        ended(files, claimed(files, name), record, "cancelled")
        log = JobLog(files, JobPaths(name, ID), host="resumed", clock=lambda: 0.0)
        resume = AtRequest(at, lambda log=log: log.claim("person"))
        try:
            list(delete(hooked(files, resume), [name]))
        except JobError as error:
            check_not_deleted(files, record.paths)
            outcomes.add(error.what.partition("' ")[2])
            continue
        if not resume.has_acted:
            break
        with pytest.raises(JobError, match="was deleted meanwhile"):
            check_not_deleted(files, record.paths)
        outcomes.add("deleted")
    assert outcomes == {"was resumed during the deletion", "deleted"}


# Deletions that break off


class Plug:
    """Allows a number of changes to the storage, and then none, like a kill."""

    def __init__(self, changes: int):
        self.left = changes

    def __call__(self, name, _path):
        if name in ("put", "put_new", "remove", "prune"):
            if not self.left:
                raise TimeoutError
            self.left -= 1


def cut_off(files: Files, changes: int) -> Files:
    return Files(Hooked(files._backend, Plug(changes)), files.url, PATIENT.copy(stop=stop_after_attempt(1)))


@on_disk
@pytest.mark.parametrize("state", ["complete", "interrupted"])
def test_a_deletion_that_breaks_off_at_any_point_leaves_a_whole_job_or_none(files, state):
    for changes in (number - 1 for number in moments()):
        MAKE[state](files)
        try:
            gone(cut_off(files, changes), "job")
        except MopsError:
            pass
        else:
            assert changes > 8
            return
        assert changes < 100, "the deletion never ended"
        if [job.job for job in list_jobs(files)]:
            assert verify(files, PATHS, 3) == []
            assert all(files.size(path) for path in (PATHS.study, PATHS.params))
            with pytest.raises(JobError, match=r"job 'job' exists already|a deletion of job 'job' has begun"):
                created(files)
        elif below(files):
            with pytest.raises(JobError, match="but files that a killed submit or deletion of it left"):
                load_job(files, "job")
        if below(files):
            gone(files, "job")
        assert below(files) == []


def test_files_of_a_killed_submit_can_be_deleted(storage, files):
    storage.lay(PATHS.study, b"{}")
    assert [(one.state, one.files) for one in plan_deletion(files, ["job"])] == [("incomplete", 1)]
    gone(files, "job")
    assert files.list("") == []


def test_a_submit_after_a_killed_submit_or_deletion_needs_no_cleaning(storage, files):
    """Regression: the error was "exists already", for a job that did not exist."""
    finished(files)
    storage.drop(PATHS.record)
    with pytest.raises(JobError, match="but files that a killed submit or deletion of it left") as caught:
        load_job(files, "job")
    assert caught.value.hint == "submit the study again, or remove the files: mops jobs delete job"
    created(files, study='{"another": "study"}', job_id=OTHER_ID)
    assert Job(files, "job").status().state == "submitted"
    gone(files, "job")
    assert below(files) == []


@pytest.mark.parametrize("same_job", [True, False])
def test_a_submit_during_a_deletion_gives_way_or_stops_the_deletion(memory, same_job):
    """At each request of a deletion of what a killed submit has left, another submit takes place.

    Or the submit was not killed, and gives its job the name at this moment.
    """
    files = Files.open(memory.url)
    outcomes = set()
    for at in range(1, 40):
        name = f"job-{at}"
        record = created(files, name)
        files.remove([record.paths.record])

        def submit(name=name, record=record) -> None:
            try:
                if same_job:
                    give_name(files, record)
                else:
                    created(files, name, job_id=OTHER_ID)
                outcomes.add("submitted")
            except JobError:
                outcomes.add("gave way")

        submit_at = AtRequest(at, submit)
        try:
            list(delete(hooked(files, submit_at), [name]))
        except JobError as error:
            outcomes.add("seen" if "submitted during" in error.what else error.what)
        if not submit_at.has_acted:
            break
        if not same_job and at > 1:  # the first request of a deletion says which job has the name
            assert load_job(files, name).id == OTHER_ID, "no deletion removes the record of another job"
        if files.get_many([record.paths.record])[0] is not None:
            check_not_deleted(files, load_job(files, name).paths)
    assert outcomes == {"submitted", "seen", *(["gave way"] if same_job else [])}


@on_disk
def test_a_submit_that_sees_a_deletion_only_at_its_end_removes_its_record(files):
    def begin_deletion(name, path) -> None:
        if path == PATHS.record and name == "put_new":
            mark_deletion(files, PATHS, Deletion("x", ""))

    with pytest.raises(JobError, match="a deletion of job 'job' has begun"):
        created(hooked(files, begin_deletion))
    assert list_jobs(files) == []
    gone(files, "job")
    assert below(files) == []


# Parents


def derive(files: Files, name: str, parent: str) -> None:
    finished(files, name)
    path = NamePaths(name).record
    files.put(
        path,
        json.dumps(json.loads(files.get(path)) | {"parent": parent, "sources": [{"job": parent, "id": ID}]}).encode(),
    )


@on_disk
def test_a_parent_of_another_job_is_not_deleted(storage, files):
    finished(files, "old")
    derive(files, "new", "old")
    derive(files, "newer", "new")
    storage.lay(NamePaths("broken").record, b"{")
    assert derived_jobs(files) == {"old": ["new"], "new": ["newer"]}
    with pytest.raises(JobError) as caught:
        plan_deletion(files, ["old"])
    assert timeless(caught.value) == (
        f"job 'old' has rows that other jobs read: new\n  at: {files.url}\nhint: delete them too: "
        "mops jobs delete newer new old"
    )
    assert [one.job for one in gone(files, "old", "new", "newer")] == ["newer", "new", "old"]


SOURCE = Source("old", ID, Ranges.of([1, 2]), Ranges.of([1, 2]))


@on_disk
@pytest.mark.parametrize(
    ("parent", "when"),
    [
        ("old", "before"),  # Regression: the end was a FileNotFoundError.
        ("old", "meanwhile"),
        ("parent", "meanwhile"),  # of which no row counts, and which is still there
    ],
)
def test_deriving_a_job_whose_source_is_deleted_is_refused(files, parent, when):
    record = finished(files, parent)
    if parent != "old":
        finished(files, "old")

    def delete_source(name, path) -> None:
        if (name, path) == ("put_new", NamePaths("new").record):
            gone(files, "old")

    if when == "before":
        gone(files, "old")
    during = hooked(files, delete_source) if when == "meanwhile" else files
    with pytest.raises(JobError, match="job 'old' was deleted meanwhile"):
        create_derived(during, replace(record, job="new", sources=(SOURCE,)), record.paths)
    assert [job.job for job in list_jobs(files)] == ([] if parent == "old" else [parent])
    if when == "meanwhile":
        gone(files, "new")
    assert below(files, "new") == []


@on_disk
def test_the_list_counts_the_inherited_groups_of_a_derived_job(files):
    record = finished(files, "old", failed=2)
    derived = replace(record, job="new", created="2027-01-01T00:00:00+00:00", parent="old", sources=(SOURCE,))
    derived = replace(derived, taken_over_counts=Counts(0, 2))
    create_derived(files, derived, record.paths)
    log = claimed(files, "new")
    commit(files, log, "new", 0)
    ended(files, log, derived, "partial")
    listed = list_jobs(files)[0]
    assert (listed.job, listed.state, listed.groups, listed.simulations_failed) == ("new", "partial", 3, 2)
    files.remove([JobPaths("new", ID).finished])
    assert list_jobs(files)[0] == listed
    with pytest.raises(JobError, match="has rows that other jobs read: new"):
        plan_deletion(files, ["old"])


@on_disk
def test_a_job_that_is_derived_before_the_deletion_keeps_its_parent(files):
    finished(files, "old")
    (found,) = plan_deletion(files, ["old"])
    derive(files, "new", "old")
    with pytest.raises(JobError, match="has rows that other jobs read: new"):
        list(delete(files, [found.job]))
    assert verify(files, JobPaths("old", ID), 3) == []
    assert Job(files, "old").status().state == "succeeded"
    assert "deleted.json" not in below(files, "old")


@on_disk
def test_other_jobs_are_deleted_even_if_one_becomes_a_parent(files):
    finished(files, "one")
    finished(files, "two")
    derive(files, "new", "two")
    done = []
    with pytest.raises(JobError, match="has rows that other jobs read: new"):
        done.extend(one.job for one in delete(files, ["one", "two"]))
    assert [job.job for job in list_jobs(files)] == ["two", "new"]


# Jobs that cannot be read


@on_disk
@pytest.mark.parametrize(
    ("path", "damage", "listed"),
    [
        (PATHS.record, b"{not json", "unreadable"),
        # Regression: a record that a disk fault had cut off made the job immortal. The list reads the copy of its end.
        *((PATHS.log_record(2), damage, "succeeded") for damage in (b"", b'{"format":2,"k":2,"kind":"comm', b"{}")),
    ],
)
def test_a_damaged_job_can_be_deleted(storage, files, path, damage, listed):
    finished(files)
    storage.lay(path, damage)
    assert [job.state for job in list_jobs(files)] == [listed]
    assert [one.state for one in plan_deletion(files, ["job"])] == ["unreadable"]
    gone(files, "job")
    assert below(files) == []


@on_disk
@pytest.mark.parametrize(
    ("number", "hint"), [(99, "install mops-runner 9.1.0"), (1, "use the mops that wrote it: mops-runner 9.1.0")]
)
def test_a_job_of_another_format_is_not_deleted(storage, files, number, hint):
    finished(files)
    finished(files, "other")
    storage.lay(PATHS.record, f'{{"format": {number}, "mops": "9.1.0"}}'.encode())
    with pytest.raises(OtherFormat, match=f"format {number}(.|\n)*job.json(.|\n)*{hint}"):
        plan_deletion(files, ["other", "job"])
    assert [job.state for job in list_jobs(files)] == ["succeeded", "unreadable"]
    gone(files, "other")
    assert [job.state for job in list_jobs(files)] == ["unreadable"]


# Records of derived jobs as an older, a newer and a broken mops may have left them.
UNREADABLE = {
    "format 1": b'{"format":1,"mops":"0.1.0","job":"new","id":"00","parent":{"job":"old","id":"01","groups":[[0,1]]}}',
    "format 99": b'{"format": 99, "rows": [{"job": "older"}, {"job": "old"}]}',
    "cut off": b'{"format":2,"job":"new","parent":"old","sources":[{"job":"old","id":"0123',
}


@on_disk
@pytest.mark.parametrize("record", UNREADABLE)
def test_a_source_of_a_job_that_cannot_be_read_is_not_deleted(storage, files, record):
    """Regression: after an upgrade, mops could delete the parent of an older derived job, whose rows were then lost."""
    finished(files, "old")
    finished(files, "other")
    created(files, "new")
    storage.lay(NamePaths("new").record, UNREADABLE[record])
    with pytest.raises(JobError, match="job 'old' has rows that other jobs read: new"):
        plan_deletion(files, ["old"])
    with pytest.raises(JobError, match="job 'old' has rows that other jobs read: new"):
        gone(files, "old")
    gone(files, "other")
    assert {job.job for job in list_jobs(files)} == {"old", "new"}
