"""What the user sees: data on stdout, talk on stderr, a progress line while a job runs."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from mops.driver.progress import Snapshot
from mops.errors import MopsError

talk = Console(stderr=True, highlight=False, soft_wrap=True)
EXIT_CODES = {"succeeded": 0, "partial": 3, "failed": 1, "cancelled": 130}
_LINE_SECONDS = 10.0


def data(text: str) -> None:
    """Print data."""
    sys.stdout.write(text + "\n")


def data_json(value: object) -> None:
    """Print data as JSON."""
    data(json.dumps(value, indent=2, default=str))


def say(text: str) -> None:
    """Talk to the user."""
    talk.print(text, markup=False)


def error(problem: MopsError) -> None:
    """Say what failed, where, and what to do."""
    talk.print(f"error: {problem}", markup=False, style="red" if talk.is_terminal else None)


def set_up_logging(verbose: int) -> None:
    """Send mops's own log to stderr: warnings, or more with ``-v``."""
    logger = logging.getLogger("mops")
    logger.setLevel(min(logging.INFO, logging.WARNING - 10 * verbose))  # the job's log takes INFO in any case
    handler = RichHandler(console=talk, show_path=False, markup=False, log_time_format="%X")
    handler.setLevel(logging.WARNING - 10 * verbose)
    logger.handlers = [handler]


def duration(seconds: float) -> str:
    """Return seconds as people write them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"


def size(n_bytes: int) -> str:
    """Return bytes as people write them."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


@contextmanager
def progress() -> Iterator[Callable[[Snapshot], None]]:
    """Show a running job: a live line on a terminal, else a plain line every 10 s."""
    if talk.is_terminal:
        with _live() as show:
            yield show
    else:
        yield _Lines().show


@contextmanager
def _live() -> Iterator[Callable[[Snapshot], None]]:
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=talk, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(now: Snapshot) -> None:
            bar.update(task, total=now.total, completed=now.finished.simulations, description=_words(now))

        yield show


class _Lines:
    def __init__(self) -> None:
        self._last = time.monotonic()

    def show(self, now: Snapshot) -> None:
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            say(f"{now.finished.simulations}/{now.total} simulations, {_words(now)}")


def _words(now: Snapshot) -> str:
    failed = now.finished.simulations_failed
    parts = [f"{failed} failed" if failed else "", f"{now.rate:,.0f}/s" if now.rate >= 10 else f"{now.rate:.1f}/s"]
    if now.seconds_left is not None and now.left:
        parts.append(f"{duration(now.seconds_left)} left")
    if now.memory_bytes:
        parts.append(size(now.memory_bytes))
    return ", ".join(part for part in parts if part)
