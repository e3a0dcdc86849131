"""Keeps with the job what can be seen of it while it runs: a sign of life, and samples of memory and rate.

:class:`Samples` decides when one is due and when they are to be written; :class:`Observer` writes. What they are is
:mod:`mops.storage.job_records`'s and :mod:`mops.storage.samples`'s.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import psutil

from mops.attempt.reporting.progress import Snapshot
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.live_record import Live, write_live
from mops.storage.paths import JobPaths
from mops.storage.samples import Sample, write_samples
from mops.system.memory_limits import allowed_bytes

# The checkpointing thread ticks every 3 s: so a sign of life and a sample come about every 10 s.
LIVE_SECONDS = 9.0
SAMPLE_SECONDS = 9.0
WRITE_SECONDS = 60.0
_MOST_SAMPLES = 60  # in one object: a thread that was held up for long by the storage does not catch up


class Samples:
    """Samples that wait to be written. Pure: times come from outside, in seconds of a monotonic clock."""

    def __init__(self, now: float):
        self._waiting: list[Sample] = []
        self._taken, self._written = now - SAMPLE_SECONDS, now  # the first one is due at once
        self._rate_since: tuple[float, int] | None = None

    def due(self, now: float) -> bool:
        """Tell whether it is time for a sample."""
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
        """Return the samples that are to be written now, about once a minute; all that wait if they are the last."""
        if not last and now - self._written < WRITE_SECONDS:
            return []
        self._written = now
        waiting, self._waiting = self._waiting, []
        return waiting


class Observer:
    """Writes an attempt's observations. Used from one thread, which also commits.

    Parameters
    ----------
    look
        Returns where the job stands.
    last_lines
        Returns the last lines of the job's log.
    """

    def __init__(
        self,
        files: Files,
        paths: JobPaths,
        attempt: int,
        settings: dict[str, Any],
        look: Callable[[], Snapshot],
        last_lines: Callable[[], list[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._writer = advisory.Writer(files)
        self._paths, self._attempt, self._settings = paths, attempt, settings
        self._look, self._last_lines, self._clock = look, last_lines, clock
        self._process = psutil.Process()
        self._began = clock()
        self._live_at = float("-inf")
        self._samples = Samples(self._began)
        self._n_written = 0

    def tick(self, open_bytes: int, *, last: bool = False) -> None:
        """Write what is due; at an attempt's end all there is.

        Parameters
        ----------
        open_bytes
            What is in the open checkpoint.
        """
        now = self._clock()
        # At once, with the first results, and then about every 10 s.
        lives = last or now - self._live_at >= min(LIVE_SECONDS, now - self._began)
        samples = last or self._samples.due(now)
        if not (lives or samples):
            return
        seen, runner_bytes = self._look(), self._process.memory_info().rss
        if lives:
            self._live_at = now
            live = self._live(seen, runner_bytes, open_bytes)
            self._writer.write("the sign of life", lambda files: write_live(files, self._paths, self._attempt, live))
        if samples:
            rate = self._samples.rate(now, seen.finished.simulations)
            self._samples.add(now, sample_of(seen, rate, runner_bytes, open_bytes))
        if due := self._samples.to_write(now, last=last):
            self._n_written += 1
            where = (self._paths, self._attempt, self._n_written)
            self._writer.write("samples of memory and rate", lambda files: write_samples(files, *where, due))

    def _live(self, seen: Snapshot, runner_bytes: int, open_bytes: int) -> Live:
        return Live(
            at=time.time(),
            host=os.uname().nodename,
            pid=os.getpid(),
            counts=seen.finished,
            rate=seen.rate,
            memory_bytes=seen.memory_bytes,
            settings=self._settings,
            durable=seen.durable.simulations,
            seconds=seen.seconds,
            peak_bytes=seen.peak_bytes,
            runner_bytes=runner_bytes,
            in_flight=seen.in_flight,
            slots=seen.slots,
            open_bytes=open_bytes,
            expected=asdict(seen.expected) if seen.expected else None,
            lines=self._last_lines(),
            limit_bytes=allowed_bytes(),
            window=seen.window,
            children=seen.children,
            sizing=seen.sizing,
        )


def sample_of(seen: Snapshot, rate: float, runner_bytes: int, open_bytes: int) -> Sample:
    """Return what is kept of a moment."""
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
