"""The state of a job as HTML."""

from __future__ import annotations

from mops.attempt.display import bar
from mops.jobs.status import Status


def as_html(now: Status) -> str:
    """Return the name, the state and the progress of a job, and its failures by verdict."""
    counts = now.finished
    figures = f"{counts.simulations:,} of {now.n_simulations:,} simulations, {counts.simulations_failed:,} failed"
    text = ", ".join([f"{now.state}: {figures}", *counts.by_verdict])
    return bar(now.job, counts.simulations, now.n_simulations, text)
