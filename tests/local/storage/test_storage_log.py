"""The log of a job: its records, the view of them, and processes that share it, on every storage."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import ID, hooked, on_disk
from storages import VERSITYGW

import mops
from mops.errors import CorruptRecord, JobDeleted, StorageUnavailable, Superseded
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog, read_whole
from mops.storage.joblog.records import (
    LOG_RECORDS,
    Cancel,
    Claim,
    Commit,
    End,
    LogView,
    NothingToRun,
    Overtaken,
    Part,
    RunRequest,
    TableSize,
    check_start,
    decode_record,
)
from mops.storage.joblog.verify import order_problems, verify
from mops.storage.json_records import FORMAT
from mops.storage.paths import JobPaths, table_of
from mops.study.ranges import Ranges
from mops.verdicts import Counts
from soak import spread

PATHS = JobPaths("job", ID)
HEAD = {"n": 1, "nonce": "00", "time": 1.5, "host": "here"}
ONE = Counts(1, 0, 1, 0)


def part_of(files: Files, c: int, data: bytes = b"rows") -> Part:
    path = PATHS.part("outputs", "daily", 1, c)
    files.put(path, data)
    return Part(path, 3, len(data), hashlib.sha256(data).hexdigest())


def opened(files: Files, host: str = "here") -> JobLog:
    return JobLog(files, PATHS, host=host)


def owner(files: Files, by: str = "person", host: str = "here") -> JobLog:
    log = opened(files, host)
    log.claim(by)
    return log


# Records

counts = st.builds(Counts, *[st.integers(0, 10**9)] * 4)
heads = {
    "k": st.integers(1, 10**8),
    "n": st.integers(0, 1000),
    "nonce": st.text(),
    "time": st.floats(0, 1e10),
    "host": st.text(),
}
parts = st.builds(
    Part,
    st.text("ab.%", min_size=1).map(lambda o: f"jobs/j/id/outputs/{o}/1-1.parquet"),
    st.integers(0),
    st.integers(0),
    st.text(),
)
records = st.one_of(
    st.builds(
        Claim,
        by=st.sampled_from(["auto", "person"]),
        asked=st.none() | st.builds(RunRequest, st.integers(0, 10**8), st.text()),
        **heads,
    ),
    st.builds(
        Commit,
        claim=st.text(),
        ranges=st.lists(st.integers(0, 50)).map(Ranges.of),
        parts=st.lists(parts, max_size=3).map(tuple),
        counts=counts,
        **heads,
    ),
    st.builds(Cancel, who=st.text(), **heads),
    st.builds(
        End,
        claim=st.text(),
        state=st.sampled_from(["succeeded", "partial", "cancelled", "failed"]),
        totals=counts,
        **heads,
    ),
)


@given(records)
def test_a_record_is_read_as_it_was_written(record):
    data = LOG_RECORDS.encode(record)
    assert decode_record(data, record.k, "x") == record
    assert json.loads(data)["format"] == FORMAT


GOOD = {"format": FORMAT, "k": 1, "kind": "claim", **HEAD, "by": "auto"}


def test_an_invalid_record_is_refused_with_its_path(subtests: pytest.Subtests) -> None:
    for data in [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        f'{{"format": {FORMAT}}}'.encode(),
        *(
            json.dumps({**GOOD, **change}).encode()
            for change in [
                {"kind": "other"},
                {"kind": []},
                {"by": "x"},
                {"asked": "7-ab"},
                {"asked": {"k": "7", "nonce": "ab"}},
                {"n": "1"},
                {"time": None},
                {"format": "1"},
                {"k": 2},
                {"kind": "end", "claim": "", "state": "odd", "totals": {}},
                {"kind": "end", "claim": "", "state": "failed", "totals": {"x": 1}},
                {"kind": "end", "claim": "", "state": "failed", "totals": []},
                {"kind": "commit", "claim": "", "ranges": [], "parts": [], "counts": []},
                {"kind": "commit", "claim": "", "ranges": [[1]], "parts": [], "counts": {}},
                {"kind": "commit", "claim": "", "ranges": [], "parts": [["short"]], "counts": {}},
                {"kind": "commit", "claim": "", "ranges": [], "parts": [["no/part/of/this", 1, 1, ""]], "counts": {}},
            ]
        ),
    ]:
        with subtests.test(str(data)):
            with pytest.raises(CorruptRecord) as caught:
                decode_record(data, 1, "where/it/is")
            assert caught.value.where == "where/it/is"


# The view


def commit(k: int, *groups: int, output: str = "daily") -> Commit:
    part = Part(PATHS.part("outputs", output, 1, k), 1, 1, "")
    return Commit(k=k, claim=HEAD["nonce"], ranges=Ranges.of(groups), parts=(part,), counts=Counts(len(groups)), **HEAD)


def test_a_view_is_the_same_for_records_in_any_portions():
    log = [
        Claim(k=1, by="person", **HEAD),
        *(commit(k, 2 * k, 2 * k + 1, output="ab"[k % 2]) for k in range(2, 40)),
        Cancel(k=40, who="me", **HEAD),
    ]
    whole = LogView().extended(log)
    for cut in (1, 7, 39):
        pieces = LogView().extended(log[:cut])
        before = pieces.committed
        for record in log[cut:]:
            later = pieces.extended([record])
            assert pieces.committed == before, "a view never changes"
            pieces, before = later, later.committed
        for name in ("k", "attempt", "owner", "committed", "counts", "mark", "cancelled", "sizes"):
            assert getattr(pieces, name) == getattr(whole, name), name
    assert whole.sizes == {("outputs", "a"): TableSize(19, 19, 19), ("outputs", "b"): TableSize(19, 19, 19)}


def test_a_cancel_counts_only_for_the_attempt_before_it():
    view = LogView().extended([Claim(k=1, by="person", **HEAD), Cancel(k=2, who="me", **HEAD)])
    assert view.cancelled
    assert not view.complete
    view = view.extended([Claim(k=3, by="person", **{**HEAD, "n": 2, "nonce": "11"})])
    assert (view.cancelled, view.attempt, view.owner, view.state) == (False, 2, "11", None)


def test_the_time_to_read_records_grows_linearly():
    def seconds(n: int) -> float:
        log = [commit(k, *range(10 * k, 10 * k + 10)) for k in range(1, n + 1)]
        start = time.process_time()
        view = LogView()
        for record in log:
            view = view.extended([record])
        assert view.sizes["outputs", "daily"].parts == n
        return time.process_time() - start

    few, many = min(seconds(1000) for _ in range(3)), min(seconds(8000) for _ in range(3))
    assert many < 8 * few * 3, "quadratic would be 64 times as long"


# Attempts


def test_a_job_from_its_claim_to_its_end(storage, files):
    log = opened(files)
    assert log.read().k == 0
    view = log.claim("person")
    assert (view.k, view.attempt, len(view.committed)) == (1, 1, 0)
    log.commit(Ranges.of([0, 1]), [part_of(files, 1)], ONE)
    log.commit(Ranges.of([2]), [part_of(files, 2)], ONE)
    log.poll()
    log.end("succeeded", log.view.counts)
    view = opened(files).read()
    assert view.complete
    assert (view.k, view.state, list(view.committed), view.counts) == (4, "succeeded", [0, 1, 2], ONE + ONE)
    assert view.sizes == {("outputs", "daily"): TableSize(2, 6, 8)}
    whole = read_whole(files, PATHS)
    parts = [part for commit in whole.commits for part in commit.parts]
    assert [(part.rows, table_of(part.path)) for part in parts] == [(3, ("outputs", "daily"))] * 2
    assert verify(files, PATHS, 3) == []
    fields = json.loads(storage.bytes_at(f"jobs/job/{ID}/log/00000002.json"))
    assert {
        "format": FORMAT,
        "k": 2,
        "kind": "commit",
        "n": 1,
        "ranges": [[0, 2]],
        "host": "here",
    }.items() <= fields.items()
    assert len(fields["nonce"]) == 32


@on_disk
def test_nothing_is_written_after_a_complete_end(files):
    log = owner(files)
    log.end("partial", Counts())
    for by in ("auto", "person"):
        with pytest.raises(NothingToRun) as caught:
            opened(files).claim(by)
        assert caught.value.state == "partial"
        assert caught.value.view.complete
    assert opened(files).cancel("me") is False
    with pytest.raises(RuntimeError, match="ended"):
        log.commit(Ranges.of([1]), [], ONE)
    assert opened(files).read().k == 2


@on_disk
def test_a_resume_inherits_committed_groups(files):
    owner(files).commit(Ranges.of([3, 4]), [], ONE)
    log = owner(files, "auto")
    assert (list(log.view.committed), log.view.attempt) == ([3, 4], 2)
    with pytest.raises(ValueError, match="already"):
        log.commit(Ranges.of([4, 5]), [], ONE)


def test_only_the_newest_attempt_commits(files):
    old = owner(files)
    old.commit(Ranges.of([0]), [], ONE)
    new = owner(files, host="there")
    for late in (lambda: old.commit(Ranges.of([1]), [], ONE), old.poll, lambda: old.end("failed", ONE)):
        with pytest.raises(Superseded, match="superseded by attempt 2"):
            late()
    new.commit(Ranges.of([1]), [], ONE)
    assert list(opened(files).read().committed) == [0, 1]
    assert verify(files, PATHS, 2) == []


@on_disk
def test_a_cancelled_attempt_commits_finished_groups_and_a_person_can_resume(files):
    log = owner(files)
    assert opened(files).cancel("me") is True
    assert not log.cancelled
    log.commit(Ranges.of([0]), [], ONE)  # the record after the cancel
    assert log.cancelled
    log.end("cancelled", log.view.counts)
    with pytest.raises(NothingToRun) as caught:
        opened(files).claim("auto")
    assert caught.value.state == "cancelled"
    resumed = owner(files, "person")
    assert (resumed.cancelled, list(resumed.view.committed)) == (False, [0])
    assert verify(files, PATHS, 1) == []


@on_disk
@pytest.mark.parametrize("ended", [True, False])
def test_a_restarted_pod_does_not_undo_a_cancel_or_a_failure(files, ended):
    log = owner(files)
    if ended:
        log.end("failed", ONE)
    else:
        opened(files).cancel("me")
    with pytest.raises(NothingToRun) as caught:
        opened(files).claim("auto")
    assert caught.value.state == ("failed" if ended else "cancelled")
    assert owner(files, "person").view.attempt == 2


REQUEST = RunRequest(1, "mine")


def test_a_request_to_start_is_void_if_others_came_first_and_runs_once(subtests: pytest.Subtests) -> None:
    """The pod would undo a cancel before it, and two resumes would take the job from each other."""
    for behind, by, asked, decided in [
        ([], "person", None, "person"),
        ([], "person", REQUEST, "person"),
        (["commit"], "person", REQUEST, "person"),  # of the runner that the request replaces
        (["cancel"], "person", REQUEST, "job 'job' was cancelled meanwhile by anna"),
        (["end"], "person", REQUEST, "attempt 1 of job 'job' ended meanwhile: failed"),
        (["claim"], "person", REQUEST, "attempt 2 of job 'job' was started meanwhile on here"),
        (["commit", "claim", "cancel"], "person", REQUEST, "attempt 2 of job 'job' was started meanwhile on here"),
        (["mine"], "person", REQUEST, "auto"),  # of an earlier pod, which was killed
        (["mine", "mine"], "person", REQUEST, "auto"),
        (["mine", "cancel"], "person", REQUEST, "the job has ended: cancelled"),
        (["mine", "end"], "person", REQUEST, "the job has ended: failed"),
        (["mine", "claim"], "person", REQUEST, "attempt 3 of job 'job' was started meanwhile on here"),
        (["mine", "claim", "cancel"], "person", REQUEST, "attempt 3 of job 'job' was started meanwhile on here"),
        (["claim", "complete"], "person", REQUEST, "the job has ended: partial"),
        (["cancel"], "person", None, "person"),
        (["cancel"], "auto", None, "the job has ended: cancelled"),
        (["claim"], "auto", None, "auto"),
        ([], "auto", REQUEST, "auto"),
        (["claim"], "auto", REQUEST, "attempt 2 of job 'job' was started meanwhile on here"),
    ]:
        with subtests.test(str((behind, by, asked, decided))):
            view = LogView().extended([Claim(k=1, by="person", **HEAD)])
            for what in behind:
                head = {**HEAD, "k": view.k + 1, "n": view.attempt + (what in ("claim", "mine"))}
                record = {
                    "commit": lambda head=head: Commit(
                        claim="00", ranges=Ranges.of([head["k"]]), parts=(), counts=ONE, **head
                    ),
                    "cancel": lambda head=head: Cancel(who="anna", **head),
                    "end": lambda head=head: End(claim="00", state="failed", totals=ONE, **head),
                    "complete": lambda head=head: End(claim="00", state="partial", totals=ONE, **head),
                    "claim": lambda head=head: Claim(by="person", asked=RunRequest(1, "another"), **head),
                    "mine": lambda head=head: Claim(by="person", asked=REQUEST, **head),
                }[what]()
                view = view.extended([record])
            try:
                outcome = check_start(view, by, asked, job="job", where="x")
            except (NothingToRun, Overtaken) as refused:
                outcome = refused.what
            assert outcome == decided


@on_disk
def test_of_two_resumes_one_wins_and_the_other_names_the_winner(files):
    owner(files)
    first, second = opened(files, "first"), opened(files, "second")
    asked = [RunRequest.behind(log.read().k) for log in (first, second)]
    first.claim("person", asked=asked[0])
    with pytest.raises(Overtaken, match="attempt 2 of job 'job' was started meanwhile on first") as caught:
        second.claim("person", asked=asked[1])
    assert caught.value.exit_code == Superseded.exit_code, "the exit code of a runner that must not restart"
    first.poll()


@on_disk
def test_a_request_is_stored_with_its_claim(files):
    asked = RunRequest.behind(7)
    assert RunRequest.parse(str(asked)) == asked
    assert RunRequest.parse(str(replace(asked, job=ID))) == replace(asked, job=ID)
    assert RunRequest.behind(7) != asked
    for text in ("", "7", "7-", "-ab", "x-ab", "-1-ab"):
        with pytest.raises(ValueError, match="is not a request"):
            RunRequest.parse(text)
    log = opened(files)
    log.claim("person", asked=RunRequest(0, "ab"))
    assert opened(files).read().claim.asked == RunRequest(0, "ab")


def test_verify_finds_a_claim_for_a_void_request():
    log = [
        Claim(k=1, by="person", **HEAD),
        Cancel(k=2, who="anna", **HEAD),
        Claim(k=3, by="person", asked=REQUEST, **{**HEAD, "n": 2}),
    ]
    assert order_problems(log, PATHS) == ["record 3: a claim for a request that record 2 (cancel) had made void"]


@on_disk
def test_cancelling_a_job_with_a_long_log_takes_one_write(files):
    """Without reading the log first, each earlier record took one write."""
    log = owner(files)
    for group in range(20):
        log.commit(Ranges.of([group]), [], ONE)
    asked = []
    assert opened(hooked(files, lambda name, _: asked.append(name))).cancel("me") is True
    assert asked.count("put_new") == 1


def test_the_memory_of_a_log_does_not_grow_with_its_commits(memory):
    """Regression: the names of parts took 2.8 KB per commit, or 2.8 GB in a job of a million commits."""
    log = owner(Files.open(memory.url))
    parts = [Part(PATHS.part("outputs", name, 1, 7), 1, 1, "ab" * 32) for name in ("daily", "final", "sums")]

    def held_after(start: int, stop: int) -> int:
        for group in range(start, stop):
            log.commit(Ranges.of([group]), parts, ONE)
            log._files.remove(
                [PATHS.log_record(log.view.k - 1)] if log.view.k > 2 else []
            )  # this storage is in memory too
        # Other threads of this process hold memory too.
        held = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"{Path(mops.__file__).parent}/*")])
        return sum(one.size for one in held.statistics("filename"))

    tracemalloc.start()
    try:
        before = held_after(0, 100)
        assert held_after(100, 1100) - before < 200_000
    finally:
        tracemalloc.stop()
    assert log.view.sizes["outputs", "sums"].parts == 1100
    reader = JobLog(log._files, PATHS)
    assert isinstance(next(reader.records()), Claim)


@on_disk
def test_a_poll_finds_a_cancel(files):
    log = owner(files)
    opened(files).cancel("me")
    log.poll()
    assert log.cancelled


@on_disk
def test_a_reader_continues_where_it_stopped(files):
    log, reader = owner(files), opened(files)
    first = reader.read()
    for group in range(80):
        log.commit(Ranges.of([group]), [], ONE)
    second = reader.read()
    assert (first.k, len(first.committed), second.k, len(second.committed)) == (1, 0, 81, 80)


def test_of_runners_that_start_at_the_same_time_the_last_claim_wins(files):
    gate = threading.Barrier(4)

    def run(me: int) -> str:
        log = opened(files, f"runner {me}")
        gate.wait()
        try:
            for group in log.claim("auto").committed.complement(6):
                log.commit(Ranges.of([group]), [], ONE)
            log.end("succeeded", log.view.counts)
        except Superseded:
            return "superseded"
        except NothingToRun as settled:
            return settled.state
        return "done"

    with ThreadPoolExecutor(4) as threads:
        outcomes = sorted(threads.map(run, range(4)))
    assert outcomes.count("done") == 1
    assert set(outcomes) <= {"done", "superseded", "succeeded"}
    assert verify(files, PATHS, 6) == []


RUN = """
import sys
from mops.storage.files import Files
from mops.storage.joblog.log import Counts, JobLog
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges
log = JobLog(Files.open(sys.argv[1]), JobPaths("job", "0123456789abcdef"))
for group in log.claim("auto").committed.complement(1_000_000):
    log.commit(Ranges.of([group]), [], Counts(1))
    print(group, flush=True)
"""


@pytest.mark.parametrize(
    "storage", ["local", VERSITYGW, pytest.param("azure", marks=pytest.mark.azurite)], indirect=True
)
def test_after_kill_9_all_confirmed_commits_are_there_and_the_next_attempt_continues(storage, files):
    confirmed = -1
    n_groups_at_kills = spread((1, 5, 9), 2)
    for n_groups in n_groups_at_kills:
        process = subprocess.Popen([sys.executable, "-c", RUN, storage.url], text=True, stdout=subprocess.PIPE)
        for line in process.stdout:
            assert int(line) >= confirmed + 1
            confirmed = int(line)
            if confirmed >= n_groups:
                process.kill()
        process.wait()
        view = opened(files).read()
        assert confirmed in view.committed
        confirmed = len(view.committed) - 1
    assert view.attempt == len(n_groups_at_kills)
    assert verify(files, PATHS, len(view.committed)) == []


# Faults of the storage


class Faulty:
    """A backend that fails or returns old answers when a test says so."""

    def __init__(self, backend):
        self.backend, self.stale, self.dead = backend, 0, False

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def put_new(self, path, data):
        if self.dead:
            raise TimeoutError
        return self.backend.put_new(path, data)

    def get(self, path):
        self.stale -= path.startswith(PATHS.log)
        return None if self.stale >= 0 else self.backend.get(path)


@pytest.fixture
def faulty(memory, clock):
    files = Files.open(memory.url)
    backend = Faulty(files._backend)
    retrying = clock.retrying(total_s=10)
    return backend, JobLog(Files(backend, files.url, retrying), PATHS), files


def test_a_record_that_cannot_be_seen_yet_is_read_again(faulty, clock):
    backend, log, files = faulty
    owner(files).commit(Ranges.of([0]), [], ONE)
    backend.stale = 3
    view = log.claim("person")
    assert (view.attempt, list(view.committed)) == (2, [0])
    assert len(clock.slept) == 2


def test_a_record_that_is_never_seen_is_an_error(faulty):
    backend, log, files = faulty
    owner(files)
    backend.stale = 10**9
    with pytest.raises(StorageUnavailable, match="the file exists and cannot be read"):
        log.claim("person")


def test_after_a_write_without_an_answer_nothing_else_is_written(faulty):
    backend, log, files = faulty
    log.claim("person")
    backend.dead = True
    with pytest.raises(StorageUnavailable):
        log.commit(Ranges.of([0]), [], ONE)
    backend.dead = False
    for other in (lambda: log.commit(Ranges.of([1]), [], ONE), lambda: log.end("failed", ONE)):
        with pytest.raises(StorageUnavailable, match="the storage has the commit record"):
            other()
    assert opened(files).read().k == 1


@on_disk
def test_commits_need_a_claim(files):
    with pytest.raises(RuntimeError, match="has not claimed"):
        opened(files).commit(Ranges.of([0]), [], ONE)
    log = owner(files)
    with pytest.raises(RuntimeError, match="claimed already"):
        log.claim("person")


@on_disk
def test_a_commit_that_is_not_by_the_owner_is_corrupt(storage, files):
    log = owner(files)
    storage.lay(PATHS.log_record(2), LOG_RECORDS.encode(commit(2, 0)))
    for read in (log.poll, opened(files).read, lambda: read_whole(files, PATHS)):
        with pytest.raises(CorruptRecord, match="a commit that is not by the job's owner"):
            read()
    assert verify(files, PATHS, 1)[0] == "record 2: a commit that is not by the job's owner"


@on_disk
@pytest.mark.parametrize(
    "path", [JobPaths("job", "0" * 16).part("losses", None, 1, 1), PATHS.part("losses", None, 2, 1)]
)
def test_a_commit_of_a_part_of_another_job_or_attempt_is_corrupt(storage, files, path):
    """Regression: a runner of a deleted job added 1,143 rows to the next job of its name, and verify found nothing."""
    log = owner(files)
    files.put(path, b"rows")
    part = Part(path, 3, 4, hashlib.sha256(b"rows").hexdigest())
    foreign = replace(commit(2, 0), claim=log.view.owner, parts=(part,))
    storage.lay(PATHS.log_record(2), LOG_RECORDS.encode(foreign))
    with pytest.raises(CorruptRecord, match="is not a part of attempt 1 of this job"):
        opened(files).read()
    assert verify(files, PATHS, 1) == [f"record 2: it commits {path}, which is not a part of attempt 1 of this job"]


@on_disk
def test_a_runner_notices_at_its_next_commit_or_poll_that_its_job_was_deleted(files):
    """Regression: mops noticed it at the end of the job."""
    for act in (
        lambda log: log.commit(Ranges.of([1]), [], ONE),
        lambda log: log.poll(),
        lambda log: log.end("failed", ONE),
    ):
        log = owner(files)
        log.commit(Ranges.of([0]), [], ONE)
        files.remove([entry.path for entry in files.list(PATHS.root)])
        with pytest.raises(JobDeleted, match="record 2 of its log no longer exists"):
            act(log)
        files.remove([entry.path for entry in files.list(PATHS.root)])


# Verify


def finished(files: Files) -> None:
    log = owner(files)
    for group in range(3):
        log.commit(Ranges.of([group]), [part_of(files, group)], ONE)
    log.end("succeeded", log.view.counts)


def test_verify_finds_missing_and_changed_parts(storage, files):
    finished(files)
    storage.drop(PATHS.part("outputs", "daily", 1, 0))
    storage.lay(PATHS.part("outputs", "daily", 1, 1), b"ROWS")
    storage.lay(PATHS.part("outputs", "daily", 1, 2), b"longer rows")
    problems = verify(files, PATHS, 3)
    assert [problem.rsplit("/", 1)[1] for problem in problems] == [
        "1-0.parquet: missing",
        "1-1.parquet: its SHA-256 differs from the committed one",
        "1-2.parquet: 11 bytes instead of 4",
    ]


@on_disk
def test_verify_finds_errors_in_the_log(storage, files):
    finished(files)
    assert "with 3 of 5 groups" in verify(files, PATHS, 5)[0]
    assert "the job has only 2 groups" in verify(files, PATHS, 2)[0]
    storage.lay(PATHS.log_record(6), LOG_RECORDS.encode(commit(6, 1)))
    storage.lay(PATHS.log_record(7), LOG_RECORDS.encode(Claim(k=7, by="auto", **{**HEAD, "n": 3})))
    found = "\n".join(verify(files, PATHS, 3))
    assert "record 6: it follows a complete end" in found
    assert "record 6: a commit while no attempt runs" in found
    assert "records 3 and 6: both commit groups 1 to 1" in found
    assert "record 7: it names attempt 3 instead of attempt 2" in found
    storage.lay(PATHS.log_record(2), b"{}")
    assert "00000002.json: this record is not what mops wrote" in verify(files, PATHS, 3)[0]
    storage.drop(PATHS.log_record(1))
    assert "00000001.json: missing" in verify(files, PATHS, 3)[0]
