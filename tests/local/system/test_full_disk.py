"""A full disk: the job stops cleanly and can resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from study_lab import Runner, StudyLab, betas, wait_for

from mops.errors import StorageError
from mops.storage.files import Files
from mops.storage.job_records import keep_reference
from mops.storage.joblog.log import JobLog
from mops.storage.paths import JobPaths
from mops.storage.progress_record import Progress, read_live, write_live
from mops.storage.samples import read_samples, write_samples
from mops.study.ranges import Ranges
from mops.verdicts import Counts
from rows import rows_of
from small_disk import SmallDisk, small_disk

AT_ONCE_SECONDS = 10.0
"""Far less than the two minutes of retries for a storage that does not answer."""


@pytest.fixture
def disk(lab: StudyLab) -> Iterator[SmallDisk]:
    with small_disk(lab.storage, 16) as found:
        yield found


def assert_stopped_for_want_of_room(lab: StudyLab, runner: Runner) -> None:
    assert runner.wait() == 4, runner.said  # before the retries for an unavailable storage would end
    assert "error: the storage is full (No space left on device)" in runner.said
    assert "mops jobs resume" in runner.said
    assert "Traceback" not in runner.said
    lab.assert_nothing_lives(runner)


@pytest.mark.parametrize("seconds", [0, 3600], ids=["each-group", "at-the-end"])
def test_a_full_disk_stops_the_job_and_the_job_resumes_when_there_is_room(
    lab: StudyLab, disk: SmallDisk, seconds: int
) -> None:
    lab.write("held:simulate", betas(40), targets=["scores:order"])
    runner = lab.submit(SLOTS=2, CHECKPOINT_SECONDS=seconds, hold=20)
    wait_for(lambda: lab.exists() and len(runner.calls) > 20 and len(lab.view().committed) > 0, of=runner)
    disk.fill()
    runner.let_go()
    assert_stopped_for_want_of_room(lab, runner)
    assert lab.job().status().state == "interrupted"
    committed = set(lab.view().committed)
    assert committed
    assert set(rows_of(lab.job()).outputs["daily"]["group"].to_pylist()) == committed, "what is committed is lost"

    disk.fill()  # the runner's temporary files are free again
    still_full = lab.resume()
    assert_stopped_for_want_of_room(lab, still_full)
    assert set(lab.view().committed) == committed

    disk.make_room()
    resumed = lab.resume()
    assert resumed.wait() == 0, resumed.said
    assert not {group for group, _ in lab.called(resumed)} & committed, "a committed group ran again"
    assert rows_of(lab.job()) == lab.serial()
    lab.assert_sound()


def live(rate: float) -> Progress:
    return Progress(1.0, Counts(1), rate=rate, host="host", pid=1, lines=("x" * 300,) * 20)


def put_part(files: Files, paths: JobPaths) -> None:
    spool = files.spool()
    for _ in range(20):
        spool.write(b"x" * 5000)
    files.put(paths.part("outputs", "daily", 1, 1), spool)


def put_record(files: Files, paths: JobPaths) -> None:
    JobLog(files, paths).claim(by="person")


SAMPLE = Progress(1.0, Counts(), total=1, memory_bytes=1).sample()
WRITES: dict[str, Callable[[Files, JobPaths], object]] = {
    "part": put_part,
    "log record": put_record,
    "reference schema": lambda files, paths: keep_reference(files, paths, {"out": {"x": "number"}}),
    "live record": lambda files, paths: write_live(files, paths, 1, live(2.0)),
    "samples": lambda files, paths: write_samples(files, paths, 1, 2, [SAMPLE]),
    "text log": lambda files, paths: files.put(paths.text(1, 1), b"a model printed\n"),
}


@pytest.mark.parametrize("what", WRITES)
def test_each_kind_of_write_reports_a_full_disk_at_once_and_keeps_existing_files(
    lab: StudyLab, disk: SmallDisk, what: str
) -> None:
    files, paths = Files.open(str(lab.storage)), JobPaths("job", "0" * 16)
    write_live(files, paths, 1, live(1.0))
    write_samples(files, paths, 1, 1, [SAMPLE])
    log = JobLog(files, paths)
    log.claim(by="person")
    log.commit(Ranges.of([0]), [], Counts(1))
    before = files.list("")
    disk.fill()
    since = time.monotonic()
    with pytest.raises(StorageError, match=r"the storage is full \(No space left on device\)"):
        WRITES[what](files, paths)
    assert time.monotonic() - since < AT_ONCE_SECONDS
    disk.make_room()
    assert files.list("") == before
    assert not list(lab.storage.rglob("*.tmp")), "scraps take the room that is wanted"
    assert read_live(files, paths, 1) == live(1.0)
    assert len(read_samples(files, paths)) == 1
    WRITES[what](files, paths)
    assert list(JobLog(files, paths).read().committed) == [0]


def test_the_next_attempt_makes_a_commit_that_failed_on_a_full_disk(lab: StudyLab, disk: SmallDisk) -> None:
    files, paths = Files.open(str(lab.storage)), JobPaths("job", "0" * 16)
    log = JobLog(files, paths)
    log.claim(by="person")
    disk.fill()
    with pytest.raises(StorageError, match="full"):
        log.commit(Ranges.of([0]), [], Counts(1))
    disk.make_room()
    following = JobLog(files, paths)
    assert list(following.claim(by="person").committed) == []
    following.commit(Ranges.of([0]), [], Counts(1))
    assert list(JobLog(files, paths).read().committed) == [0]
