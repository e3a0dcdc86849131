"""Shows the progress of a job that a program or notebook runs: a line in a terminal, a bar in a notebook, else nothing.

Jupyter, VS Code and nbconvert get display updates. marimo has no such messages, so its cell gets a new output.
"""

from __future__ import annotations

import html
import importlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from mops.study.entry_point import loss_labels
from mops.study.ids_and_seeds import short_id
from mops.units import bytes_text, duration, rate

if TYPE_CHECKING:
    from mops.storage.progress_record import BestLoss, Progress, SlowStep

_CELL_SECONDS = 0.5  # the least time between two updates of a notebook, which keeps each of them as a message

_CLEAR_LINE = "\r\x1b[K"
_LOSSES_SHOWN = 3
_BEFORE = "importing the model"

Show = Callable[[str, str], None]  # shows HTML in a cell, or text where HTML cannot be shown


def figures(now: Progress) -> str:
    """Return the progress of a job in one line."""
    parts = [
        f"{now.finished.simulations:,} of {now.total:,} simulations",
        f"{now.finished.simulations_failed:,} failed",
        f"{now.left:,} left",
    ]
    if now.rate:
        parts.append(rate(now.rate))
    if text := now.outlook:
        parts.append(text)
    if now.memory_bytes:
        parts.append(bytes_text(now.memory_bytes))
    return ", ".join(parts)


def slow_text(step: SlowStep) -> str:
    """Return a simulation or target that stands out, for people."""
    what = f"target {step.target}" if step.replicate is None else f"replicate {step.replicate}"
    times = f", {step.times_median:,.0f} times the median" if step.times_median else ""
    since = datetime.fromtimestamp(step.since)
    name = f"group {step.group} ({short_id(step.param_id)}) {what} on {step.worker}"
    return f"{name}: {duration(step.seconds)}, since {since:%H:%M:%S}{times}"


def best_losses(best: Sequence[BestLoss]) -> list[tuple[str, str]]:
    """Return the smallest losses so far: each with its label and its parameter set. Of many, only some."""
    labels = loss_labels((one.target, one.name) for one in best)
    return [
        (f"{one.loss:.4g}", f"{labels[one.target, one.name]} ({short_id(one.param_id)})")
        for one in best[:_LOSSES_SHOWN]
    ]


def displayed() -> AbstractContextManager[Callable[[Progress], None]]:
    """Show a job while the body runs it, where a person may look."""
    if (show := _cell_of_marimo() or _cell_of_jupyter()) is not None:
        return _updates(show)
    if sys.stderr is not None and sys.stderr.isatty():
        return _line(sys.stderr)
    return nullcontext(lambda _: None)


def _cell_of_marimo() -> Show | None:
    """Return what shows HTML in the present cell of marimo; None: no such cell runs."""
    marimo: Any = sys.modules.get("marimo")
    if marimo is None or not marimo.running_in_notebook():
        return None
    return lambda text, _: marimo.output.replace(marimo.Html(text))


def _cell_of_jupyter() -> Show | None:
    """Return what shows HTML in the present cell of Jupyter; None: this process is not a kernel."""
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None
    shown = importlib.import_module("IPython.display").display(_bundle("", _BEFORE), raw=True, display_id=True)
    return lambda text, plain: shown.update(_bundle(text, plain), raw=True)


def _bundle(text: str, plain: str) -> dict[str, str]:
    return {"text/html": text, "text/plain": plain}


@contextmanager
def _line(terminal: TextIO) -> Iterator[Callable[[Progress], None]]:
    """Keep one line up to date, and remove it at the end."""

    def show(now: Progress) -> None:
        width = shutil.get_terminal_size().columns - 1
        terminal.write(_CLEAR_LINE + f"{now.job}: {figures(now)}"[:width])
        terminal.flush()

    try:
        yield show
    finally:
        terminal.write(_CLEAR_LINE)
        terminal.flush()


@contextmanager
def _updates(cell: Show) -> Iterator[Callable[[Progress], None]]:
    """Keep an output of the cell up to date. It stays, with the last figures."""
    cell(f"<div>mops: {_BEFORE}</div>", f"mops: {_BEFORE}")
    last: list[Progress] = []
    next_at = 0.0

    def show(now: Progress) -> None:
        nonlocal next_at
        last[:] = [now]
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + _CELL_SECONDS
            cell(as_html(now), f"{now.job}: {figures(now)}")

    try:
        yield show
    finally:
        cell(as_html(last[0]) if last else "", f"{last[0].job}: {figures(last[0])}" if last else "")


def as_html(now: Progress) -> str:
    """Return the progress of a job as HTML: a bar and a line."""
    return bar(now.job, now.finished.simulations, now.total, figures(now))


def bar(job: str, done: int, total: int, text: str) -> str:
    """Return a job's name, a bar and a text as HTML. Colours are those of the page, so a dark theme works."""
    return (
        '<div style="display: flex; flex-wrap: wrap; align-items: center; gap: 0.3em 0.8em">'
        f"<strong>{html.escape(job)}</strong>"
        f'<progress value="{done}" max="{max(total, 1)}" aria-label="simulations" style="width: 16em"></progress>'
        f"<span>{html.escape(text)}</span></div>"
    )
