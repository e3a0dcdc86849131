"""The screen of a running job in a terminal: a title and fields, laid out for the width of the terminal.

A narrow terminal shows no ornaments (bars and spark lines), and then no fields of little weight. It never cuts a label
or a figure: what does not fit continues on the next line. Only messages and lines of the log are cut.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from mops import units
from mops.attempt.display import best_losses, slow_text

if TYPE_CHECKING:
    from mops.storage.progress_record import Progress

RATE_SECONDS = 5.0
"""A spark line has a column for each 5 s, so it shows the last two minutes."""

MOST_POINTS = 24
_WIDE_COLUMNS = 100
_ORNAMENT_COLUMNS = 72
_DETAIL_COLUMNS = 60
_SLOW_SHOWN = 3
_BARS = "▁▂▃▄▅▆▇█"
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Field:
    """A label, and figures about it.

    Parameters
    ----------
    parts
        The figures. A line ends only between two of them, if there is room for each.
    ornament
        Returns a picture of the figures with so many columns; None: there is none.
    lines
        Messages below the figures, of which a terminal shows as much as fits on a line each.
    is_detail
        Whether a narrow terminal leaves the field out.
    """

    label: str
    parts: Sequence[str]
    ornament: Callable[[int], str] | None = None
    lines: Sequence[str] = ()
    style: str = ""
    is_detail: bool = False


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
    text, columns = ", ".join(one.parts), _ornament_columns(width)
    if one.ornament and columns and columns + 2 + cell_len(text) <= room:
        yield Text(f"{one.ornament(columns)}  {text}", one.style)
    else:
        for line in _filled(one.parts, room):
            yield from Text(line, one.style).wrap(console, room, overflow="fold")
    for message in one.lines:
        yield _cut(Text(message, one.style), room)


def _ornament_columns(width: int) -> int:
    if width < _ORNAMENT_COLUMNS:
        return 0
    return MOST_POINTS if width >= _WIDE_COLUMNS else MOST_POINTS // 2


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
    return "".join(one if one.isprintable() else " " for one in units.printable(text.rstrip()))


def sparkline(values: Iterable[float], columns: int) -> str:
    """Return a bar for each of the last values, from 0 to the highest, in a fixed number of columns."""
    points = list(values)[-columns:]
    top = max(points, default=0.0) or 1.0
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] for value in points).rjust(columns)


def bar(share: float, columns: int) -> str:
    """Return a bar of which a share is filled; it is legible without colour."""
    filled = round(min(max(share, 0.0), 1.0) * columns)
    return "━" * filled + "─" * (columns - filled)


def fields_of(now: Progress, rates: Sequence[float], time_s: float | None = None) -> Iterator[Field]:
    """Yield what a terminal shows of a job's progress, the fields of most weight first.

    Parameters
    ----------
    rates
        The rates of the last minutes.
    time_s
        The present time (s since the epoch), for the end of the job; None: now.
    """
    done, total = now.finished.simulations, max(now.total, 1)
    yield Field(
        "simulations",
        [
            f"{done:,} of {now.total:,}",
            f"{now.finished.simulations_failed:,} failed",
            f"{now.left:,} left",
            f"{_whole_percent(done, total)} %",
        ],
        lambda columns: bar(done / total, columns),
    )
    yield Field("elapsed", [units.duration(now.seconds), *_end(now, time.time() if time_s is None else time_s)])
    yield Field(
        "rate", [units.rate(now.rate) if now.rate else "no rate yet"], lambda columns: sparkline(rates, columns)
    )
    if now.memory_bytes:
        yield _memory(now)
    yield Field("durable", [f"{now.durable.simulations:,} of {done:,} finished", *_next_commit(now.next_commit_s)])
    if now.best:
        best = [" ".join(both) for both in best_losses(now.best)]
        more = len(now.best) - len(best)
        yield Field("best loss", [*best, *([f"and {units.counted(more, 'other loss')}"] if more else [])])
    if now.slow:
        yield Field(
            "slow", [units.counted(len(now.slow), "simulation")], lines=list(map(slow_text, now.slow[:_SLOW_SHOWN]))
        )
    if now.finished.verdicts:
        causes = [f"{cause.n:,} x {cause.verdict}: {plain(cause.message)}" for cause in now.causes]
        # Causes are of this attempt, and only the most frequent ones.
        if causes and (others := sum(now.finished.verdicts.values()) - sum(cause.n for cause in now.causes)) > 0:
            causes.append(f"{others:,} others: mops jobs failures {now.job}")
        yield Field("failures", now.finished.by_verdict, lines=causes, style="red")
    in_flight = [f"{units.counted(now.in_flight, 'parameter set')}", f"{now.slots:,} simulations at once"]
    yield Field("in flight", in_flight, is_detail=True)


def _whole_percent(done: int, total: int) -> int:
    """Return the percentage, which is 100 only at the end."""
    return 100 * done // total


def _end(now: Progress, time_s: float) -> Iterator[str]:
    if text := units.to_go(now.seconds_left, len(now.slow)):
        yield text
    left = now.seconds_left
    if not left or now.slow:
        return
    end = datetime.fromtimestamp(time_s + left)
    yield f"ends at {end:%H:%M}" if left < _DAY_SECONDS / 2 else f"ends {end:%Y-%m-%d %H:%M}"


def _memory(now: Progress) -> Field:
    used = units.bytes_text(now.memory_bytes)
    if not now.limit_bytes:
        return Field("memory", [used, f"peak {units.bytes_text(now.peak_bytes)}"])
    share = now.memory_bytes / now.limit_bytes
    parts = [f"{used} of {units.bytes_text(now.limit_bytes)}", f"peak {units.bytes_text(now.peak_bytes)}"]
    return Field("memory", parts, lambda columns: bar(share, columns))


def _next_commit(next_commit_s: float | None) -> Iterator[str]:
    if next_commit_s is not None:
        yield f"next commit in {units.duration(next_commit_s)}"
