"""``mops jobs status``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mops import units
from mops.cli import job_text, terminal
from mops.cli.loss_table import loss_fields, print_losses
from mops.cli.options import JobArgument, JsonOption, LocalOption, StorageOption
from mops.jobs.following import with_runner
from mops.jobs.location import service_with
from mops.jobs.status import JobMoment, JobState, Status, seen_text, storage_of
from mops.storage.kept_options import read_options
from mops.storage.progress_record import Progress

if TYPE_CHECKING:
    from mops.jobs.figure_data import LossSummary
    from mops.jobs.summary import Reason
    from mops.k8s.job_phase import Phase


def status(
    job: JobArgument,
    losses: Annotated[
        bool, typer.Option("--losses", help="Show how each loss is spread, and the five best parameter sets")
    ] = False,
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a job.

    The command prints what is committed, why simulations failed, and when the runner was last seen. 'finished' and
    'durable' count simulations: those that have run, and those that are committed.

    Example:

        mops jobs status waves

        mops jobs status waves --losses
    """
    found = JobState(storage_of(job, storage, local=local), job)
    moment = JobMoment.read(found.files, job)
    service = None if moment.view.complete else service_with(found.files, local=local)
    phase = service.phase(job) if service else None
    if phase is not None:  # the runner may have finished the job before Kubernetes answered
        moment = JobMoment.read(found.files, job)
    now = with_runner(moment.status, phase)
    reasons = _reasons(moment)
    cluster = service.dedicated_state(job) if service and phase and not phase.over else ""
    summary = _summary(moment) if losses else None
    if as_json:
        kubernetes = {"kubernetes": asdict(phase) | {"dask_cluster": cluster}} if phase else {}
        terminal.data_json(_as_json(now, reasons, summary) | kubernetes)
        return
    terminal.data_fields([*_fields(found, moment, now, reasons, phase, cluster), *loss_fields(found, now, summary)])
    if summary is not None and summary.spreads and summary.best is not None:
        print_losses(summary.spreads, summary.best)


def _as_json(now: Status, reasons: list[Reason], summary: LossSummary | None) -> dict[str, object]:
    finished = {
        "simulations_finished": now.finished.simulations,
        "simulations_durable": now.counts.simulations,
        "reasons": [asdict(reason) for reason in reasons],
    }
    return asdict(now) | finished | ({"losses": asdict(summary)} if summary is not None else {})


def _summary(moment: JobMoment) -> LossSummary:
    from mops.jobs.data import JobData  # noqa: PLC0415 - Arrow, as in _reasons
    from mops.jobs.figure_data import loss_summary_of  # noqa: PLC0415 - Arrow, as in _reasons

    return loss_summary_of(JobData(**vars(moment)))


def _reasons(moment: JobMoment) -> list[Reason]:
    if not moment.n_failed:
        return []
    from mops.jobs.data import JobData  # noqa: PLC0415 - Arrow: 0.3 s, and most jobs have no failures

    return JobData(**vars(moment)).reasons


def _kubernetes(phase: Phase, dask_cluster: str) -> Iterator[tuple[str, str]]:
    yield "Kubernetes", str(phase)
    if phase.pod:
        yield "", f"pod {phase.pod}"
    if phase.hint:
        yield "", phase.hint
    if dask_cluster:
        yield "Dask cluster", dask_cluster


def _fields(
    job: JobState, moment: JobMoment, now: Status, reasons: list[Reason], phase: Phase | None, dask_cluster: str
) -> Iterator[tuple[str, str]]:
    yield "job", now.job
    yield "state", job_text.state_of(now)
    if now.state == "running" and now.cancel_requested:
        yield "", "cancel requested: the runner commits what is finished, and stops"
    if phase is not None:
        yield from _kubernetes(phase, dask_cluster)
    yield "submitted", units.moment(now.created)
    yield from _origins(now)
    yield "attempts", str(now.attempt)
    if limits := job_text.limits_of(read_options(job.files, moment.record).options.limits):
        yield "limits", limits
    finished = now.finished.simulations
    yield "finished", f"{finished:,} of {now.n_simulations:,} simulations"
    yield "durable", f"{now.counts.simulations:,} of {finished:,} finished"
    yield from job_text.counts_of(now)
    yield from job_text.reasons_of(reasons)
    yield from job_text.slow_of(now)
    if now.live is not None:
        yield from _runner(now.live, is_running=now.state == "running")
    if now.children:
        yield "child processes", now.children
    if now.sizing:
        yield "batch size", now.sizing
    yield from job_text.steps_of(job, now, reasons, is_waiting=phase is not None and not phase.over)


def _origins(now: Status) -> Iterator[tuple[str, str]]:
    if now.parent is not None:
        yield "derived from", now.parent
    if now.mixed_code:
        yield "mixed code", job_text.mixed_code_of(now)
    if now.origins:
        yield "reused", job_text.origins_of(now.origins)


def _runner(live: Progress, *, is_running: bool) -> Iterator[tuple[str, str]]:
    yield "runner", seen_text(live, time.time())
    if not is_running:
        return
    yield "", f"rate {units.rate(live.rate)}" if live.rate else "no rate yet"
    yield "", f"{units.counted(live.in_flight, 'parameter set')} in flight, {live.slots:,} simulations at once"
    yield "", f"{terminal.size(live.memory_bytes)} of memory, {terminal.size(live.peak_bytes)} at its peak"
    if live.finished.verdicts:
        yield "", f"failed: {', '.join(live.finished.by_verdict)}"
