"""``mops jobs watch``: follows a job through its storage, from any machine that reaches the storage."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import typer
from rich.console import Console
from rich.live import Live as Display

from mops import units
from mops.cli import job_text, terminal
from mops.cli.job_screen import MOST_POINTS, Field, JobScreen, Rates, fields_of, plain
from mops.cli.options import JobArgument, JsonOption, LocalOption, StorageOption
from mops.jobs.following import Phases, progress_of
from mops.jobs.job import Job, open_job
from mops.jobs.location import service_with
from mops.jobs.status import Status, seen_text
from mops.jobs.summary import line_of
from mops.service.service import Service
from mops.storage.progress_record import Progress

POLL_SECONDS = 2.0
FIRST_POLL_SECONDS = 1.0
"""In the first minute, in which the runner reports its progress every second."""

FIRST_SECONDS = 60.0
LINE_SECONDS = 10.0
INTERRUPTED_EXIT = 1
_LOG_LINES = 6


def watch(
    job: JobArgument, storage: StorageOption = None, local: LocalOption = False, as_json: JsonOption = False
) -> None:
    """Follow a job until it ends.

    You can watch from any machine that reaches the storage. Ctrl-C stops watching; the job continues. If the output is
    not a terminal, the command prints a line for each change, at most every 10 s. With --json, each line is a JSON
    object.

    Example:

        mops jobs watch waves

    Exit codes: 0 succeeded, 3 some simulations failed, 1 failed or interrupted, 130 cancelled.
    """
    found = open_job(job, storage, local=local)
    follow(found, service_with(found.files, local=local), as_json=as_json)


def follow(job: Job, service: Service | None, *, as_json: bool, after: int = 0) -> None:
    """Show a job until it is over, and exit with its code.

    Parameters
    ----------
    service
        The service that may run the job; None: none does.
    after
        Wait for an attempt later than this one; 0: follow the job as it is.
    """
    try:
        phases = Phases(job.name, replace(service, results=job.files.url) if service else None, after)
        seen = History(job)
        if as_json or not sys.stdout.isatty():
            now = _follow(seen, phases, Lines(as_line if as_json else lambda now: line(now, phases.text)).show)
        else:
            with Display(console=Console(**terminal.AS_IS), transient=True, auto_refresh=False) as display:
                now = _follow(
                    seen, phases, lambda now: display.update(screen(seen, now, time.time(), phases.text), refresh=True)
                )
    except KeyboardInterrupt:
        terminal.say(f"stopped watching; the job continues: {job_text.command('watch', job)}")
        raise typer.Exit(130) from None
    if as_json:
        terminal.data(as_line(now, reasons=[asdict(reason) for reason in job.reasons()]))
    else:
        took = f" after {units.duration(now.seconds)}" if now.seconds else ""
        ended = ": its runner ended without a result" if now.state == "interrupted" else ""
        terminal.data(f"{now.job}: {job_text.state_of(now, took)}{ended}")
        terminal.data_fields(job_text.ended_of(job, now, job.reasons()))
    raise typer.Exit(terminal.EXIT_CODES.get(now.state, INTERRUPTED_EXIT))


def _follow(seen: History, phases: Phases, show: Callable[[Status], None]) -> Status:
    while phases.may_continue(now := seen.look()):
        show(now)
        time.sleep(FIRST_POLL_SECONDS if (now.seconds or 0.0) < FIRST_SECONDS else POLL_SECONDS)
    return now


class History:
    """The status of a job, and its rate over time."""

    def __init__(self, job: Job):
        kept = job.samples(newest=MOST_POINTS // 6 + 1).to_arrow()  # an object holds about six
        self.rates = Rates(deque(kept["rate"].to_pylist(), MOST_POINTS), job.name)
        self._at = kept["time"][-1].as_py().timestamp() if kept.num_rows else 0.0
        self._status = job.follower()

    def look(self) -> Status:
        """Return the status now."""
        now = self._status()
        if now.live is not None and now.live.at > self._at:
            self._at = now.live.at
            self.rates.add(now.job, now.live.at, now.live.rate)
        return now


class Lines:
    """Prints a line for each change, at most every 10 s.

    Parameters
    ----------
    line_of
        Returns the line for a status.
    """

    def __init__(self, line_of: Callable[[Status], str]):
        self._line_of = line_of
        self._last = ""
        self._at = float("-inf")

    def show(self, now: Status) -> None:
        """Print a line, if it is time and the line is new."""
        if time.monotonic() - self._at < LINE_SECONDS or (text := self._line_of(now)) == self._last:
            return
        self._last, self._at = text, time.monotonic()
        terminal.data(text)
        sys.stdout.flush()  # for the reader of a pipe


def as_line(now: Status, **more: object) -> str:
    """Return a status as a line of JSON."""
    fields = asdict(now) | more
    if now.live is not None:
        del fields["live"]["settings"]
    return json.dumps(fields, separators=(",", ":"), default=str)


def line(now: Status, kubernetes: str = "") -> str:
    """Return a status, and the runner's phase in Kubernetes, as a line of text."""
    more = f"; Kubernetes: {kubernetes}" if kubernetes else ""
    if now.live is None:
        return f"{now.state}: {now.groups:,} of {now.n_groups:,} parameter sets committed{more}"
    parts = [
        line_of(now),
        f"{now.counts.simulations:,} durable",
        *_pace(now, now.live),
        terminal.size(now.live.memory_bytes),
    ]
    return ", ".join(parts) + more


def _pace(now: Status, live: Progress) -> Iterator[str]:
    if live.rate:
        yield units.rate(live.rate)
    if text := now.to_go(time.time()):
        yield text


def screen(seen: History, now: Status, time_s: float, kubernetes: str = "") -> JobScreen:
    """Return what a terminal shows of a job.

    Parameters
    ----------
    time_s
        The present time (s since the epoch), for ages.
    kubernetes
        The runner's phase in Kubernetes.
    """
    log = [plain(one) for one in now.live.lines[-_LOG_LINES:]] if now.live else []
    fields = list(_fields(seen, now, time_s))
    if kubernetes:
        fields.append(Field("Kubernetes", [kubernetes]))
    return JobScreen(f"{now.job}: {_state(now, time_s)}", fields, log)


def _state(now: Status, time_s: float) -> str:
    if now.state == "submitted":
        return "submitted, waiting for a runner"
    if now.live is None:
        return f"{now.state}, attempt {now.attempt}, starting"
    return f"{now.state}, attempt {now.attempt}, {seen_text(now.live, time_s)}"


def _fields(seen: History, now: Status, time_s: float) -> Iterator[Field]:
    live = now.live
    if live is None:
        yield Field("durable", [f"{now.groups:,} of {now.n_groups:,} parameter sets"])
        return
    yield from fields_of(progress_of(now), list(seen.rates.kept), time_s)
    memory = [f"{terminal.size(live.runner_bytes)} of memory", f"{terminal.size(live.open_bytes)} not durable"]
    yield Field("runner", memory, is_detail=True)
