"""Who may change a job that a person has submitted to a service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from service_in_memory import at, in_memory, resume, submitted

from mops.cli import status as cli
from mops.cli import tidy
from mops.cli.options import Place
from mops.errors import JobError, JobFailed
from mops.jobs import job as jobs
from mops.jobs import removal, status, submit
from mops.jobs.derive import retry
from mops.jobs.job import Job, open_job
from mops.k8s import names
from mops.service.service import Service
from mops.settings import Settings
from mops.storage.job_records import job_exists
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import RunRequest

CHANGES: dict[str, Callable[[Job, Service, bool], object]] = {
    "cancel": lambda job, _, force: job.cancel(force=force),
    "resume": lambda job, service, force: resume(job, service, force=force),
    "delete": lambda job, _, force: job.delete(force=force),
    "clean": lambda job, _, force: removal.clean(job, last_attempt=True, force=force),
}
COMMANDS = {
    "cancel": "mops jobs cancel waves --force",
    "resume": "mops jobs resume waves --force",
    "delete": "mops jobs delete waves --force",
    "clean": "mops jobs clean waves --last-attempt --force",
}


@pytest.fixture
def job(service: Service, study: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that ada has submitted, and that has been claimed; its runner has ended."""
    for module in (status, jobs, removal, tidy):
        monkeypatch.setattr(module, "service_with", lambda _, *, local: None if local else service)
    job = submitted(service, study)
    log = JobLog(job.files, job.record.paths)
    log.claim("person")
    log.end("failed", totals=log.view.counts)
    return job


def state(job: Job, service: Service) -> Any:
    """Return what a change would change."""
    jobs = sorted(name for _, name in in_memory(service).objects)
    return {entry.path: entry.size for entry in job.files.list("jobs")}, jobs


@pytest.mark.parametrize("change", CHANGES)
def test_another_person_may_change_a_job_only_with_force_and_the_role(job: Job, service: Service, change: str) -> None:
    before = state(job, service)
    in_memory(service).user = "bob"
    with pytest.raises(JobError) as refused:
        CHANGES[change](job, service, False)
    assert refused.value.what == "job 'waves' belongs to ada, and you are bob"
    assert refused.value.hint == f"if you may change jobs of others: {COMMANDS[change]}"
    assert refused.value.exit_code == 2
    with pytest.raises(JobError, match="belongs to ada, and you are bob, who may not change jobs of others") as refused:
        CHANGES[change](job, service, True)
    assert str(refused.value.hint).startswith("ask the cluster's operator to add you to clients.managers")
    in_memory(service).user = "grace"
    with pytest.raises(JobError, match="belongs to ada, and you are grace"):
        CHANGES[change](job, service, False)
    assert state(job, service) == before
    CHANGES[change](job, service, True)
    assert state(job, service) != before


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("force", [False, True])
def test_the_owner_needs_no_role(job: Job, service: Service, change: str, force: bool) -> None:
    before = state(job, service)
    CHANGES[change](job, service, force)
    assert state(job, service) != before


@pytest.mark.parametrize("change", CHANGES)
def test_without_a_service_there_is_no_check(job: Job, service: Service, storage: str, change: str) -> None:
    """Kubernetes cannot be asked then. It also has no word about who may write a storage."""
    in_memory(service).user = "bob"
    here = Job(job.files, job.name, local=True)
    if change == "resume":
        here.resume(settings=Settings(storage=storage, slots=1))
    else:
        CHANGES[change](here, service, False)


def test_a_job_of_this_machine_has_no_owner(service: Service, study: Path, storage: str) -> None:
    """Anyone may continue it on a service, as before."""
    here = Settings(storage=storage, slots=1, max_failures="0")
    with pytest.raises(JobFailed):
        submit.submit(study, name="waves", settings=here, local=True)
    job = open_job("waves", storage, local=True)
    assert job.record.owner == job.status().owner == ""
    in_memory(service).user = "bob"
    resume(job, service)
    assert names.OWNER not in in_memory(service).objects["Job", "waves-1"]["metadata"]["annotations"]


def test_the_job_keeps_its_owner_when_a_manager_resumes_it(job: Job, service: Service) -> None:
    in_memory(service).user = "grace"
    resume(job, service, force=True)
    assert job.record.owner == job.status().owner == "ada"
    assert in_memory(service).objects["Job", "waves-2"]["metadata"]["annotations"][names.OWNER] == "ada"


def test_a_derived_job_belongs_to_the_person_who_derives_it(
    job: Job, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes nothing of the job from which it is derived."""
    monkeypatch.setenv("MODELOPS_JOB_SLOTS", "1")
    asked = RunRequest.behind(JobLog(job.files, job.record.paths).read().k)
    assert submit.run(job, asked=asked) == "partial"
    in_memory(service).user = "bob"
    child = retry(job, "error", name="again", location=at(service), wait=False)
    assert (child.record.owner, job.record.owner) == ("bob", "ada")


def test_the_deletion_of_several_jobs_names_each_owner_and_one_command(job: Job, service: Service, study: Path) -> None:
    submit.submit(study, name="more", location=at(service), wait=False)
    in_memory(service).user = "bob"
    mine = submit.submit(study, name="mine", location=at(service), wait=False)
    with pytest.raises(JobError) as refused:
        tidy.delete_(["waves", "more", "mine"], yes=True, place=Place(mine.files.url))
    assert refused.value.what.splitlines() == [
        "2 jobs cannot be deleted:",
        "  job 'waves' belongs to ada, and you are bob",
        "  job 'more' belongs to ada, and you are bob",
    ]
    assert refused.value.hint == "if you may change jobs of others: mops jobs delete waves more mine --force"
    assert job_exists(job.files, "mine")


def test_a_job_whose_record_cannot_be_read_has_no_owner_and_can_be_deleted(job: Job, service: Service) -> None:
    in_memory(service).user = "bob"
    job.files.put(job.record.paths.record, b"{")
    job.delete()
    assert not job_exists(job.files, "waves")


def test_the_list_and_the_status_name_the_owner(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    cli.list_(place=Place(job.files.url, local=True))
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[-2:] == ["submitted", "owner"]
    assert row.split()[-1] == "ada"
    cli.status("waves", place=Place(job.files.url, local=True))
    assert " by ada\n" in capsys.readouterr().out
