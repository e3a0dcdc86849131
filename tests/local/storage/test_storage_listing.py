"""The list of jobs in a storage is quick, and a broken job does not stop it."""

from __future__ import annotations

import json
import os
import time
from unittest.mock import Mock

import pytest
from made import ID, claimed, commit, created, ended, finished, hooked, lives, on_disk

import mops
from mops.cli import status
from mops.cli.options import Place
from mops.cli.status import list_ as list_command
from mops.errors import StorageError, UsageError
from mops.jobs import runners
from mops.jobs.job import Job
from mops.jobs.listing import OLD_RECORDS, RECORD_SECONDS, JobLists, Listed, list_jobs
from mops.jobs.runners import Runners
from mops.k8s.job_phase import Phase
from mops.storage.files import Files
from mops.storage.job_records import job_names
from mops.storage.json_records import FORMAT
from mops.storage.paths import JobPaths, NamePaths
from mops.storage.progress_record import Progress
from mops.storage.samples import write_samples
from mops.ui.reading import JobReader, ListQuery, ListReader
from mops.verdicts import Counts

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


@on_disk
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
    assert str(caught.value) == ("unknown state: 'runing', 'lost'\n  at: --state\nhint: did you mean 'running'?")


@on_disk
@pytest.mark.parametrize("lost", ["no copy", "not JSON", "of an older mops", "of a newer mops", "another kind"])
def test_without_a_good_copy_of_the_end_the_log_is_read(storage, files, lost):
    finished(files, "job", failed=1)
    path = JobPaths("job", ID).finished
    copy = json.loads(storage.bytes_at(path))
    if lost == "no copy":
        storage.drop(path)
    else:
        changed = {
            "not JSON": b"{",
            "of an older mops": json.dumps(copy | {"format": FORMAT - 1}).encode(),
            "of a newer mops": json.dumps(copy | {"format": FORMAT + 1}).encode(),
            "another kind": json.dumps(copy | {"kind": "claim", "by": "auto"}).encode(),
        }
        storage.lay(path, changed[lost])
    assert [(job.state, job.groups, job.simulations_failed) for job in list_jobs(files)] == [("partial", 3, 1)]


@on_disk
def test_jobs_that_cannot_be_read_are_listed_last_with_their_errors(storage, files):
    make_one_of_each(files)
    storage.lay(NamePaths("new").record, b"{not json")
    storage.lay(NamePaths("whole").record, b'{"format": 99, "mops": "9.1.0"}')
    storage.lay(NamePaths("broken").record, b'{"format": 1, "mops": "0.0.1"}')
    storage.lay(JobPaths("killed", ID).log_record(1), b"{}")
    listed = {job.job: job for job in list_jobs(files)}
    assert len(listed) == 7
    assert list(listed)[-3:] == ["whole", "new", "broken"]
    assert {name for name, job in listed.items() if job.state == "unreadable"} == {"new", "broken", "whole", "killed"}
    assert "not what mops wrote" in listed["new"].error
    assert "install mops-runner 9.1.0" in listed["whole"].error
    assert "use the mops that wrote it: mops-runner 0.0.1" in listed["broken"].error
    assert "00000001.json" in listed["killed"].error
    counts = {"simulations_finished": 3, "simulations_durable": 3, "n_simulations": 3}
    assert listed["partly"] == Listed("partly", "partial", 3, 3, 2, AT.format(4), **counts)


@on_disk
def test_other_files_are_not_listed(storage, files):
    finished(files, "job")
    storage.lay("jobs/half/study.json", b"{}")
    storage.lay("jobs/.hidden/job.json", b"{}")
    storage.lay("jobs/notes.txt", b"mine")
    assert [job.job for job in list_jobs(files)] == ["job"]
    assert job_names(files) == ["half", "job"]


def test_a_list_of_complete_jobs_takes_one_listing_and_two_requests_per_job(memory):
    files = Files.open(memory.url)
    for n in range(80):
        finished(files, f"job-{n}")
    requests: list[str] = []
    assert len(list_jobs(hooked(files, lambda name, _: requests.append(name)))) == 80
    assert (requests.count("folders"), requests.count("get"), len(requests)) == (1, 160, 161)


def test_a_later_list_takes_one_listing_and_requests_for_new_and_unfinished_jobs_only(memory, clock):
    files = Files.open(memory.url)
    for n in range(300):
        finished(files, f"job-{n}")
    created(files, "open", AT.format(3))
    requests: list[tuple[str, str | None]] = []
    lists = JobLists(hooked(files, lambda name, path: requests.append((name, path))), lambda: clock.now_s)
    first = lists.read(limit=51)
    requests.clear()
    assert lists.read(limit=51) == first
    assert not [path for _, path in requests if path and path.startswith("jobs/job-")]
    assert [name for name, _ in requests].count("folders") == 1
    assert len(requests) < 10
    finished(files, "new", at=AT.format(9))
    requests.clear()
    assert [job.job for job in lists.read(limit=51)][:2] == ["new", "open"]
    assert len([path for _, path in requests if path and path.startswith("jobs/new/")]) == 2
    clock.now_s += RECORD_SECONDS + 1
    read: list[str] = []
    for _ in range(7):
        requests.clear()
        lists.read(limit=51)
        assert len(requests) < 10 + OLD_RECORDS
        read += [path.split("/")[1] for name, path in requests if path and "/job-" in path]
    assert len(read) == len(set(read)) == 300, "each record is read again, in turns"


@on_disk
def test_a_later_list_leaves_out_deleted_jobs_and_shows_new_jobs_of_their_names(storage, files, clock):
    lists = JobLists(files, lambda: clock.now_s)
    finished(files, "one", at=AT.format(1))
    finished(files, "two", at=AT.format(2))
    assert [job.job for job in lists.read()] == ["two", "one"]
    files.remove([entry.path for entry in files.list("jobs/two")])
    created(files, "two", AT.format(3))  # before the next list
    clock.now_s += RECORD_SECONDS + 1
    assert [(job.job, job.state) for job in lists.read()] == [("two", "submitted"), ("one", "succeeded")]
    files.remove([entry.path for entry in files.list("jobs/one")])
    assert [job.job for job in lists.read()] == ["two"]


@on_disk
def test_a_list_and_its_filter_show_what_kubernetes_says_of_a_runner_as_its_page_does(files, monkeypatch):
    """Regression: a job with a killed pod was running in the list and interrupted on its page.

    A job that continues on a laptop showed its failed pod in the list, and not on its page.
    """
    for name, host in (("killed", "killed-1-x"), ("laptop", "my-pc"), ("done", "done-1-x")):
        created(files, name)
        claimed(files, name, at=time.time())
        lives(files, name, 1, host=host, age_s=0)
    runners = Runners(files, local=True)
    phases = {name: Phase("failed", "OOMKilled", pod=f"{name}-1-x") for name in ("killed", "laptop")}
    monkeypatch.setattr(runners, "phases", lambda: phases)
    lists = ListReader(files, runners)
    found = lists.read(ListQuery())
    assert {job.job: job.state for job in found.jobs} == {
        "killed": "interrupted",
        "laptop": "running",
        "done": "running",
    }
    assert found.kubernetes == {"killed": "failed: OOMKilled"}
    for job in found.jobs:
        page = JobReader(Job(files, job.job), runners).look()
        assert (page.status.state, page.kubernetes) == (job.state, found.kubernetes.get(job.job, ""))
    assert [job.job for job in lists.read(ListQuery(state="interrupted")).jobs] == ["killed"]
    assert [job.job for job in lists.read(ListQuery(state="running")).jobs] == ["laptop", "done"]


def test_a_page_that_is_open_reads_only_what_is_new(memory):
    files, requests = Files.open(memory.url), []
    finished(files, "whole", failed=0)
    created(files, "open")
    log = claimed(files, "open", at=time.time())
    lives(files, "open", 1, host="my-pc", age_s=0)
    counted = hooked(files, lambda name, path: requests.append(path or name))
    n_reads = {}
    for name in ("whole", "open"):
        reader = JobReader(Job(counted, name, local=True), Runners(files, local=True))
        reader.look()
        requests.clear()
        reader.look()
        n_reads[name] = len(requests)
    assert n_reads == {"whole": 0, "open": 2}, "the next record of the log, and the sign of life"
    commit(files, log, "open", 0)
    assert reader.look().status.groups == 1


def test_a_page_has_the_figures_of_the_report_about_progress_which_are_rarely_drawn_again(memory):
    files = Files.open(memory.url)
    record = created(files, "open")
    log = claimed(files, "open", at=time.time())
    samples = [Progress(100.0 + n, Counts(n), rate=1.0, memory_bytes=1 << 20) for n in range(9)]
    write_samples(files, JobPaths("open", ID), 1, 1, samples)
    reader = JobReader(Job(files, "open", local=True), Runners(files, local=True))
    first = reader.look().figures
    assert [figure.title for figure in first] == ["Progress", "Memory", "Rate"]
    assert reader.look().figures is first
    commit(files, log, "open", 0)
    assert reader.look().figures is first, "the next time is after 20 times as long as the drawing took"
    commit(files, log, "open", 1)
    commit(files, log, "open", 2)
    ended(files, log, record, "succeeded")
    assert reader.look().figures is not first


def test_a_page_shows_the_end_of_a_job_although_a_read_of_it_failed(memory, monkeypatch):
    """Regression: it showed the job as running until the server was started again."""
    files = Files.open(memory.url)
    record = created(files, "open")
    log = claimed(files, "open", at=time.time())
    reader = JobReader(Job(files, "open", local=True), Runners(files, local=True))
    assert reader.look().status.state == "running"
    commit(files, log, "open", 0)
    ended(files, log, record, "succeeded")
    with monkeypatch.context() as broken:
        broken.setattr("mops.ui.reading.last_lines", Mock(side_effect=StorageError("no answer")))
        with pytest.raises(StorageError):
            reader.look()
    assert reader.look().status.state == "succeeded"


class KilledRunners:
    """A service on which the pod of each runner has ended; counts the questions for all jobs."""

    def __init__(self):
        self.asked = 0

    def phases(self):
        self.asked += 1
        return {name: self.phase(name) for name in ("waves", "tides")}

    def phase(self, job):
        return Phase("failed", "OOMKilled", pod=f"{job}-1-x")


def test_after_a_change_the_phases_are_read_again(files, monkeypatch):
    service = KilledRunners()
    monkeypatch.setattr(runners, "service_with", lambda files, *, local: service)
    found = Runners(files, local=False)
    found.phases()
    found.phases()
    assert service.asked == 1
    found.forget()
    found.phases()
    assert service.asked == 2


def test_every_view_of_a_job_shows_the_same_state_when_its_pod_has_ended(tmp_path, monkeypatch, capsys):
    """Regression: `mops jobs list` said interrupted, and `mops jobs status` and mops.jobs() said running."""
    service = KilledRunners()
    monkeypatch.setattr(runners, "service_with", lambda files, *, local: service)
    files = Files.open(str(tmp_path))
    for name in ("waves", "tides"):
        created(files, name)
        claimed(files, name, at=time.time())
        lives(files, name, 1, host=f"{name}-1-x", age_s=0)

    table = mops.jobs(storage=tmp_path)
    assert table.to_arrow().column("state").to_pylist() == ["interrupted", "interrupted"]
    assert service.asked == 1, "one question for all jobs"
    list_command(place=Place(str(tmp_path)), as_json=True)
    listed = json.loads(capsys.readouterr().out)
    assert [(job["state"], job["kubernetes"]["word"]) for job in listed] == [("interrupted", "failed")] * 2
    assert service.asked == 2, "one question for the list and its column"
    status.status("waves", place=Place(str(tmp_path)), as_json=True)
    assert json.loads(capsys.readouterr().out)["state"] == "interrupted"


def test_status_shows_the_end_of_a_job_that_finishes_before_kubernetes_answers(tmp_path, monkeypatch, capsys):
    files = Files.open(str(tmp_path))
    record = created(files, "waves")
    job = claimed(files, "waves", at=time.time())
    lives(files, "waves", 1, host="waves-1-x", age_s=0)

    class Slow(KilledRunners):
        def phase(self, name):
            ended(files, job, record, "cancelled")
            return super().phase(name)

    monkeypatch.setattr(runners, "service_with", lambda files, *, local: Slow())
    status.status("waves", place=Place(str(tmp_path)), as_json=True)
    assert json.loads(capsys.readouterr().out)["state"] == "cancelled"


@on_disk
def test_a_list_without_running_jobs_asks_kubernetes_nothing(files):
    finished(files, "whole", at=AT.format(3))
    created(files, "new", AT.format(9))
    assert len(list_jobs(files, phases=lambda: pytest.fail("asked Kubernetes"))) == 2
    claimed(files, "new", at=time.time())
    lives(files, "new", 1, age_s=0)
    assert len(list_jobs(files, ["succeeded"], phases=lambda: pytest.fail("asked Kubernetes"))) == 1


@on_disk
def test_a_job_that_finishes_before_kubernetes_answers_is_not_interrupted(files):
    record = created(files, "done")
    job = claimed(files, "done", at=time.time())
    lives(files, "done", 1, host="done-1-x", age_s=0)

    def phases():
        ended(files, job, record, "cancelled")
        return {"done": Phase("ended", pod="done-1-x")}

    assert [job.state for job in list_jobs(files, phases=phases)] == ["cancelled"]


@on_disk
@pytest.mark.parametrize("asked", [{"limit": 1}, {"states": ["submitted"]}])
def test_a_new_job_of_a_deleted_jobs_name_is_found_by_its_own_date_and_state(files, clock, asked):
    """Regression: only jobs of the list were read again, and their old dates and states kept new ones out of it."""
    lists = JobLists(files, lambda: clock.now_s)
    finished(files, "two", at=AT.format(1))
    finished(files, "one", at=AT.format(2))
    assert [job.job for job in lists.read()] == ["one", "two"]
    files.remove([entry.path for entry in files.list("jobs/two")])
    created(files, "two", AT.format(3))
    clock.now_s += RECORD_SECONDS + 1
    assert [(job.job, job.state, job.created) for job in lists.read(**asked)] == [("two", "submitted", AT.format(3))]


class ActsAfter:
    """A backend that calls a function once, between an answer for a path and its use."""

    def __init__(self, backend, path, act):
        self._backend, self._path, self._act, self._has_acted = backend, path, act, False

    def __getattr__(self, name):
        def ask(*asked):
            answer = getattr(self._backend, name)(*asked)
            if asked[:1] == (self._path,) and not self._has_acted:
                self._has_acted = True
                self._act()
            return answer

        return ask


@on_disk
@pytest.mark.parametrize("path", [NamePaths("job").record, JobPaths("job", ID).finished])
def test_a_slow_thread_does_not_put_a_deleted_job_in_the_place_of_a_new_one(files, clock, path):
    """Regression: the deleted job came back, because a thread had read it before another thread saw the new one."""
    finished(files, at=AT.format(1))

    def replace_job() -> None:
        files.remove([entry.path for entry in files.list("jobs/job")])
        assert lists.read() == []
        finished(files, failed=1, at=AT.format(3))
        assert [job.created for job in lists.read()] == [AT.format(3)]

    lists = JobLists(Files(ActsAfter(files._backend, path, replace_job), files.url), lambda: clock.now_s)
    lists.read()
    assert [(job.state, job.created) for job in lists.read()] == [("partial", AT.format(3))]


def test_a_limited_list_reads_only_the_ends_of_the_jobs_in_it(memory):
    files = Files.open(memory.url)
    for n in range(50):
        finished(files, f"job-{n}", at=f"2026-01-01T00:00:{n:02}+00:00")
    requests: list[str] = []
    newest = list_jobs(hooked(files, lambda name, _: requests.append(name)), limit=3)
    assert [job.job for job in newest] == ["job-49", "job-48", "job-47"]
    assert len(requests) == 1 + 50 + 3


@on_disk
def test_a_claim_without_a_live_record_counts_as_running_only_for_a_while(files):
    """Regression: a runner killed between its claim and its first live record counted as running without end."""
    created(files, "job")
    claimed(files, "job", host=os.uname().nodename, at=None)
    assert list_jobs(files)[0].state == "interrupted"
    created(files, "fresh")
    claimed(files, "fresh", at=time.time())
    assert {job.job: job.state for job in list_jobs(files)}["fresh"] == "running"
