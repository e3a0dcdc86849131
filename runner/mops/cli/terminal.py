"""Writes to the terminal: data to stdout, messages to stderr, the screen of a job while it runs.

A text may come from a model, so no function here passes on the escape sequences of a text.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import textwrap
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mops.attempt.display import best_losses, figures, slow_text
from mops.errors import MopsError, UsageError
from mops.units import bytes_text, counted, duration, printable, rate, without_varying
from mops.verdicts import Report

if TYPE_CHECKING:
    from mops.storage.progress_record import Progress

AS_IS: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
stderr = Console(stderr=True, soft_wrap=True, **AS_IS)
EXIT_CODES = {"succeeded": 0, "partial": 3, "failed": 1, "cancelled": 130}
size = bytes_text
_LINE_SECONDS = 10.0
_PER_SECOND = 4
_EQUAL_SHOWN = 5
_PIPE_COLUMNS = 100_000  # so that each record is one line


def data(text: str) -> None:
    """Print data."""
    sys.stdout.write(printable(text) + "\n")


def data_text(text: str) -> None:
    """Print text at once, without another end of line."""
    sys.stdout.write(printable(text))
    sys.stdout.flush()


def data_json(value: object) -> None:
    """Print data as JSON, which has no NaN and no infinity: they become null."""
    data(json.dumps(_finite(value), indent=2, default=str, allow_nan=False))


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def data_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),  # the columns to align on the right
) -> None:
    """Print a table; a terminal folds long cells, other outputs get one line for each row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    out = Console(**AS_IS, width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")  # with the styles of the table


def data_paragraph(
    text: str,
    *,
    indent: str = "",  # the start of each line
    first: str | None = None,  # the start of the first line; None: as of the others
) -> None:
    """Print a paragraph; a terminal gets lines of its width, other outputs get one line."""
    width = Console().width if sys.stdout.isatty() else _PIPE_COLUMNS
    first = indent if first is None else first
    data(
        textwrap.fill(
            text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    )


def data_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    for line in _aligned(fields):
        data(line)


def confirmed(
    question: str,
    *,
    option: str,  # that skips the question
) -> bool:
    """Ask the user at the terminal; no answer means no. Raise UsageError if stdin is not a terminal."""
    if not sys.stdin.isatty():
        what = "the command cannot ask for confirmation, because stdin is not a terminal"
        raise UsageError(what, where="stdin", hint=f"add {option}")
    stderr.print(f"{question} [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def say(text: str) -> None:
    """Print a message to stderr."""
    stderr.print(printable(text))


def say_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print names and values to stderr in two columns; an empty name continues the entry above."""
    for line in _aligned(fields):
        say(f"  {line}")


def _aligned(fields: Iterable[tuple[str, str]]) -> Iterator[str]:
    lines = list(fields)
    width = max((len(name) for name, _ in lines), default=0)
    return (f"{name:<{width}}  {value}" for name, value in lines)


def error(problem: MopsError) -> None:
    """Print an error to stderr."""
    stderr.print(f"error: {printable(str(problem))}", style="red" if stderr.is_terminal else None)


class _StderrHandler(logging.Handler):
    """Prints each log record as one line above the live progress; of equal failures only the first few."""

    def __init__(self, level: int):
        super().__init__(level)
        self._printed: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.levelname.lower()}: {self.format(record)}"
        for report in (found for found in record.args or () if isinstance(found, Report)):
            kind = without_varying(f"{report.kind}; {report.then}")
            self._printed[kind] += 1
            if self._printed[kind] > _EQUAL_SHOWN and self.level >= logging.WARNING:
                return
            if self._printed[kind] == _EQUAL_SHOWN:
                line += " (more of these only in the job's log: mops jobs logs)"
        say(line)


def set_up_logging(verbose: int) -> None:
    """Print the log of mops to stderr: warnings, or more with ``-v``."""
    logger = logging.getLogger("mops")
    logger.setLevel(min(logging.INFO, logging.WARNING - 10 * verbose))  # the job's log always has INFO
    logger.handlers = [_StderrHandler(logging.WARNING - 10 * verbose)]


@contextmanager
def progress() -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a job: live on a terminal, else a line every 10 s."""
    # FORCE_COLOR makes a terminal of each output for rich, and a file needs no control codes.
    if sys.stderr.isatty() and not stderr.is_dumb_terminal:
        shown = _Shown()
        with Live(console=stderr, transient=True, refresh_per_second=_PER_SECOND, get_renderable=shown.screen):
            yield shown.show
    else:
        yield _Lines().show


class _Shown:
    """The last progress, which the terminal shows a few times a second."""

    def __init__(self) -> None:
        self._last: Progress | None = None
        self._rates = Rates()
        self._start = Spinner("dots", "starting: importing the model")

    def show(self, now: Progress) -> None:
        self._last = now
        self._rates.add(now.job, now.seconds, now.rate)

    def screen(self) -> RenderableType:
        now = self._last
        if now is None:
            return self._start
        return JobScreen(f"{now.job}: running", list(fields_of(now, list(self._rates.kept))))


class _Lines:
    def __init__(self) -> None:
        self._last = time.monotonic()

    def show(self, now: Progress) -> None:
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            say(figures(now))


# The screen of a running job: a title and fields, laid out for the width of the terminal. A narrow terminal shows no
# ornaments (bars and spark lines), and then no fields of little weight. It never cuts a label or a figure: what does
# not fit continues on the next line. Only messages and lines of the log are cut.

RATE_SECONDS = 5.0  # for each column of a spark line, so it shows the last two minutes
MOST_POINTS = 24
_WIDE_COLUMNS = 100
_ORNAMENT_COLUMNS = 72
_DETAIL_COLUMNS = 60
_SLOW_SHOWN = 3
_BARS = "▁▂▃▄▅▆▇█"
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Field:
    """A label, and figures about it."""

    label: str
    parts: Sequence[str]  # the figures; a line ends only between two of them, if there is room for each
    ornament: Callable[[int], str] | None = None  # returns a picture of the figures with so many columns
    lines: Sequence[str] = ()  # messages below the figures, of which a terminal shows as much as fits on a line each
    style: str = ""
    is_detail: bool = False  # whether a narrow terminal leaves the field out


@dataclass(frozen=True)
class JobScreen:
    """A screen for rich: the title, the fields, the last lines of the log."""

    title: str
    fields: Sequence[Field]
    log: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines of the screen, none of which is wider than the terminal."""
        width = options.max_width
        shown = [one for one in self.fields if width >= _DETAIL_COLUMNS or not one.is_detail]
        if options.ascii_only:
            shown = [replace(one, ornament=None) for one in shown]
        indent = max((cell_len(one.label) for one in shown), default=0) + 2
        yield from Text(self.title, "bold").wrap(console, width, overflow="fold")
        for one in shown:
            for i, line in enumerate(_field_lines(one, width, max(width - indent, 1), console)):
                yield Text((one.label if i == 0 else "").ljust(indent)) + line
        for text in self.log:
            yield _cut(Text(text, "dim"), width)


def _field_lines(one: Field, width: int, room: int, console: Console) -> Iterator[Text]:
    text = ", ".join(one.parts)
    columns = MOST_POINTS if width >= _WIDE_COLUMNS else MOST_POINTS // 2
    if one.ornament and width >= _ORNAMENT_COLUMNS and columns + 2 + cell_len(text) <= room:
        yield Text(f"{one.ornament(columns)}  {text}", one.style)
    else:
        for line in _filled(one.parts, room):
            yield from Text(line, one.style).wrap(console, room, overflow="fold")
    for message in one.lines:
        yield _cut(Text(message, one.style), room)


def _filled(parts: Sequence[str], room: int) -> Iterator[str]:
    """Yield lines of parts with commas between them, as many parts on a line as fit."""
    line = ""
    for i, part in enumerate(parts):
        text = part if i == len(parts) - 1 else f"{part},"
        if line and cell_len(line) + 1 + cell_len(text) > room:
            yield line
            line = text
        else:
            line = f"{line} {text}" if line else text
    yield line


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text


@dataclass
class Rates:
    """Simulations per second over the last minutes, for a spark line."""

    kept: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_POINTS))
    job: str = ""
    _at: float = float("-inf")

    def add(self, job: str, at_s: float, rate: float) -> None:
        """Take the rate of a job at a moment; a rate less than 5 s after another replaces that one."""
        if job != self.job:  # a calibration runs a job for each round
            self.job, self._at = job, float("-inf")
            self.kept.clear()
        if at_s - self._at >= RATE_SECONDS:
            self._at = at_s
            self.kept.append(rate)
        else:
            self.kept[-1] = rate


def plain(text: str) -> str:
    """Return a line that a model printed or raised, without control characters, tabs and characters without a width."""
    return "".join(one if one.isprintable() else " " for one in printable(text.rstrip()))


def sparkline(values: Iterable[float], columns: int) -> str:
    """Return a bar for each of the last values, from 0 to the highest, in a fixed number of columns."""
    points = list(values)[-columns:]
    top = max(points, default=0.0) or 1.0
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] for value in points).rjust(columns)


def bar(share: float, columns: int) -> str:
    """Return a bar of which a share is filled; it is legible without colour."""
    filled = round(min(max(share, 0.0), 1.0) * columns)
    return "━" * filled + "─" * (columns - filled)


def fields_of(
    now: Progress,
    rates: Sequence[float],  # of the last minutes
    time_s: float | None = None,  # the present time (s since the epoch), for the end of the job; None: now
) -> Iterator[Field]:
    """Yield what a terminal shows of a job's progress, the fields of most weight first."""
    done, total = now.finished.simulations, max(now.total, 1)
    percent = 100 * done // total  # 100 only at the end
    counts = [f"{done:,} of {now.total:,}", f"{now.finished.simulations_failed:,} failed", f"{now.left:,} left"]
    yield Field("simulations", [*counts, f"{percent} %"], lambda columns: bar(done / total, columns))
    yield Field("elapsed", [duration(now.seconds), *_end(now, time.time() if time_s is None else time_s)])
    yield Field("rate", [rate(now.rate) if now.rate else "no rate yet"], lambda columns: sparkline(rates, columns))
    used, peak, limit = bytes_text(now.memory_bytes), f"peak {bytes_text(now.peak_bytes)}", now.limit_bytes
    if now.memory_bytes and limit:
        share = now.memory_bytes / limit
        yield Field("memory", [f"{used} of {bytes_text(limit)}", peak], lambda columns: bar(share, columns))
    elif now.memory_bytes:
        yield Field("memory", [used, peak])
    next_commit = [] if now.next_commit_s is None else [f"next commit in {duration(now.next_commit_s)}"]
    yield Field("durable", [f"{now.durable.simulations:,} of {done:,} finished", *next_commit])
    if now.best:
        best = [" ".join(both) for both in best_losses(now.best)]
        more = len(now.best) - len(best)
        yield Field("best loss", [*best, *([f"and {counted(more, 'other loss')}"] if more else [])])
    if now.slow:
        slow = list(map(slow_text, now.slow[:_SLOW_SHOWN]))
        yield Field("slow", [counted(len(now.slow), "simulation")], lines=slow)
    if now.finished.verdicts:
        causes = [f"{cause.n:,} x {cause.verdict}: {plain(cause.message)}" for cause in now.causes]
        # Causes are of this attempt, and only the most frequent ones.
        if causes and (others := sum(now.finished.verdicts.values()) - sum(cause.n for cause in now.causes)) > 0:
            causes.append(f"{others:,} others: mops jobs failures {now.job}")
        yield Field("failures", now.finished.by_verdict, lines=causes, style="red")
    in_flight = [counted(now.in_flight, "parameter set"), f"{now.slots:,} simulations at once"]
    yield Field("in flight", in_flight, is_detail=True)


def _end(now: Progress, time_s: float) -> Iterator[str]:
    if text := now.outlook:
        yield text
    left = now.seconds_left
    if not left or now.slow:
        return
    end = datetime.fromtimestamp(time_s + left)
    yield f"ends at {end:%H:%M}" if left < _DAY_SECONDS / 2 else f"ends {end:%Y-%m-%d %H:%M}"
