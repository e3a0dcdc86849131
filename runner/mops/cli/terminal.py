"""Writes to the terminal: data to stdout, messages to stderr, live progress while a job runs.

A text may come from a model, so no function here passes on the escape sequences of a text.
"""

from __future__ import annotations

import json
import logging
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mops.attempt.display import figures
from mops.cli.job_screen import JobScreen, Rates, fields_of
from mops.errors import MopsError, UsageError
from mops.units import bytes_text, printable, without_varying
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
    """Print data as JSON."""
    data(json.dumps(value, indent=2, default=str))


def data_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print a table; a terminal folds long cells, other outputs get one line for each row.

    Parameters
    ----------
    right
        The columns to align on the right.
    """
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


def data_paragraph(text: str, *, indent: str = "", first: str | None = None) -> None:
    """Print a paragraph; a terminal gets lines of its width, other outputs get one line.

    Parameters
    ----------
    indent
        The start of each line.
    first
        The start of the first line; None: as of the others.
    """
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


def confirmed(question: str, *, option: str) -> bool:
    """Ask the user at the terminal; no answer means no.

    Parameters
    ----------
    option
        The option that skips the question.

    Raises
    ------
    UsageError
        Stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "the command cannot ask for confirmation, because stdin is not a terminal",
            where="stdin",
            hint=f"add {option}",
        )
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
