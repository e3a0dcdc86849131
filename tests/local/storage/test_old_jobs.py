"""Deleting jobs by their age: which jobs it takes, and what it meets in between."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from made import ID, AtRequest, claimed, commit, created, ended, finished, hooked, lives, on_disk
from test_storage_deletion import cut_off, gone, interrupted

from mops.errors import JobDeleted, JobError, MopsError, UsageError
from mops.jobs.listing import list_jobs
from mops.jobs.removal import delete, find_old
from mops.jobs.status import JobState
from mops.storage.files import Files
from mops.storage.job_records import Source, check_not_deleted, create_derived, load_job
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import COMPLETE
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges

DAY = 86400.0
ENDED = ("succeeded", "partial", "failed", "cancelled", "interrupted")


def soon() -> float:
    """Return a time after the end of every job that this file makes by default."""
    return time.time() - 60


def clean(files: Files, ended_before: float, states=COMPLETE) -> list[str]:
    plans = find_old(files, ended_before, states).jobs
    return [one.job for one in delete(files, [plan.job for plan in plans], ended_before=ended_before)]


@on_disk
def test_jobs_go_by_the_end_of_their_last_attempt_and_by_their_state(files):
    finished(files, "done")
    finished(files, "partly", failed=1)
    interrupted(files, "killed", host="far-away")
    ended(files, interrupted(files, "stopped", host="far-away"), None, "cancelled")
    ended(files, interrupted(files, "broken", host="far-away"), None, "failed")
    created(files, "waits")
    young = created(files, "young")
    log = claimed(files, "young", at=time.time())
    commit(files, log, "young", 0, 1, 2)
    ended(files, log, young, "succeeded")
    created(files, "runs")
    claimed(files, "runs")
    lives(files, "runs", 1, age_s=0)
    assert [one.job for one in find_old(files, soon() - DAY, ENDED).jobs] == []
    assert {one.job: one.state for one in find_old(files, soon(), COMPLETE).jobs} == {
        "done": "succeeded",
        "partly": "partial",
    }
    assert sorted(clean(files, soon(), ENDED)) == ["broken", "done", "killed", "partly", "stopped"]
    assert sorted(job.job for job in list_jobs(files)) == ["runs", "waits", "young"]
    assert clean(files, soon(), ENDED) == []


@on_disk
@pytest.mark.parametrize("state", ["running", "submitted", "unreadable"])
def test_jobs_that_may_run_or_have_no_readable_end_are_not_chosen_by_age(files, state):
    with pytest.raises(UsageError) as caught:
        find_old(files, soon(), ["succeeded", state])
    assert str(caught.value) == (
        f"mops deletes no {state} jobs by their age\n  at: --state\n"
        "hint: choose from: interrupted, succeeded, partial, failed, cancelled"
    )


@on_disk
def test_a_job_whose_last_sign_of_life_is_young_stays(files):
    """A runner that was killed a minute ago left a claim of last month."""
    interrupted(files, "killed", host="far-away")
    lives(files, "killed", 1, age_s=100)
    assert JobState(files, "killed").status().state == "interrupted"
    assert find_old(files, time.time() - 500, ENDED).jobs == []
    assert [one.job for one in find_old(files, time.time() - 50, ENDED).jobs] == ["killed"]


def derived(files: Files, name: str, parent: str, at: float) -> None:
    """Derive a job that runs group 0 again, and takes the others over from its parent."""
    source = Source(parent, ID, Ranges.of([1, 2]), Ranges.of([1, 2]))
    parents = load_job(files, parent)
    record = replace(parents, job=name, parent=parent, sources=(*parents.sources, source))
    create_derived(files, record, parents.paths)
    log = claimed(files, name, at=at)
    commit(files, log, name, 0)
    ended(files, log, record, "succeeded")


@on_disk
def test_a_job_whose_rows_a_younger_job_reads_is_kept_and_one_that_only_old_jobs_read_goes(files):
    finished(files, "alone")
    for number, age_s in ((1, 1000), (2, 10)):
        finished(files, f"first-{number}")
        derived(files, f"second-{number}", f"first-{number}", time.time() - 1000)
        derived(files, f"third-{number}", f"second-{number}", time.time() - age_s)
    found = find_old(files, soon(), ENDED)
    assert [one.job for one in found.jobs] == ["third-1", "second-1", "first-1", "alone"]
    assert found.kept == {"second-2": ["third-2"], "first-2": ["second-2", "third-2"]}
    assert clean(files, soon()) == ["third-1", "second-1", "first-1", "alone"]
    assert sorted(job.job for job in list_jobs(files)) == ["first-2", "second-2", "third-2"]


@on_disk
def test_a_clean_that_is_killed_at_any_point_is_finished_by_the_next(files):
    made = 0
    for changes in range(100):
        for name in ("one", "two"):
            if not [job for job in list_jobs(files) if job.job == name]:
                finished(files, name)
        try:
            clean(cut_off(files, changes), soon())
        except MopsError:
            made += 1
            clean(files, soon())
            assert [entry.path for entry in files.list("jobs")] == []
        else:
            assert made > 16
            return
    raise AssertionError("the deletion never ended")


@on_disk
def test_what_a_killed_submit_left_stays_because_the_submit_may_still_run(storage, files):
    storage.lay(JobPaths("new", ID).study, b"{}")
    assert find_old(files, soon(), ENDED).jobs == []


def test_a_resume_during_a_clean_keeps_the_job_or_learns_of_the_deletion(memory):
    """Also a resume that ends before the clean marks the job: its results are young."""
    outcomes = set()
    for at in range(1, 80):
        files, name = Files.open(f"{memory.url}/{at}"), "job"
        record = created(files, name)
        ended(files, claimed(files, name), record, "failed")
        log = JobLog(files, JobPaths(name, ID), host="resumed")

        def resume(files=files, log=log, record=record) -> None:
            with suppress(JobError, JobDeleted):  # a runner gives way, whether it sees the mark or misses a record
                log.claim("person")
                check_not_deleted(files, record.paths)
                log.end("failed", log.view.counts)

        resume_at = AtRequest(at, resume)
        try:
            done = clean(hooked(files, resume_at), soon(), ENDED)
        except JobError as error:
            done, what = [], error.what.partition("' ")[2]
            outcomes.add(what)
        if not resume_at.has_acted:
            break
        if name in done:
            with pytest.raises(JobError, match="was deleted meanwhile"):
                check_not_deleted(files, record.paths)
            outcomes.add("deleted")
        else:
            check_not_deleted(files, record.paths)
            outcomes.add("kept")
    assert outcomes == {
        "kept",
        "deleted",
        "was resumed during the deletion",
        "was submitted or resumed meanwhile, and has ended since",
    }


@on_disk
def test_a_job_that_took_the_name_of_an_old_one_stays(files):
    finished(files, "job")
    plans = find_old(files, soon(), COMPLETE).jobs
    gone(files, "job")
    created(files, "job", at=datetime.now(UTC).isoformat(), job_id="fedcba9876543210")
    with pytest.raises(JobError, match="was submitted or resumed meanwhile"):
        list(delete(files, [plan.job for plan in plans], ended_before=soon()))
    assert [job.job for job in list_jobs(files)] == ["job"]
