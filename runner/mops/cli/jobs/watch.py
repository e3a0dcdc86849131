"""``mops jobs watch``: follows a job through its storage, from any machine that reaches the storage."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live as Display
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mops import units
from mops.attempt.planning.forecast import Expected
from mops.cli import job_text, terminal
from mops.cli.options import JobArgument, JsonOption, LocalOption, StorageOption
from mops.jobs.following.phases import Phases
from mops.jobs.job import Job, open_job
from mops.jobs.location import service_with
from mops.jobs.status import Status
from mops.service.service import Service
from mops.storage.live_record import Live
from mops.verdicts import Counts

POLL_SECONDS = 2.0
LINE_SECONDS = 10.0
INTERRUPTED_EXIT = 1
_POINTS = 24
_BAR_COLUMNS = 50
_LOG_LINES = 6
_BARS = "▁▂▃▄▅▆▇█"


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
            with Display(console=Console(highlight=False), transient=True, auto_refresh=False) as display:
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
        terminal.data(f"{now.job}: {now.state}{took}{ended}")
        terminal.data_fields(_summary(job, now))
    raise typer.Exit(terminal.EXIT_CODES.get(now.state, INTERRUPTED_EXIT))


def _follow(seen: History, phases: Phases, show: Callable[[Status], None]) -> Status:
    while phases.may_continue(now := seen.look()):
        show(now)
        time.sleep(POLL_SECONDS)
    return now


class History:
    """The status of a job, and its rate and memory over time."""

    def __init__(self, job: Job):
        kept = job.samples(newest=_POINTS // 6 + 1).to_arrow()  # an object holds about six
        self.rates = deque(kept["rate"].to_pylist(), _POINTS)
        self.memory = deque(kept["memory_bytes"].to_pylist(), _POINTS)
        self._at = kept["time"][-1].as_py().timestamp() if kept.num_rows else 0.0
        self._status = job.follower()

    def look(self) -> Status:
        """Return the status now."""
        now = self._status()
        if now.live is not None and now.live.at > self._at:
            self._at = now.live.at
            self.rates.append(now.live.rate)
            self.memory.append(now.live.memory_bytes)
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
    done = _finished(now)
    parts = [
        f"{now.state}: {done.simulations:,} of {now.n_simulations:,} simulations",
        f"{done.simulations_failed:,} failed",
        f"{now.counts.simulations:,} durable",
        *_pace(now, now.live),
        terminal.size(now.live.memory_bytes),
    ]
    return ", ".join(parts) + more


def _pace(now: Status, live: Live) -> Iterator[str]:
    if live.rate:
        yield units.rate(live.rate)
        if left := now.n_simulations - _finished(now).simulations:
            yield f"{units.duration(left / live.rate)} to go"


def screen(seen: History, now: Status, time_s: float, kubernetes: str = "") -> RenderableType:
    """Return what a terminal shows of a job.

    Parameters
    ----------
    time_s
        The present time (s since the epoch), for ages.
    kubernetes
        The runner's phase in Kubernetes.
    """
    live = now.live
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    completed, total = _finished(now).simulations, max(now.n_simulations, 1)
    table.add_row(f"{completed / total:.0%}", ProgressBar(total, completed, width=_BAR_COLUMNS))
    for name, value in _fields(seen, now):
        table.add_row(name, Text(value))
    if kubernetes:
        table.add_row("Kubernetes", Text(kubernetes))
    log = [_cut(plain(one), "dim") for one in live.lines[-_LOG_LINES:]] if live else []
    return Group(_cut(f"{now.job}: {_state(now, time_s)}", "bold"), table, *log)


def _finished(now: Status) -> Counts:
    """Return what has finished: by the last sign of life, or by the log, which may be newer."""
    return now.live.counts if now.live and now.live.counts.simulations > now.counts.simulations else now.counts


def _cut(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _state(now: Status, time_s: float) -> str:
    if now.state == "submitted":
        return "submitted, waiting for a runner"
    if now.live is None:
        return f"{now.state}, attempt {now.attempt}, starting"
    age = units.duration(max(time_s - now.live.at, 0.0))
    return f"{now.state}, attempt {now.attempt}, process {now.live.pid} on {now.live.host}, last seen {age} ago"


def _fields(seen: History, now: Status) -> Iterator[tuple[str, str]]:
    live = now.live
    if live is None:
        yield "durable", f"{now.groups:,} of {now.n_groups:,} parameter sets"
        return
    done = _finished(now)
    good, failed = f"{done.simulations_good:,} good", f"{done.simulations_failed:,} failed"
    yield "simulations", f"{good}, {failed}, {now.n_simulations - done.simulations:,} left, of {now.n_simulations:,}"
    yield "rate", f"{sparkline(seen.rates)}  {', '.join(_pace(now, live)) or 'no rate yet'}"
    memory = f"{terminal.size(live.memory_bytes)}, peak {terminal.size(live.peak_bytes)}"
    yield "memory", f"{sparkline(seen.memory)}  {memory}, runner {terminal.size(live.runner_bytes)}"
    yield (
        "durable",
        f"{now.counts.simulations:,} of {done.simulations:,} finished; {terminal.size(live.open_bytes)} not durable",
    )
    yield "in flight", f"{units.counted(live.in_flight, 'parameter set')}; {live.slots:,} simulations at once"
    if done.verdicts:
        yield "failures", job_text.verdicts(done)
    if expected := Expected.of_live(live.expected):
        yield "expected", job_text.expectation(expected)


def sparkline(values: Iterable[float]) -> str:
    """Return a bar for each value, from 0 to the highest, in a fixed number of columns."""
    points = list(values)
    top = max(points, default=0.0) or 1.0
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] for value in points).rjust(_POINTS)


def plain(text: str) -> str:
    """Return a line that a model printed, without terminal control codes."""
    return "".join(one if one.isprintable() else " " for one in Text.from_ansi(text.rstrip()).plain)


def _summary(job: Job, now: Status) -> Iterator[tuple[str, str]]:
    yield from job_text.counts_of(now)
    yield from job_text.reasons_of(job.reasons())
    if now.peak_bytes:
        yield "peak memory", f"{terminal.size(now.peak_bytes)}, all processes of the job"
    if now.state in ("interrupted", "cancelled", "failed"):
        yield "continue", job_text.command("resume", job)
    yield "results", job_text.command("results", job)
