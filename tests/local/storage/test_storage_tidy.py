"""Cleaning removes only files that no commit names and that no commit can name later."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
from made import ID, AtRequest, below, claimed, commit, created, ended, finished, hooked, lives, on_disk, part, timeless

from mops.errors import JobError, StorageError, Superseded
from mops.jobs.job import Job
from mops.jobs.removal import Cleaned, clean
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.verify import verify
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges
from mops.verdicts import Counts

LOG = JobPaths("job", ID).log


def outputs(files: Files) -> list[str]:
    return [entry.path.rpartition("/")[2] for entry in files.list(f"jobs/job/{ID}/outputs")]


def two_attempts(files: Files) -> JobLog:
    """Create a job: attempt 1 has committed 1-0 and left 1-7, attempt 2 has committed 2-1 and is writing 2-8."""
    created(files, "job")
    commit(files, claimed(files), "job", 0)
    part(files, "job", 1, 7, b"left behind")
    log = claimed(files)
    commit(files, log, "job", 1)
    part(files, "job", 2, 8)
    return log


def test_parts_of_dead_attempts_are_removed_and_those_of_the_last_attempt_kept(files):
    log = two_attempts(files)
    lives(files, "job", 2, age_s=0)
    assert clean(Job(files, "job")) == Cleaned("job", (f"jobs/job/{ID}/outputs/daily/1-7.parquet",), 11, kept=1)
    assert outputs(files) == ["1-0.parquet", "2-1.parquet", "2-8.parquet"]
    commit(files, log, "job", 2)
    assert verify(files, JobPaths("job", ID), 3) == []
    assert clean(Job(files, "job")) == Cleaned("job", (), 0, kept=1)


@on_disk
def test_a_dry_run_reports_the_same_and_removes_nothing(files):
    two_attempts(files)
    before = below(files)
    foreseen = clean(Job(files, "job"), dry_run=True)
    assert below(files) == before
    assert clean(Job(files, "job")) == foreseen


def test_of_a_complete_job_every_part_without_a_commit_is_removed(files):
    finished(files)
    part(files, "job", 1, 77)
    files.put(f"jobs/job/{ID}/losses/1-78.parquet", b"rows")
    found = clean(Job(files, "job"))
    assert (found.paths, found.kept) == (
        (f"jobs/job/{ID}/outputs/daily/1-77.parquet", f"jobs/job/{ID}/losses/1-78.parquet"),
        0,
    )
    assert verify(files, JobPaths("job", ID), 3) == []
    assert Job(files, "job").status().state == "succeeded"


def test_files_that_mops_did_not_write_are_kept(storage, files):
    finished(files)
    mine = ["outputs/daily/notes.parquet", "outputs/daily/1-2.csv", "outputs/1-1.parquet.bak", "outputs/x-1.parquet"]
    for name in (*mine, "report.html"):
        storage.lay(f"jobs/job/{name}", b"mine")
    assert clean(Job(files, "job")).paths == ()


@on_disk
@pytest.mark.parametrize("ended_as", ["cancelled", "failed", None])
def test_cleaning_the_last_attempt_of_a_stopped_job_claims_it_and_keeps_its_state(files, ended_as):
    record = created(files, "job")
    log = claimed(files)
    commit(files, log, "job", 0)
    part(files, "job", 1, 7)
    if ended_as:
        ended(files, log, record, ended_as)
    assert clean(Job(files, "job")).kept == 1
    foreseen = clean(Job(files, "job"), last_attempt=True, dry_run=True)
    assert JobLog(files, JobPaths("job", ID)).read().attempt == 1
    assert foreseen == Cleaned("job", (f"jobs/job/{ID}/outputs/daily/1-7.parquet",), 4, kept=0)
    assert clean(Job(files, "job"), last_attempt=True) == foreseen
    status = Job(files, "job").status()
    assert (status.state, status.attempt, status.groups) == (ended_as or "cancelled", 2, 1)
    assert verify(files, JobPaths("job", ID), 3) == []
    if ended_as is None:
        with pytest.raises(Superseded):  # the runner was only silent
            commit(files, log, "job", 1)


@on_disk
def test_cleaning_the_last_attempt_of_a_complete_or_new_job_claims_nothing(files):
    finished(files, "job")
    part(files, "job", 1, 7)
    assert len(clean(Job(files, "job"), last_attempt=True).paths) == 1
    created(files, "new")
    assert clean(Job(files, "new"), last_attempt=True).paths == ()
    assert Job(files, "new").status().state == "submitted"


@on_disk
def test_cleaning_the_last_attempt_of_a_running_job_is_refused(files):
    two_attempts(files)
    lives(files, "job", 2, host="far-away", pid=7, age_s=0)
    before = below(files)
    with pytest.raises(JobError) as caught:
        clean(Job(files, "job"), last_attempt=True)
    assert timeless(caught.value) == (
        "job 'job' is running: process 7 on far-away, last seen (some) s ago\n"
        f"  at: {files.url}\n"
        "hint: leave out --last-attempt to clean a job while it runs: mops jobs clean job"
    )
    assert below(files) == before


@on_disk
def test_a_resume_just_before_the_claim_of_a_cleaning_wins(files, monkeypatch):
    two_attempts(files)
    part(files, "job", 2, 9)
    claim, resumed = JobLog.claim, []

    def late_claim(self, by, **how):
        if not resumed:
            resumed.append(claimed)
            claim(JobLog(files, JobPaths("job", ID), host="faster"), "person")
        return claim(self, by, **how)

    monkeypatch.setattr(JobLog, "claim", late_claim)
    with pytest.raises(JobError, match="attempt 3 of job 'job' was started meanwhile on faster"):
        clean(Job(files, "job"), last_attempt=True)
    assert JobLog(files, JobPaths("job", ID)).read().claim.host == "faster"
    assert "2-9.parquet" in outputs(files)


@pytest.mark.parametrize("has_run", [True, False])
def test_a_resume_at_any_step_of_a_cleaning_loses_no_part(has_run):
    """Regression: cleaning read the log after its claim to find ended attempts, and removed parts of a live runner."""
    refused = cleaned = 0
    for at in range(1, 60):
        files = Files.open(f"memory://clean-{has_run}-{at}")
        created(files, "job")
        if has_run:
            commit(files, claimed(files), "job", 0)
            part(files, "job", 1, 7)
        resumed = []

        def resume(files=files, resumed=resumed) -> None:
            log = claimed(files, host="resumed")
            resumed.append((log, part(files, "job", log.view.attempt, 50)))

        try:
            clean(Job(hooked(files, AtRequest(at, resume)), "job"), last_attempt=True)
            cleaned += 1
        except JobError:
            refused += 1
        if not resumed:
            break
        ((log, its_part),) = resumed
        if JobLog(files, JobPaths("job", ID)).read().owner == log.view.owner:
            log.commit(Ranges.of([2]), [its_part], Counts(1))
        else:  # the claim of the cleaning came later
            with pytest.raises(Superseded):
                log.poll()
        assert verify(files, JobPaths("job", ID), 3) == []
    assert (refused > 0) is has_run, "without a claim before, cleaning claims nothing"
    assert cleaned > 5


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_runs_while_its_last_attempt_is_cleaned_and_has_its_state_again_after_an_error_too(memory, fails):
    files = Files.open(memory.url)
    record = created(files, "job")
    log = claimed(files)
    part(files, "job", 1, 7)
    ended(files, log, record, "failed")
    states = []

    def seen(name: str, _path: object) -> None:
        if name == "remove":
            states.append(Job(files, "job").status().state)
            if fails:
                raise PermissionError(13, "Permission denied")

    with pytest.raises(StorageError) if fails else nullcontext():
        clean(Job(hooked(files, seen), "job"), last_attempt=True)
    assert states == ["running"]
    assert Job(files, "job").status().state == "failed"


@on_disk
def test_repeated_cleaning_during_take_overs_removes_no_committed_part(files):
    """There are many attempts, and each has parts without a commit when the next one claims."""
    created(files, "job")
    over, errors = threading.Event(), []

    def cleaner() -> None:
        while not over.is_set():
            try:
                clean(Job(files, "job"))
            except Exception as error:
                errors.append(error)
                return

    thread = threading.Thread(target=cleaner)
    thread.start()
    try:
        for group in range(3):
            older = claimed(files)
            part(files, "job", older.view.attempt, 90 + group)
            newer = claimed(files)
            commit(files, newer, "job", group)
            with pytest.raises(Superseded):
                older.poll()
    finally:
        over.set()
        thread.join()
    assert errors == []
    clean(Job(files, "job"))
    assert verify(files, JobPaths("job", ID), 3) == []
    assert outputs(files) == ["2-0.parquet", "4-1.parquet", "6-2.parquet"]
