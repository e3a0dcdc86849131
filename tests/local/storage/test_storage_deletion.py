"""Deleting jobs. An interrupted deletion leaves a whole job, or files that another deletion removes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made import AtRequest, Hooked, below, claimed, commit, created, ended, finished, hooked, lives, part, timeless
from tenacity import stop_after_attempt

from mops.errors import CorruptRecord, JobError, MopsError, NewerFormat, StorageUnavailable, Superseded
from mops.jobs.delete import Deleted, delete, derived_jobs, plan_deletion
from mops.jobs.job import Job
from mops.jobs.listing import list_jobs
from mops.storage.backends.base import PATIENT
from mops.storage.files import Files
from mops.storage.job_records import Parent, check_still_there, create_derived
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.starting import Overtaken
from mops.storage.joblog.verify import verify
from mops.storage.paths import JobPaths, bundle_path
from mops.study.ranges import Ranges
from mops.verdicts import Counts

HERE = os.uname().nodename
PATHS = JobPaths("job")


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
    "cancelled": lambda files: ended(files, interrupted(files), created_again(), "cancelled"),
}


def created_again() -> None:
    """``ended`` needs the record only for a complete end."""


@pytest.mark.parametrize("state", MAKE)
def test_a_deleted_job_leaves_only_its_bundle_and_its_name_can_be_used_again(files, state):
    MAKE[state](files)
    expected = len(below(files))
    (found,) = plan_deletion(files, ["job"])
    assert (found.state, found.files) == ({"new": "submitted", "complete": "succeeded"}.get(state, state), expected)
    (deleted,) = delete(files, ["job"])
    assert deleted.hosts == ()
    assert deleted.files >= expected
    assert [entry.path for entry in files.list("")] == [bundle_path("00" * 32)]
    assert list_jobs(files) == []
    finished(files)
    assert verify(files, PATHS, 3) == []
    assert Job(files, "job").status().attempt == 1


def test_a_deletion_on_a_disk_removes_folders_and_temporary_files_too(local):
    files = Files.open(local.url)
    finished(files)
    local.lay("jobs/job/log/.00000009.json.0a.tmp", b"half")
    local.lay("jobs/job/outputs/.1-1.parquet.0b.tmp", b"half")
    gone(files, "job")
    assert [path.name for path in Path(local.url, "jobs").iterdir()] == []


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


def test_a_silent_runner_that_wakes_up_stops_and_the_name_stays_reserved(files):
    log = interrupted(files, host="far-away")
    (deleted,) = gone(files, "job")
    assert deleted.hosts == ("far-away",)
    part(files, "job", 1, 10)  # of the silent runner
    with pytest.raises(Superseded):
        commit(files, log, "job", 1)
    with pytest.raises(JobError) as caught:
        created(files)
    assert timeless(caught.value) == (
        "job 'job' was deleted, but its runner on far-away may still be alive\n"
        f"  at: {files.url}/jobs/job/deleted.json\n"
        "hint: choose another name"
    )
    assert list_jobs(files) == []
    gone(files, "job")  # once more, for what the runner wrote before it stopped
    assert below(files) == ["deleted.json", "log/00000001.json", "log/00000003.json", "log/00000004.json"]


def test_a_silent_older_attempt_of_a_complete_job_stops_too(files):
    record = created(files)
    older = claimed(files, host="far-away")
    newer = claimed(files)
    commit(files, newer, "job", 0, 1, 2)
    ended(files, newer, record, "succeeded")
    (deleted,) = gone(files, "job")
    assert deleted.hosts == ("far-away",)
    with pytest.raises(Superseded):
        commit(files, older, "job", 0)


def test_a_resume_during_a_deletion_keeps_the_job_or_learns_of_the_deletion(memory):
    """A resume that has read the record before the deletion may claim at any request of the deletion."""
    files = Files.open(memory.url)
    outcomes = set()
    for at in range(1, 60):
        name = f"job-{at}"
        record = created(files, name)
        ended(files, claimed(files, name), record, "cancelled")
        log = JobLog(files, JobPaths(name), host="resumed", clock=lambda: 0.0)
        resume = AtRequest(at, lambda log=log: log.claim("person"))
        try:
            list(delete(hooked(files, resume), [name]))
        except JobError as error:
            check_still_there(files, record)
            outcomes.add(type(error))
            continue
        if not resume.has_acted:
            break
        with pytest.raises(JobError, match="was deleted meanwhile"):
            check_still_there(files, record)
        outcomes.add("deleted")
    assert outcomes == {Overtaken, JobError, "deleted"}, "the deletion sees the claim, sees it late, or does not see it"


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


@pytest.mark.parametrize("state", ["complete", "interrupted"])
def test_a_deletion_that_breaks_off_at_any_point_leaves_a_whole_job_or_none(files, state):
    for changes in range(100):
        MAKE[state](files)
        try:
            gone(cut_off(files, changes), "job")
        except MopsError:
            pass
        else:
            assert changes > 8
            return
        if [job.job for job in list_jobs(files)]:
            assert verify(files, PATHS, 3) == []
            assert all(files.size(path) for path in (PATHS.study, PATHS.params))
            with pytest.raises(JobError, match=r"job 'job' exists already|is only partly deleted"):
                created(files)
        elif below(files):
            with pytest.raises(JobError, match=r"(?s)partly deleted.*finish the deletion: mops jobs delete job"):
                created(files)
        if below(files):
            delete_the_rest(files)
        assert below(files) == []
    pytest.fail("the deletion never ended")


def delete_the_rest(files: Files) -> None:
    """Delete what is left. A claim without an end counts as a runner for a while, so mark it as dead."""
    view = JobLog(files, PATHS).read()
    if view.claim and view.mark is view.claim and view.claim.host == HERE:
        lives(files, "job", view.attempt, host=HERE, pid=ended_process())
    gone(files, "job")


def test_files_of_a_killed_submit_can_be_deleted(storage, files):
    storage.lay(PATHS.study, b"{}")
    assert [(one.state, one.files) for one in plan_deletion(files, ["job"])] == [("incomplete", 1)]
    gone(files, "job")
    assert files.list("") == []


def test_a_submit_during_a_deletion_gives_way_or_stops_the_deletion(memory):
    """At each request of the deletion a whole submit takes place, over what a killed submit has left."""
    files = Files.open(memory.url)
    outcomes = set()
    for at in range(1, 40):
        name = f"job-{at}"
        twin = Files.open(f"memory://twin-{memory.url.rpartition('//')[2]}")
        created(twin, name)
        files.put(JobPaths(name).study, twin.get(JobPaths(name).study))

        def submit(name=name) -> None:
            try:
                created(files, name)
                outcomes.add("submitted")
            except JobError as error:
                assert "partly deleted" in str(error)  # noqa: PT017
                outcomes.add("gave way")

        submit_at = AtRequest(at, submit)
        try:
            list(delete(hooked(files, submit_at), [name]))
        except JobError as error:
            outcomes.add("seen" if "submitted during" in str(error) or "no job" in str(error) else str(error))
        there = below(files, name)
        assert there == [] or set(there) == {"job.json", "params.parquet", "study.json"}, (at, there)
        if not submit_at.has_acted:
            break
    assert outcomes == {"submitted", "gave way", "seen"}


def test_a_submit_that_sees_a_deletion_only_at_its_end_removes_its_record(files):
    def begin_deletion(name, path) -> None:
        if path == PATHS.record and name == "put_new":
            files.put(PATHS.deleted, b'{"format":1,"who":"x","at":"","hosts":[]}')

    with pytest.raises(JobError, match="partly deleted"):
        created(hooked(files, begin_deletion))
    assert list_jobs(files) == []
    gone(files, "job")
    assert below(files) == []


# Parents


def derive(files: Files, name: str, parent: str) -> None:
    finished(files, name)
    path = JobPaths(name).record
    files.put(path, json.dumps(json.loads(files.get(path)) | {"parent": {"job": parent, "k": 5}}).encode())


def test_a_parent_of_another_job_is_not_deleted(storage, files):
    finished(files, "old")
    derive(files, "new", "old")
    derive(files, "newer", "new")
    storage.lay(JobPaths("broken").record, b"{")
    assert derived_jobs(files) == {"old": ["new"], "new": ["newer"]}
    with pytest.raises(JobError) as caught:
        plan_deletion(files, ["old"])
    assert timeless(caught.value) == (
        f"job 'old' is the parent of new, which read rows from it\n  at: {files.url}\nhint: delete them too: "
        "mops jobs delete newer new old"
    )
    assert [one.job for one in gone(files, "old", "new", "newer")] == ["newer", "new", "old"]


def test_deriving_a_job_from_one_that_is_being_deleted_is_refused(files):
    record = finished(files, "old")
    view = JobLog(files, JobPaths("old")).read()
    parent = Parent("old", view.k, view.end.nonce, Ranges.of([0]), Counts())

    def delete_parent(name, path) -> None:
        if (name, path) == ("put_new", JobPaths("new").record):
            gone(files, "old")

    with pytest.raises(JobError, match="job 'old' was deleted meanwhile"):
        create_derived(hooked(files, delete_parent), replace(record, job="new"), parent)
    assert list_jobs(files) == []
    gone(files, "new")
    files.put(JobPaths("new").deleted, b'{"format":1,"who":"x","at":"","hosts":[]}')
    with pytest.raises(JobError, match="is only partly deleted"):
        create_derived(files, replace(record, job="new"), parent)


def test_the_list_counts_the_inherited_groups_of_a_derived_job(files):
    record = finished(files, "old", failed=2)
    view = JobLog(files, JobPaths("old")).read()
    parent = Parent("old", view.k, view.end.nonce, Ranges.of([0]), Counts(0, 2))
    derived = replace(record, job="new", created="2027-01-01T00:00:00+00:00", parent=parent)
    create_derived(files, derived, parent)
    log = claimed(files, "new")
    commit(files, log, "new", 0)
    ended(files, log, derived, "partial")
    listed = list_jobs(files)[0]
    assert (listed.job, listed.state, listed.groups, listed.simulations_failed) == ("new", "partial", 3, 2)
    files.remove([JobPaths("new").finished])
    assert list_jobs(files)[0] == listed
    with pytest.raises(JobError, match="is the parent of new"):
        plan_deletion(files, ["old"])


def test_a_job_that_is_derived_before_the_deletion_keeps_its_parent(files):
    finished(files, "old")
    (found,) = plan_deletion(files, ["old"])
    derive(files, "new", "old")
    with pytest.raises(JobError, match="is the parent of new"):
        list(delete(files, [found.job]))
    assert verify(files, JobPaths("old"), 3) == []
    assert Job(files, "old").status().state == "succeeded"
    assert "deleted.json" not in below(files, "old")


def test_other_jobs_are_deleted_even_if_one_becomes_a_parent(files):
    finished(files, "one")
    finished(files, "two")
    derive(files, "new", "two")
    done = []
    with pytest.raises(JobError, match="is the parent of new"):
        done.extend(one.job for one in delete(files, ["one", "two"]))
    assert [job.job for job in list_jobs(files)] == ["two", "new"]


# Jobs that cannot be read


def test_a_job_with_a_broken_record_can_be_deleted(storage, files):
    finished(files)
    storage.lay(PATHS.record, b"{not json")
    assert [one.state for one in plan_deletion(files, ["job"])] == ["unreadable"]
    gone(files, "job")
    assert below(files) == []


def test_a_job_of_a_newer_format_or_with_a_broken_log_is_not_deleted(storage, files):
    finished(files)
    storage.lay(PATHS.record, b'{"format": 2, "mops": "9.1.0"}')
    with pytest.raises(NewerFormat, match=r"install mops-runner 9\.1\.0"):
        plan_deletion(files, ["job"])
    finished(files, "other")
    storage.lay(JobPaths("other").log_record(2), b"{}")
    with pytest.raises(CorruptRecord):
        plan_deletion(files, ["other"])
    assert [job.state for job in list_jobs(files)] == ["unreadable", "succeeded"][::-1]


def test_after_an_unavailable_storage_another_deletion_finishes(files):
    finished(files)
    with pytest.raises(StorageUnavailable):
        gone(cut_off(files, 5), "job")
    gone(files, "job")
    assert below(files) == []
