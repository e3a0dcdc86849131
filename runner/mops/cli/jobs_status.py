"""``mops jobs status``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict

from mops.cli import terminal
from mops.cli.jobs_submit import JobArgument, JsonOption, StorageOption
from mops.job import Status, open_job


def status(job: JobArgument, storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """Say where a job stands: its state, what is committed, its runner's last sign of life."""
    now = open_job(job, storage).status()
    if as_json:
        terminal.data_json(asdict(now))
    else:
        for name, value in _lines(now):
            terminal.data(f"{name:<13}{value}")


def _lines(now: Status) -> Iterator[tuple[str, str]]:
    counts = now.counts
    yield "job", now.job
    yield "state", now.state + (f"; go on with: mops jobs resume {now.job}" if now.state == "interrupted" else "")
    yield "submitted", now.created
    yield "attempt", str(now.attempt)
    yield "committed", f"{now.groups:,} of {now.n_groups:,} parameter sets"
    yield (
        "simulations",
        f"{counts.simulations_good:,} good, {counts.simulations_failed:,} failed, of {now.n_simulations:,}",
    )
    yield "targets", f"{counts.targets_good:,} scored, {counts.targets_failed:,} failed"
    if now.live is not None and now.state == "running":
        live = now.live
        yield (
            "running",
            (
                f"{live.counts.simulations:,} simulations finished, {live.rate:,.1f}/s, "
                f"{terminal.size(live.memory_bytes)}, on {live.host} (process {live.pid}), "
                f"seen {terminal.duration(max(time.time() - live.at, 0))} ago"
            ),
        )
