"""``mops jobs status``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from mops import units
from mops.cli import job_text, terminal
from mops.cli.options import JobArgument, JsonOption, LocalOption, StorageOption
from mops.jobs.location import service_with
from mops.jobs.status import JobState, Status, storage_of
from mops.storage.live_record import Live

if TYPE_CHECKING:
    from mops.jobs.results import Reason
    from mops.k8s.job_phase import Phase


def status(
    job: JobArgument, storage: StorageOption = None, local: LocalOption = False, as_json: JsonOption = False
) -> None:
    """Show the state of a job.

    The command prints what is committed, why simulations failed, and when the runner was last seen.

    Example:

        mops jobs status waves
    """
    found = JobState(storage_of(job, storage, local=local), job)
    now = found.status()
    complete = now.state in ("succeeded", "partial")
    service = None if complete else service_with(found.files, local=local)
    phase = service.phase(job) if service else None
    cluster = service.dedicated_state(job) if service and phase and not phase.over else ""
    if as_json:
        more = {"kubernetes": asdict(phase) | {"dask_cluster": cluster}} if phase else {}
        terminal.data_json(asdict(now) | {"reasons": [asdict(reason) for reason in _reasons(found, now)]} | more)
    else:
        terminal.data_fields(_fields(found, now, phase, cluster))


def _reasons(job: JobState, now: Status) -> list[Reason]:
    if not now.counts.failed and now.parent is None:
        return []
    from mops.jobs.job import Job  # noqa: PLC0415 - Arrow: 0.3 s, and most jobs have no failures

    return Job(job.files, job.name).reasons()


def _kubernetes(phase: Phase, dask_cluster: str) -> Iterator[tuple[str, str]]:
    yield "Kubernetes", str(phase)
    if phase.pod:
        yield "", f"pod {phase.pod}"
    if phase.hint:
        yield "", phase.hint
    if dask_cluster:
        yield "Dask cluster", dask_cluster


def _fields(job: JobState, now: Status, phase: Phase | None, dask_cluster: str) -> Iterator[tuple[str, str]]:
    yield "job", now.job
    yield "state", now.state
    if phase is not None:
        yield from _kubernetes(phase, dask_cluster)
    yield "submitted", units.moment(now.created)
    if now.parent is not None:
        yield "derived from", now.parent
    yield "attempts", str(now.attempt)
    yield from job_text.counts_of(now)
    yield from job_text.reasons_of(_reasons(job, now))
    if now.live is not None:
        yield from _runner(now.live)
    if now.children:
        yield "child processes", now.children
    if now.sizing:
        yield "batch size", now.sizing
    if now.state in ("interrupted", "cancelled", "submitted") and (phase is None or phase.over):
        yield "continue", job_text.command("resume", job)
    if now.state == "failed":
        yield "why", job_text.command("logs", job)


def _runner(live: Live) -> Iterator[tuple[str, str]]:
    age = units.duration(max(time.time() - live.at, 0))
    yield "runner", f"process {live.pid} on {live.host}, last seen {age} ago"
    finished = live.counts.simulations
    yield "", f"{finished:,} simulations finished, {finished - live.durable:,} not durable yet, {units.rate(live.rate)}"
    yield "", f"{units.counted(live.in_flight, 'parameter set')} in flight, {live.slots:,} simulations at once"
    yield "", f"{terminal.size(live.memory_bytes)} of memory, {terminal.size(live.peak_bytes)} at its peak"
    if live.counts.verdicts:
        yield "", f"failed: {job_text.verdicts(live.counts)}"
