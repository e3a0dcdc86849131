"""A deleted job is gone for all; one that is broken off anywhere looks whole to nobody, and is finished by another."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made import Hooked, below, claimed, commit, created, ended, finished, lives, part
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
    """Return the id of a process that was."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def interrupted(files: Files, name: str = "job", *, host: str = HERE) -> JobLog:
    """A job whose runner is dead for certain if it was on this host, and silent elsewhere."""
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
    """``ended`` needs the job's record only for a complete end."""


@pytest.mark.parametrize("state", MAKE)
def test_a_deleted_job_leaves_nothing_but_its_bundle_and_a_name_that_can_be_used_again(files, state):
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


def test_on_a_disk_not_even_a_folder_is_left_nor_what_killed_writers_left(local):
    files = Files.open(local.url)
    finished(files)
    local.lay("jobs/job/log/.00000009.json.0a.tmp", b"half")
    local.lay("jobs/job/outputs/.1-1.parquet.0b.tmp", b"half")
    gone(files, "job")
    assert [path.name for path in Path(local.url, "jobs").iterdir()] == []


def test_a_running_job_is_refused_with_where_it_runs(files):
    created(files)
    claimed(files)
    lives(files, "job", 1, host="far-away", pid=7, age_s=0)
    before = below(files)
    with pytest.raises(JobError) as caught:
        plan_deletion(files, ["job"])
    assert _timeless(caught.value) == (
        "job 'job' is running: process 7 on far-away, last seen (some) s ago\n"
        f"  at: {files.url}\n"
        "hint: stop the job first: mops jobs cancel job"
    )
    with pytest.raises(JobError, match="is running"):
        list(delete(files, ["job"]))
    assert below(files) == before


def test_all_that_cannot_be_deleted_is_said_at_once_and_nothing_is_deleted(files):
    finished(files, "done")
    created(files, "runs")
    claimed(files, "runs")
    lives(files, "runs", 1, age_s=0)
    with pytest.raises(JobError) as caught:
        plan_deletion(files, ["done", "runs", "nothing", "../x"])
    assert _timeless(caught.value) == (
        "3 jobs cannot be deleted:\n"
        "  job 'runs' is running: process 1 on elsewhere, last seen (some) s ago\n"
        "  there is no job 'nothing'\n"
        "  no job can be named '../x'\n"
        f"  at: {files.url}\n"
        "hint: 'mops jobs list' shows the jobs and their states"
    )
    assert [job.job for job in list_jobs(files)] == ["runs", "done"]


# runners that were only silent


def test_a_silent_runner_that_wakes_up_stops_and_the_name_stays_its_own(files):
    log = interrupted(files, host="far-away")
    (deleted,) = gone(files, "job")
    assert deleted.hosts == ("far-away",)
    part(files, "job", 1, 10)  # it was on its way
    with pytest.raises(Superseded):
        commit(files, log, "job", 1)
    with pytest.raises(JobError) as caught:
        created(files)
    assert _timeless(caught.value) == (
        "a job 'job' was deleted whose runner on far-away may still be alive\n"
        f"  at: {files.url}/jobs/job/deleted.json\n"
        "hint: choose another name"
    )
    assert list_jobs(files) == []
    gone(files, "job")  # once more: for what it wrote before it stopped
    assert below(files) == ["deleted.json", "log/00000001.json", "log/00000003.json", "log/00000004.json"]


def test_an_older_attempt_that_was_only_silent_stops_too_though_the_job_is_complete(files):
    record = created(files)
    older = claimed(files, host="far-away")
    newer = claimed(files)
    commit(files, newer, "job", 0, 1, 2)
    ended(files, newer, record, "succeeded")
    (deleted,) = gone(files, "job")
    assert deleted.hosts == ("far-away",)
    with pytest.raises(Superseded):
        commit(files, older, "job", 0)


def test_who_claims_while_the_job_is_being_deleted_learns_of_it_or_keeps_the_job(memory):
    """A resume had read the record before the deletion, and claims at any request of it."""
    files = Files.open(memory.url)
    outcomes = set()
    for at in range(1, 60):
        name = f"job-{at}"
        record = created(files, name)
        ended(files, claimed(files, name), record, "cancelled")
        asked: list[int] = []

        def resume_at(*_: object, at=at, name=name, asked=asked) -> None:
            asked.append(1)
            if len(asked) == at:
                JobLog(files, JobPaths(name), host="resumed", clock=lambda: 0.0).claim("person")

        try:
            list(delete(Files(Hooked(files._backend, resume_at), files.url), [name]))
        except JobError as error:
            check_still_there(files, record)
            outcomes.add(type(error))
            continue
        if len(asked) < at:
            break
        with pytest.raises(JobError, match="was deleted meanwhile"):
            check_still_there(files, record)
        outcomes.add("deleted")
    assert outcomes == {Overtaken, JobError, "deleted"}, "seen by the claim, by the second look, or too late"


# broken off


class Plug:
    """Lets so many changes of the storage through, then none, as a kill does."""

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
def test_a_deletion_that_is_broken_off_anywhere_leaves_a_whole_job_or_none(files, state):
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
            with pytest.raises(JobError, match=r"there is a job 'job' already|is deleted in part"):
                created(files)
        elif below(files):
            with pytest.raises(JobError, match=r"(?s)is deleted in part.*finish that with: mops jobs delete job"):
                created(files)
        if below(files):
            lay_to_rest(files)
        assert below(files) == []
    pytest.fail("the deletion never came to its end")


def lay_to_rest(files: Files) -> None:
    """Delete what is left; a claim that was cut off from its end counts as a runner for a while: do not wait."""
    view = JobLog(files, PATHS).read()
    if view.claim and view.mark is view.claim and view.claim.host == HERE:
        lives(files, "job", view.attempt, host=HERE, pid=ended_process())
    gone(files, "job")


def test_what_a_killed_submit_left_can_be_deleted(storage, files):
    storage.lay(PATHS.study, b"{}")
    assert [(one.state, one.files) for one in plan_deletion(files, ["job"])] == [("incomplete", 1)]
    gone(files, "job")
    assert files.list("") == []


def test_a_submit_in_the_middle_of_a_deletion_gives_way_or_is_seen(memory):
    """Over what a killed submit left: at each request of the deletion a whole submit takes place."""
    files = Files.open(memory.url)
    outcomes = set()
    for at in range(1, 40):
        name = f"job-{at}"
        twin = Files.open(f"memory://twin-{memory.url.rpartition('//')[2]}")
        created(twin, name)
        files.put(JobPaths(name).study, twin.get(JobPaths(name).study))
        asked: list[int] = []

        def submit_at(*_: object, at=at, name=name, asked=asked) -> None:
            asked.append(1)
            if len(asked) == at:
                try:
                    created(files, name)
                    outcomes.add("submitted")
                except JobError as error:
                    assert "deleted in part" in str(error)  # noqa: PT017
                    outcomes.add("gave way")

        try:
            list(delete(Files(Hooked(files._backend, submit_at), files.url), [name]))
        except JobError as error:
            outcomes.add("seen" if "submitted during" in str(error) or "no job" in str(error) else str(error))
        there = below(files, name)
        assert there == [] or set(there) == {"job.json", "params.parquet", "study.json"}, (at, there)
        if len(asked) < at:
            break
    assert outcomes == {"submitted", "gave way", "seen"}


def test_a_submit_that_meets_a_deletion_only_at_its_end_takes_its_record_back(files):
    def begin_deletion(name, path) -> None:
        if path == PATHS.record and name == "put_new":
            files.put(PATHS.deleted, b'{"format":1,"who":"x","at":"","hosts":[]}')

    with pytest.raises(JobError, match="deleted in part"):
        created(Files(Hooked(files._backend, begin_deletion), files.url))
    assert list_jobs(files) == []
    gone(files, "job")
    assert below(files) == []


# parents


def derive(files: Files, name: str, parent: str) -> None:
    finished(files, name)
    path = JobPaths(name).record
    files.put(path, json.dumps(json.loads(files.get(path)) | {"parent": {"job": parent, "k": 5}}).encode())


def test_a_parent_stays_while_a_job_is_derived_from_it(storage, files):
    finished(files, "old")
    derive(files, "new", "old")
    derive(files, "newer", "new")
    storage.lay(JobPaths("broken").record, b"{")
    assert derived_jobs(files) == {"old": ["new"], "new": ["newer"]}
    with pytest.raises(JobError) as caught:
        plan_deletion(files, ["old"])
    assert _timeless(caught.value) == (
        f"job 'old' is the parent of new, which read rows from it\n  at: {files.url}\nhint: delete the derived jobs too"
    )
    assert [one.job for one in gone(files, "old", "new", "newer")] == ["newer", "new", "old"]


def test_a_job_that_is_derived_while_its_parent_is_deleted_gives_way(files):
    record = finished(files, "old")
    view = JobLog(files, JobPaths("old")).read()
    parent = Parent("old", view.k, view.end.nonce, Ranges.of([0]), Counts())

    def delete_parent(name, path) -> None:
        if (name, path) == ("put_new", JobPaths("new").record):
            gone(files, "old")

    with pytest.raises(JobError, match="job 'old' was deleted meanwhile"):
        create_derived(Files(Hooked(files._backend, delete_parent), files.url), replace(record, job="new"), parent)
    assert list_jobs(files) == []
    gone(files, "new")
    files.put(JobPaths("new").deleted, b'{"format":1,"who":"x","at":"","hosts":[]}')
    with pytest.raises(JobError, match="is deleted in part"):
        create_derived(files, replace(record, job="new"), parent)


def test_a_list_counts_what_a_derived_job_takes_over(files):
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


def test_a_job_that_is_derived_meanwhile_keeps_its_parent(files):
    finished(files, "old")
    (found,) = plan_deletion(files, ["old"])
    derive(files, "new", "old")
    with pytest.raises(JobError, match="is the parent of new"):
        list(delete(files, [found.job]))
    assert verify(files, JobPaths("old"), 3) == []
    assert Job(files, "old").status().state == "succeeded"
    assert "deleted.json" not in below(files, "old")


def test_what_can_be_deleted_is_deleted_though_another_job_is_refused_meanwhile(files):
    finished(files, "one")
    finished(files, "two")
    derive(files, "new", "two")
    done = []
    with pytest.raises(JobError, match="is the parent of new"):
        done.extend(one.job for one in delete(files, ["one", "two"]))
    assert [job.job for job in list_jobs(files)] == ["two", "new"]


# what cannot be read


def test_a_job_whose_record_is_broken_can_be_deleted(storage, files):
    finished(files)
    storage.lay(PATHS.record, b"{not json")
    assert [one.state for one in plan_deletion(files, ["job"])] == ["unreadable"]
    gone(files, "job")
    assert below(files) == []


def test_a_job_that_nobody_can_judge_is_not_deleted(storage, files):
    finished(files)
    storage.lay(PATHS.record, b'{"format": 2, "mops": "9.1.0"}')
    with pytest.raises(NewerFormat, match=r"install mops-runner 9\.1\.0"):
        plan_deletion(files, ["job"])
    finished(files, "other")
    storage.lay(JobPaths("other").log_record(2), b"{}")
    with pytest.raises(CorruptRecord):
        plan_deletion(files, ["other"])
    assert [job.state for job in list_jobs(files)] == ["unreadable", "succeeded"][::-1]


def test_a_storage_out_of_reach_is_said_and_another_deletion_goes_on(files):
    finished(files)
    with pytest.raises(StorageUnavailable):
        gone(cut_off(files, 5), "job")
    gone(files, "job")
    assert below(files) == []


def _timeless(error):
    """Return an error's text without the seconds that it took to come here."""
    return re.sub(r"\d+ s ago", "(some) s ago", str(error))
