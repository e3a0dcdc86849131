"""The state of a job as HTML."""

from __future__ import annotations

import html

from mops.jobs.status import Status


def as_html(now: Status) -> str:
    """Return the name, the state and the progress of a job, and its failures by verdict."""
    counts = now.live.counts if now.live and now.live.counts.simulations > now.counts.simulations else now.counts
    bar = (
        f'<progress value="{counts.simulations}" max="{max(now.n_simulations, 1)}" aria-label="simulations" '
        'style="width: 16em"></progress>'
    )
    figures = f"{counts.simulations:,} of {now.n_simulations:,} simulations, {counts.simulations_failed:,} failed"
    verdicts = "".join(f", {n:,} {verdict}" for verdict, n in sorted(counts.verdicts.items(), key=lambda one: -one[1]))
    state = html.escape(f"{now.state}: {figures}{verdicts}")
    return f"<div><strong>{html.escape(now.job)}</strong> {bar} {state}</div>"
