"""Writes signs of life, and samples of memory and rate, to the job's storage while the job runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import psutil

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.progress import Snapshot
from mops.storage import advisory
from mops.storage.live_record import Live, write_live
from mops.storage.samples import Sample, write_samples

# The committing thread ticks twice a second, so a sign of life and a sample come about every 10 s.
LIVE_SECONDS = 9.0
FIRST_LIVE_SECONDS = 0.9  # the time between two signs of life in the first minute, in which a person watches
FIRST_SECONDS = 60.0
_WRITE_SHARE = 0.05  # the most of the time that the first minute's signs of life may take, if the storage is slow
SAMPLE_SECONDS = 9.0
WRITE_SECONDS = 60.0
_MOST_SAMPLES = 60  # in one object; if the storage was slow for long, the oldest samples are dropped


class Samples:
    """Samples that wait to be written. Pure: the caller gives the time, in seconds of a monotonic clock."""

    def __init__(self, now: float):
        self._waiting: list[Sample] = []
        self._taken, self._written = now - SAMPLE_SECONDS, now  # the first one is due at once
        self._rate_since: tuple[float, int] | None = None

    def is_due(self, now: float) -> bool:
        """Tell whether to take a sample."""
        return now - self._taken >= SAMPLE_SECONDS

    def rate(self, now: float, simulations: int) -> float:
        """Return simulations per second since the last call; 0 at the first."""
        since, before = self._rate_since or (now, simulations)
        self._rate_since = (now, simulations)
        return max(simulations - before, 0) / (now - since) if now > since else 0.0

    def add(self, now: float, sample: Sample) -> None:
        """Take a sample."""
        self._taken = now
        self._waiting.append(sample)
        del self._waiting[:-_MOST_SAMPLES]

    def to_write(self, now: float, *, last: bool = False) -> list[Sample]:
        """Return the samples to write now: about once a minute, and at the end."""
        if not last and now - self._written < WRITE_SECONDS:
            return []
        self._written = now
        waiting, self._waiting = self._waiting, []
        return waiting


class Observer:
    """Writes an attempt's signs of life and samples. Used by the committing thread alone."""

    def __init__(
        self,
        job: ClaimedJob,
        snapshot: Callable[[], Snapshot],
        last_lines: Callable[[], list[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._writer = advisory.Writer(job.files)
        self._job, self._settings = job, job.settings.to_json()
        self._snapshot, self._last_lines, self._clock = snapshot, last_lines, clock
        self._process = psutil.Process()
        self._began = clock()
        self._live_at, self._live_took_s = float("-inf"), 0.0
        self._samples = Samples(self._began)
        self._n_written = 0

    def tick(self, open_bytes: int, *, last: bool = False) -> None:
        """Write a sign of life and samples, if they are due. At the attempt's end (``last``) everything is due."""
        now = self._clock()
        live_is_due = last or now - self._live_at >= self._live_interval_s(now)
        sample_is_due = last or self._samples.is_due(now)
        if not (live_is_due or sample_is_due):
            return
        # This thread knows what is durable before the loop does.
        seen = replace(self._snapshot(), durable=self._job.durable_counts)
        if last:
            seen = replace(seen, next_commit_s=None)
        runner_bytes, paths, attempt = self._process.memory_info().rss, self._job.paths, self._job.attempt
        if live_is_due:
            self._live_at = now
            live = self._live(seen, runner_bytes, open_bytes)
            self._writer.write("the sign of life", lambda files: write_live(files, paths, attempt, live))
            self._live_took_s = self._clock() - now
        if sample_is_due:
            rate = self._samples.rate(now, seen.finished.simulations)
            self._samples.add(now, sample_of(seen, rate, runner_bytes, open_bytes))
        if due := self._samples.to_write(now, last=last):
            self._n_written += 1
            n = self._n_written
            self._writer.write("samples of memory and rate", lambda files: write_samples(files, paths, attempt, n, due))

    def _live_interval_s(self, now: float) -> float:
        """Return the time between two signs of life: about 1 s in the first minute, and then about 10 s."""
        if now - self._began >= FIRST_SECONDS:
            return LIVE_SECONDS
        return min(max(FIRST_LIVE_SECONDS, self._live_took_s / _WRITE_SHARE), LIVE_SECONDS)

    def _live(self, seen: Snapshot, runner_bytes: int, open_bytes: int) -> Live:
        return Live(
            at=time.time(),
            host=os.uname().nodename,
            pid=os.getpid(),
            counts=seen.finished,
            rate=seen.rate,
            seconds_left=seen.seconds_left,
            memory_bytes=seen.memory_bytes,
            settings=self._settings,
            durable=seen.durable.simulations,
            seconds=seen.seconds,
            peak_bytes=seen.peak_bytes,
            runner_bytes=runner_bytes,
            in_flight=seen.in_flight,
            slots=seen.slots,
            open_bytes=open_bytes,
            lines=self._last_lines(),
            limit_bytes=seen.limit_bytes,
            window=seen.window,
            children=seen.children,
            sizing=seen.sizing,
            next_commit_s=seen.next_commit_s,
            best=list(seen.best),
            causes=list(seen.causes),
            slow=list(seen.slow),
        )


def sample_of(seen: Snapshot, rate: float, runner_bytes: int, open_bytes: int) -> Sample:
    """Return the sample of a snapshot."""
    done = seen.finished
    return Sample(
        at=time.time(),
        simulations_good=done.simulations_good,
        simulations_failed=done.simulations_failed,
        targets_good=done.targets_good,
        targets_failed=done.targets_failed,
        durable=seen.durable.simulations,
        rate=round(rate, 3),
        memory_bytes=seen.memory_bytes,
        runner_bytes=runner_bytes,
        in_flight=seen.in_flight,
        slots=seen.slots,
        open_bytes=open_bytes,
        verdicts=dict(done.verdicts),
    )
