"""``mops jobs watch``: follows a job from its storage alone, from this terminal or from another machine."""

from __future__ import annotations

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
from mops.cli import connected_service, job_text, terminal
from mops.cli.options import JobArgument, JsonOption, LocalOption, StorageOption
from mops.jobs.job import Job, open_job
from mops.jobs.status import Status
from mops.k8s.job_phase import Phase
from mops.service.service import Service
from mops.storage.live_record import Live
from mops.verdicts import Counts

LOOK_SECONDS = 2.0
LINE_SECONDS = 10.0
PHASE_SECONDS = 5.0
INTERRUPTED_EXIT = 1
_POINTS = 24
_BAR_COLUMNS = 50
_LOG_LINES = 6
_BARS = "▁▂▃▄▅▆▇█"


def watch(
    job: JobArgument, storage: StorageOption = None, local: LocalOption = False, as_json: JsonOption = False
) -> None:
    """Follow a job until it ends, from any terminal.

    Reads the storage alone, so any machine that reaches it can. Ctrl-C ends the watching and not the job. A job that
    nobody has started is waited for.
    Where the output is no terminal: a line for each change, at most every 10 s; with --json each line is an object.

    Exit codes: the job's own (0 succeeded, 3 some simulations failed, 1 failed, 130 cancelled), and 1 if its runner
    is gone.
    """
    found = open_job(job, storage, local=local)
    follow(found, connected_service.service_with(found.files, local=local), as_json=as_json)


def follow(job: Job, service: Service | None, *, as_json: bool, after: int = 0) -> None:
    """Show a job until it is over, and exit with its code.

    Parameters
    ----------
    service
        Where its runner may be; None: elsewhere.
    after
        The attempt before the one that is to be followed; 0: the job as it is.
    """
    try:
        of_storage = replace(service, results=job.files.url) if service else None
        now = _watched(job, Phases(job.name, of_storage, after), as_json=as_json)
    except KeyboardInterrupt:
        terminal.say(f"no longer watching; the job goes on: {job_text.command('watch', job)}")
        raise typer.Exit(130) from None
    if as_json:
        terminal.data(as_line(now, reasons=[asdict(reason) for reason in job.reasons()]))
    else:
        _conclude(job, now)
    raise typer.Exit(terminal.EXIT_CODES.get(now.state, INTERRUPTED_EXIT))


def _watched(job: Job, phases: Phases, *, as_json: bool) -> Status:
    """Show a job until it is over; return where it stands then."""
    seen = History(job)
    if as_json or not sys.stdout.isatty():
        return _follow(seen, phases, Lines(as_line if as_json else phases.line).show)
    with Display(console=Console(highlight=False), transient=True, auto_refresh=False) as display:
        return _follow(
            seen, phases, lambda now: display.update(screen(seen, now, time.time(), phases.said), refresh=True)
        )


def _follow(seen: History, phases: Phases, show: Callable[[Status], None]) -> Status:
    while phases.goes_on(now := seen.look()):
        show(now)
        time.sleep(LOOK_SECONDS)
    return now


class Phases:
    """Where a job's runner stands in Kubernetes, looked at every few seconds while it gives no sign of its own."""

    def __init__(self, job: str, service: Service | None, after: int = 0):
        self._job, self._service, self._after = job, service, after
        self._due = 0.0
        self._last: Phase | None = None

    @property
    def said(self) -> str:
        """What Kubernetes says, for people; empty: nothing."""
        return str(self._last) if self._last else ""

    def goes_on(self, now: Status) -> bool:
        """Tell whether the job may go on by itself."""
        if now.state == "running" and now.live is not None:
            self._last = None
            return True
        due = now.attempt == self._after > 0  # its state is that of the attempt before
        if self._service is None or (now.state not in ("submitted", "running", "interrupted") and not due):
            return now.state in ("submitted", "running")
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + PHASE_SECONDS
            self._last = self._service.phase(self._job)
        return self._last is None or not self._last.over

    def line(self, now: Status) -> str:
        """Return where the job stands as a line of text."""
        return line(now) + (f"; Kubernetes: {self.said}" if self.said else "")


class History:
    """Where a job stands, and how its rate and its memory went."""

    def __init__(self, job: Job):
        kept = job.samples(newest=_POINTS // 6 + 1)  # an object holds six, about
        self.rates = deque(kept["rate"].to_pylist(), _POINTS)
        self.memory = deque(kept["memory_bytes"].to_pylist(), _POINTS)
        self._at = kept["time"][-1].as_py().timestamp() if kept.num_rows else 0.0
        self._status = job.follower()

    def look(self) -> Status:
        """Return where the job stands now."""
        now = self._status()
        if now.live is not None and now.live.at > self._at:
            self._at = now.live.at
            self.rates.append(now.live.rate)
            self.memory.append(now.live.memory_bytes)
        return now


class Lines:
    """Prints what has changed, at most every 10 s.

    Parameters
    ----------
    written
        Returns the line for a status.
    """

    def __init__(self, written: Callable[[Status], str]):
        self._written = written
        self._last = ""
        self._at = float("-inf")

    def show(self, now: Status) -> None:
        """Print a line, if it is time and there is news."""
        if time.monotonic() - self._at < LINE_SECONDS or (text := self._written(now)) == self._last:
            return
        self._last, self._at = text, time.monotonic()
        terminal.data(text)
        sys.stdout.flush()  # who reads a pipe wants the line now


def as_line(now: Status, **more: object) -> str:
    """Return where a job stands as a line of JSON."""
    fields = asdict(now) | more
    if now.live is not None:
        del fields["live"]["settings"]
    return terminal.json_line(fields)


def line(now: Status) -> str:
    """Return where a job stands as a line of text."""
    if now.live is None:
        return f"{now.state}: {now.groups:,} of {now.n_groups:,} parameter sets committed"
    done = _finished(now)
    parts = [
        f"{now.state}: {done.simulations:,} of {now.n_simulations:,} simulations",
        f"{done.simulations_failed:,} failed",
        f"{now.counts.simulations:,} durable",
        *_pace(now, now.live),
        terminal.size(now.live.memory_bytes),
    ]
    return ", ".join(parts)


def _pace(now: Status, live: Live) -> Iterator[str]:
    if live.rate:
        yield units.rate(live.rate)
        if left := now.n_simulations - _finished(now).simulations:
            yield f"{units.duration(left / live.rate)} to go"


def screen(seen: History, now: Status, at: float, kubernetes: str = "") -> RenderableType:
    """Return what a terminal shows of a job.

    Parameters
    ----------
    at
        The time (s since the epoch) to reckon ages from.
    kubernetes
        What Kubernetes says of its runner.
    """
    live = now.live
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_row(*_bar(_finished(now).simulations, max(now.n_simulations, 1)))
    for name, value in _fields(seen, now):
        table.add_row(name, Text(value))
    if kubernetes:
        table.add_row("Kubernetes", Text(kubernetes))
    said = [_cut(plain(one), "dim") for one in live.lines[-_LOG_LINES:]] if live else []
    return Group(_cut(f"{now.job}: {_state(now, at)}", "bold"), table, *said)


def _bar(completed: int, total: int) -> tuple[str, ProgressBar]:
    return f"{completed / total:.0%}", ProgressBar(total, completed, width=_BAR_COLUMNS)


def _finished(now: Status) -> Counts:
    """Return what has finished, by the last sign of life or by the log, which may be ahead of it."""
    return now.live.counts if now.live and now.live.counts.simulations > now.counts.simulations else now.counts


def _cut(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _state(now: Status, at: float) -> str:
    if now.state == "submitted":
        return "submitted, waiting for a runner"
    if now.live is None:
        return f"{now.state}, attempt {now.attempt}, starting"
    age = units.duration(max(at - now.live.at, 0.0))
    return f"{now.state}, attempt {now.attempt}, process {now.live.pid} on {now.live.host}, last sign {age} ago"


def _fields(seen: History, now: Status) -> Iterator[tuple[str, str]]:
    live = now.live
    if live is None:
        yield "durable", f"{now.groups:,} of {now.n_groups:,} parameter sets"
        return
    done = _finished(now)
    good, failed = f"{done.simulations_good:,} good", f"{done.simulations_failed:,} failed"
    yield "simulations", f"{good}, {failed}, {now.n_simulations - done.simulations:,} left, of {now.n_simulations:,}"
    yield "rate", f"{sparkline(seen.rates)}  {', '.join(_pace(now, live)) or 'nothing yet'}"
    memory = f"{terminal.size(live.memory_bytes)}, at most {terminal.size(live.peak_bytes)}"
    yield "memory", f"{sparkline(seen.memory)}  {memory}, runner {terminal.size(live.runner_bytes)}"
    yield (
        "durable",
        f"{now.counts.simulations:,} of {done.simulations:,} finished; {terminal.size(live.open_bytes)} open",
    )
    yield "in flight", f"{units.counted(live.in_flight, 'parameter set')}; {live.slots:,} at once"
    if done.verdicts:
        yield "failures", job_text.verdicts(done)
    if expected := Expected.of_live(live.expected):
        yield "expected", job_text.expectation(expected)


def sparkline(values: Iterable[float]) -> str:
    """Return bars for values from 0 to the highest; as many columns for few values as for many."""
    points = list(values)
    top = max(points, default=0.0) or 1.0
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] for value in points).rjust(_POINTS)


def plain(text: str) -> str:
    """Return a line that a model printed without what would steer a terminal."""
    return "".join(one if one.isprintable() else " " for one in Text.from_ansi(text.rstrip()).plain)


def _conclude(job: Job, now: Status) -> None:
    """Print how it ended."""
    took = f" after {units.duration(now.seconds)}" if now.seconds else ""
    gone = ": its runner is gone" if now.state == "interrupted" else ""
    terminal.data(f"{now.job}: {now.state}{took}{gone}")
    terminal.data_fields(_summary(job, now))


def _summary(job: Job, now: Status) -> Iterator[tuple[str, str]]:
    yield from job_text.counts_of(now)
    yield from job_text.reasons_of(job.reasons())
    if now.peak_bytes:
        yield "peak memory", f"{terminal.size(now.peak_bytes)}, all processes of the job"
    if now.state in ("interrupted", "cancelled", "failed"):
        yield "go on", job_text.command("resume", job)
    yield "results", job_text.command("results", job)
