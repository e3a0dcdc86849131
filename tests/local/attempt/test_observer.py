"""Samples and live records of a running job: when they are due, how large they are, and that memory is bounded."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from claimed_jobs import claimed_job, groups_of
from clocks import Clock
from mops.attempt import progress as observe
from mops.attempt.progress import Observer, Samples
from mops.attempt.text_log import LAST_LINES, TextLogBuffer
from mops.storage.json_records import FORMAT
from mops.storage.progress_record import Progress, read_live
from mops.storage.samples import read_samples
from mops.verdicts import Counts

TICK_SECONDS = 3


def snapshot(n: int = 0) -> Progress:
    finished = Counts(n, 1, verdicts={"error": 1})
    at = observe.time.time()
    some = {"in_flight": 7, "slots": 2, "memory_bytes": 3 << 20}
    return Progress(at, finished, "job", Counts(n // 2), 10_000, 5.0, settings={"slots": 2}, **some)


def sample(n: int = 0) -> Progress:
    return snapshot(n).sample()


def test_a_sample_is_taken_every_nine_seconds_and_stored_about_once_a_minute() -> None:
    samples, taken, objects, most = Samples(0.0), 0, [], 0
    for now in range(0, 3 * 86_400, TICK_SECONDS):
        if samples.is_due(now):
            samples.add(now, sample(now))
            taken += 1
        most = max(most, len(samples._waiting))
        if due := samples.to_write(now):
            objects.append(len(due))
    assert taken == 3 * 86_400 / 9
    assert len(objects) <= 3 * 1440
    assert sum(objects) + len(samples.to_write(0, last=True)) == taken
    assert most <= 8


def test_with_a_slow_storage_only_the_newest_samples_are_kept() -> None:
    samples = Samples(0.0)
    for n in range(1000):
        samples.add(9.0 * n, sample(n))
    kept = samples.to_write(9000.0)
    assert len(kept) == observe._MOST_SAMPLES
    assert kept[-1].finished.simulations_good == 999


def test_the_live_record_is_written_every_second_in_the_first_minute_and_then_every_nine_seconds(
    tmp_path: Path, clock: Clock
) -> None:
    written_at = live_records(tmp_path, clock, list)
    assert written_at == [*range(60), 68, 77, 86]


def test_a_slow_storage_gets_a_live_record_every_nine_seconds_from_the_start(tmp_path: Path, clock: Clock) -> None:
    """Each write takes half a second, which is more than a twentieth of nine seconds."""

    def slow() -> list[str]:
        clock.now += 0.5
        return []

    assert live_records(tmp_path, clock, slow) == [0, 9, 18, 27, 36, 45, 54, 63, 72, 81]


def seeing(look: Callable[[], Progress], last_lines: Callable[[], list[str]]) -> tuple[Any, Any]:
    """Return a progress meter and a text log of which an observer sees this."""
    return SimpleNamespace(look=look), SimpleNamespace(last_lines=last_lines)


def live_records(folder: Path, clock: Clock, last_lines: Callable[[], list[str]]) -> list[int]:
    """Return the seconds at which a runner writes its live record."""
    job = claimed_job(str(folder), groups_of([1]))
    observer = Observer(job, *seeing(snapshot, last_lines), clock=clock)
    written_at, last = [], 0.0
    for second in range(90):
        clock.now = 1000.0 + second
        observer.tick(0)
        found = read_live(job.files, job.paths, 1)
        assert found is not None
        if found.at != last:
            written_at.append(second)
        last = found.at
    return written_at


def test_the_last_tick_writes_the_samples_that_wait_and_a_live_record(tmp_path: Path, clock: Clock) -> None:
    job = claimed_job(str(tmp_path), groups_of([1]), slots=2)
    observer = Observer(job, *seeing(lambda: snapshot(int(clock.now)), lambda: ["a line"]), clock=clock)
    for second in (0, 9, 18):
        clock.now = 1000.0 + second
        observer.tick(100)
    assert read_samples(job.files, job.paths) == []
    clock.now = 1020.0
    observer.tick(0, last=True)
    kept = read_samples(job.files, job.paths)
    assert [(n, found.finished.simulations_good) for n, found in kept] == [(1, 1000), (1, 1009), (1, 1018), (1, 1020)]
    assert (kept[-1][1].durable, kept[-1][1].open_bytes, kept[-1][1].finished.verdicts) == (Counts(), 0, {"error": 1})
    live = read_live(job.files, job.paths, 1)
    assert live is not None
    assert (live.finished, live.durable, live.in_flight, live.lines) == (
        snapshot(1020).finished,
        Counts(),
        7,
        ("a line",),
    )
    assert live.settings["slots"] == 2


def test_an_object_of_samples_is_small_json(tmp_path: Path, clock: Clock) -> None:
    job = claimed_job(str(tmp_path), groups_of([1]))
    observer = Observer(job, *seeing(snapshot, list), clock=clock)
    for second in range(0, 64, TICK_SECONDS):
        clock.now = 1000.0 + second
        observer.tick(0)
    (entry,) = job.files.list(job.paths.samples)
    assert entry.path == f"{job.paths.root}/events/1-1.json"
    assert entry.size < 3000
    record = json.loads(job.files.get(entry.path))
    assert record["format"] == FORMAT
    assert len(record["samples"]) == 8


def test_the_last_lines_of_the_log_are_kept_few_and_short() -> None:
    buffer = TextLogBuffer()
    buffer.add("".join(f"line {n}\n" for n in range(100)) + "\n")
    buffer.emit(logging.LogRecord("mops", logging.WARNING, "", 0, "x" * 5000, None, None))
    buffer.take()
    lines = buffer.last_lines()
    assert len(lines) == LAST_LINES
    assert lines[-2] == "line 99"
    assert len(lines[-1]) == 300
