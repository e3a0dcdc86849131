"""The list of jobs in a storage is quick, and a broken job does not stop it."""

from __future__ import annotations

import json
import os
import time

import pytest
from made import claimed, commit, created, ended, finished, hooked, lives

from mops.errors import UsageError
from mops.jobs.listing import Listed, list_jobs
from mops.storage.files import Files
from mops.storage.job_records import job_names
from mops.storage.paths import JobPaths

AT = "2026-01-0{}T00:00:00+00:00"


def make_one_of_each(files: Files) -> None:
    created(files, "new", AT.format(9))
    created(files, "new-running", AT.format(8))
    commit(files, claimed(files, "new-running"), "new-running", 0, 1, failed=1)
    lives(files, "new-running", 1, age_s=0)
    created(files, "killed", AT.format(7))
    lives(files, "killed", claimed(files, "killed").view.attempt, age_s=1000)
    record = created(files, "stopped", AT.format(6))
    ended(files, claimed(files, "stopped"), record, "cancelled")
    record = created(files, "broken", AT.format(5))
    ended(files, claimed(files, "broken"), record, "failed")
    finished(files, "partly", failed=2, at=AT.format(4))
    finished(files, "whole", at=AT.format(3))


def test_each_job_is_listed_with_its_state_newest_first(files):
    make_one_of_each(files)
    assert [(job.job, job.state, job.groups, job.n_groups, job.simulations_failed) for job in list_jobs(files)] == [
        ("new", "submitted", 0, 3, 0),
        ("new-running", "running", 2, 3, 1),
        ("killed", "interrupted", 0, 3, 0),
        ("stopped", "cancelled", 0, 3, 0),
        ("broken", "failed", 0, 3, 0),
        ("partly", "partial", 3, 3, 2),
        ("whole", "succeeded", 3, 3, 0),
    ]
    assert list_jobs(files)[0].created == AT.format(9)


def test_states_and_a_limit_filter_the_list(files):
    make_one_of_each(files)
    assert [job.job for job in list_jobs(files, limit=2)] == ["new", "new-running"]
    assert [job.job for job in list_jobs(files, ["partial", "succeeded"])] == ["partly", "whole"]
    assert [job.job for job in list_jobs(files, ["succeeded"], limit=1)] == ["whole"]
    assert list_jobs(files, ["unreadable"]) == []


def test_the_list_of_an_empty_storage_is_empty(files):
    assert list_jobs(files) == []


def test_an_unknown_state_is_refused_with_the_nearest():
    with pytest.raises(UsageError) as caught:
        list_jobs(Files.open("memory://nothing"), ["runing", "partial", "lost"])
    assert str(caught.value) == ("unknown state: 'runing', 'lost'\n  at: --state\nhint: use running")


@pytest.mark.parametrize("lost", ["no copy", "not JSON", "of a newer mops", "another kind", "another job's"])
def test_without_a_good_copy_of_the_end_the_log_is_read(storage, files, lost):
    finished(files, "job", failed=1)
    path = JobPaths("job").finished
    copy = json.loads(storage.bytes_at(path))
    if lost == "no copy":
        storage.drop(path)
    else:
        changed = {
            "not JSON": b"{",
            "of a newer mops": json.dumps(copy | {"format": 2}).encode(),
            "another kind": json.dumps(copy | {"kind": "claim", "by": "auto"}).encode(),
            # Written by a silent runner after its job was deleted and another created under the same name.
            "another job's": json.dumps(copy | {"created": AT.format(1), "state": "succeeded"}).encode(),
        }
        storage.lay(path, changed[lost])
    assert [(job.state, job.groups, job.simulations_failed) for job in list_jobs(files)] == [("partial", 3, 1)]


def test_jobs_that_cannot_be_read_are_listed_last_with_their_errors(storage, files):
    make_one_of_each(files)
    storage.lay(JobPaths("new").record, b"{not json")
    storage.lay(JobPaths("whole").record, b'{"format": 2, "mops": "9.1.0"}')
    storage.lay(JobPaths("killed").log_record(1), b"{}")
    listed = {job.job: job for job in list_jobs(files)}
    assert len(listed) == 7
    assert list(listed)[-2:] == ["whole", "new"]
    assert {name for name, job in listed.items() if job.state == "unreadable"} == {"new", "whole", "killed"}
    assert "not what mops wrote" in listed["new"].error
    assert "install mops-runner 9.1.0" in listed["whole"].error
    assert "00000001.json" in listed["killed"].error
    assert listed["partly"] == Listed("partly", "partial", 3, 3, 2, AT.format(4))


def test_other_files_are_not_listed(storage, files):
    finished(files, "job")
    storage.lay("jobs/half/study.json", b"{}")
    storage.lay("jobs/.hidden/job.json", b"{}")
    storage.lay("jobs/notes.txt", b"mine")
    assert [job.job for job in list_jobs(files)] == ["job"]
    assert job_names(files) == ["half", "job"]


def test_a_list_of_complete_jobs_takes_one_listing_and_two_requests_per_job(memory):
    files = Files.open(memory.url)
    for n in range(300):
        finished(files, f"job-{n}")
    requests: list[str] = []
    assert len(list_jobs(hooked(files, lambda name, _: requests.append(name)))) == 300
    assert (requests.count("folders"), requests.count("get"), len(requests)) == (1, 600, 601)


def test_a_limited_list_reads_only_the_ends_of_the_jobs_in_it(memory):
    files = Files.open(memory.url)
    for n in range(50):
        finished(files, f"job-{n}", at=f"2026-01-01T00:00:{n:02}+00:00")
    requests: list[str] = []
    newest = list_jobs(hooked(files, lambda name, _: requests.append(name)), limit=3)
    assert [job.job for job in newest] == ["job-49", "job-48", "job-47"]
    assert len(requests) == 1 + 50 + 3


def test_a_claim_without_a_live_record_counts_as_running_only_for_a_while(files):
    """Regression: a runner killed between its claim and its first live record counted as running without end."""
    created(files, "job")
    claimed(files, "job", host=os.uname().nodename, at=None)
    assert list_jobs(files)[0].state == "interrupted"
    created(files, "fresh")
    claimed(files, "fresh", at=time.time())
    assert {job.job: job.state for job in list_jobs(files)}["fresh"] == "running"
