"""Shows the progress of a job that a program or notebook runs: a line in a terminal, a bar in Jupyter, else nothing."""

from __future__ import annotations

import html
import importlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from mops.units import bytes_text, duration, rate

if TYPE_CHECKING:
    from mops.attempt.reporting.progress import Snapshot

_CELL_SECONDS = 0.5
"""The least time between two updates of a notebook, which keeps each of them as a message."""

_CLEAR_LINE = "\r\x1b[K"


def figures(now: Snapshot) -> str:
    """Return the progress of a job in one line."""
    parts = [
        f"{now.finished.simulations:,} of {now.total:,} simulations",
        f"{now.finished.simulations_failed:,} failed",
        f"{now.left:,} left",
    ]
    if now.rate:
        parts.append(rate(now.rate))
    if now.seconds_left is not None and now.left:
        parts.append(f"{duration(now.seconds_left)} to go")
    if now.memory_bytes:
        parts.append(bytes_text(now.memory_bytes))
    return ", ".join(parts)


@contextmanager
def displayed() -> Iterator[Callable[[Snapshot], None]]:
    """Show a job while the body runs it, where a person may look."""
    if _in_kernel():
        with _cell() as show:
            yield show
    elif sys.stderr is not None and sys.stderr.isatty():
        with _line(sys.stderr) as show:
            yield show
    else:
        yield lambda _: None


def _in_kernel() -> bool:
    """Tell whether this process is the kernel of a notebook, which shows HTML."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def _line(terminal: TextIO) -> Iterator[Callable[[Snapshot], None]]:
    """Keep one line up to date, and remove it at the end."""

    def show(now: Snapshot) -> None:
        width = shutil.get_terminal_size().columns - 1
        terminal.write(_CLEAR_LINE + f"{now.job}: {figures(now)}"[:width])
        terminal.flush()

    try:
        yield show
    finally:
        terminal.write(_CLEAR_LINE)
        terminal.flush()


@contextmanager
def _cell() -> Iterator[Callable[[Snapshot], None]]:
    """Keep an output of the cell up to date. It stays, with the last figures."""
    ipython: Any = importlib.import_module("IPython.display")
    shown = ipython.display(ipython.HTML("<div>mops: importing the model</div>"), display_id=True)
    last: list[Snapshot] = []
    next_at = 0.0

    def show(now: Snapshot) -> None:
        nonlocal next_at
        last[:] = [now]
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + _CELL_SECONDS
            shown.update(ipython.HTML(as_html(now)))

    try:
        yield show
    finally:
        shown.update(ipython.HTML(as_html(last[0]) if last else ""))


def as_html(now: Snapshot) -> str:
    """Return the progress of a job as HTML: a bar and a line."""
    done, total = now.finished.simulations, max(now.total, 1)
    bar = f'<progress value="{done}" max="{total}" aria-label="simulations" style="width: 16em"></progress>'
    return f"<div><strong>{html.escape(now.job)}</strong> {bar} {html.escape(figures(now))}</div>"
