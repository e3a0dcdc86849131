"""What submit and resume show of a job that runs here: its plan, its progress, its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import typer

from mops.cli import terminal
from mops.driver.progress import Snapshot
from mops.job import Job
from mops.launch import Prepared

_REASONS_SHOWN = 5


class Shown:
    """Takes a job's events and shows them."""

    def __init__(self, show: Callable[[Snapshot], None], *, as_json: bool):
        self._show, self._as_json = show, as_json
        self._last: Snapshot | None = None

    def started(self, prepared: Prepared, job: Job) -> None:
        """Say what runs."""
        study = prepared.study
        for warning in study.warnings:
            terminal.say(f"note: {warning}")
        terminal.say(
            f"job {job.name}: {len(study.groups):,} parameter sets, {study.n_simulations:,} simulations, "
            f"{len(prepared.spec.targets)} targets; results in {job.files.url}"
        )

    def resumed(self, job: Job) -> None:
        """Say what goes on."""
        status = job.status()
        terminal.say(f"job {job.name}: goes on, {status.groups:,} of {status.n_groups:,} parameter sets are committed")

    def progress(self, now: Snapshot) -> None:
        """Show where it stands."""
        self._last = now
        self._show(now)

    def ended(self, job: Job) -> None:
        """Say how it ended, and exit with the state's code."""
        status = job.status()
        if self._as_json:
            terminal.data_json(asdict(status))
        else:
            terminal.data(job.name)
        for line in self._summary(job):
            terminal.say(line)
        raise typer.Exit(terminal.EXIT_CODES[status.state])

    def _summary(self, job: Job) -> Iterator[str]:
        status, counts = job.status(), job.status().counts
        seconds = f" after {terminal.duration(self._last.seconds)}" if self._last else ""
        simulations = f"{counts.simulations_good:,} simulations good, {counts.simulations_failed:,} failed"
        yield f"{status.state}{seconds}: {simulations}"
        if counts.targets_good or counts.targets_failed:
            yield f"  targets: {counts.targets_good:,} scored, {counts.targets_failed:,} failed"
        if self._last and self._last.peak_bytes:
            yield f"  peak memory of all processes: {terminal.size(self._last.peak_bytes)}"
        if status.state == "partial":
            yield from _reasons(job)
        if status.state == "cancelled":
            yield f"  {status.groups:,} of {status.n_groups:,} parameter sets are committed"
            yield f"  go on with: mops jobs resume {job.name}"
        else:
            yield f"  read the results: mops jobs results {job.name}"


def _reasons(job: Job) -> Iterator[str]:
    failures = job.failures().select(["reason", "message"]).to_pylist()
    counted = Counter((row["reason"], row["message"].split("\n")[0][:120]) for row in failures)
    for (reason, message), n in counted.most_common(_REASONS_SHOWN):
        yield f"  {n:>6,} x {reason}: {message}"
    if len(counted) > _REASONS_SHOWN:
        yield f"         and {len(counted) - _REASONS_SHOWN} other kinds"


@contextmanager
def shown(*, as_json: bool) -> Iterator[Shown]:
    """Show a job while it runs in the body."""
    with terminal.progress() as show:
        yield Shown(show, as_json=as_json)
