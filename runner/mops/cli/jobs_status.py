"""``mops jobs status``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict

from mops.cli import running, terminal
from mops.cli.jobs_submit import JobArgument, JsonOption, StorageOption
from mops.job import Job, Status, open_job
from mops.storage.jobs import Live


def status(job: JobArgument, storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """Say where a job stands.

    Its state, what is committed, why simulations failed, and its runner's last sign of life.
    """
    found = open_job(job, storage)
    now = found.status()
    if as_json:
        terminal.data_json(asdict(now) | {"reasons": [asdict(reason) for reason in found.reasons()]})
    else:
        terminal.data_fields(_fields(found, now))


def _fields(job: Job, now: Status) -> Iterator[tuple[str, str]]:
    yield "job", now.job
    yield "state", now.state
    yield "submitted", now.created
    if now.parent is not None:
        yield "derived from", now.parent
    yield "attempts", str(now.attempt)
    yield from running.counts_of(now)
    yield from running.reasons_of(job.reasons())
    if now.live is not None:
        yield from _runner(now.live)
    if now.children:
        yield "child processes", now.children
    if now.sizing:
        yield "batch size", now.sizing
    if now.state in ("interrupted", "cancelled", "submitted"):
        yield "go on", running.command("resume", job)
    if now.state == "failed":
        yield "why", running.command("logs", job)


def _runner(live: Live) -> Iterator[tuple[str, str]]:
    age = terminal.duration(max(time.time() - live.at, 0))
    yield "runner", f"process {live.pid} on {live.host}, last seen {age} ago"
    done = (
        f"{live.counts.simulations:,} simulations finished, {live.counts.simulations - live.durable:,} not durable yet"
    )
    yield "", f"{done}, {terminal.rate(live.rate)}"
    yield "", f"{running.counted(live.in_flight, 'parameter set')} in flight, {live.slots:,} simulations at once"
    yield "", f"{terminal.size(live.memory_bytes)}, at most {terminal.size(live.peak_bytes)}"
    if live.counts.verdicts:
        yield "", f"failed: {running.verdicts(live.counts)}"
