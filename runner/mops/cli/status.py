"""``mops jobs list``, ``status``, ``logs`` and ``cancel``, which need no Arrow."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mops import units
from mops.cli import job_text, terminal
from mops.cli.job_screen import bar
from mops.cli.options import JobArgument, JsonOption, LocalOption, StorageOption
from mops.errors import UsageError
from mops.jobs.following import OPEN_STATES, phases_of, with_runner
from mops.jobs.listing import Listed, list_jobs
from mops.jobs.location import locate, service_with
from mops.jobs.status import CANCEL_REQUESTED, JobMoment, JobState, Status, seen_text, storage_of
from mops.jobs.text_log import read
from mops.options import SERVICE
from mops.storage.job_records import read_options
from mops.storage.progress_record import Progress
from mops.study.ids_and_seeds import short_id

if TYPE_CHECKING:
    from mops.jobs.data import JobData
    from mops.jobs.figure_data import BestSet, LossSpread, LossSummary
    from mops.jobs.summary import Reason
    from mops.k8s.job_phase import Phase


_BAR_COLUMNS = 24
_LEAST_WIDTH_WITH_BARS = 60


def loss_fields(job: JobState, now: Status, summary: LossSummary | None) -> Iterator[tuple[str, str]]:
    """Yield the number of losses, or the command that shows them; None: the user did not ask for a summary."""
    if summary is None:
        if now.counts.targets_good:
            yield "losses", f"{job_text.command('status', job)} --losses"
    elif summary.spreads is None:
        yield "losses", f"{summary.n_losses:,}, too many to summarize here"
        yield "best sets", f"{job_text.command('results', job)} --best 5"
    else:
        yield "losses", f"{summary.n_losses:,}"


def print_losses(spreads: Sequence[LossSpread], best: Sequence[BestSet]) -> None:
    """Print a row for each loss, then a row for each of the best parameter sets by each loss."""
    head = ("loss", "sets", "least", "median", "greatest")
    rows = [(one.title, f"{one.n:,}", *map(_number, (one.least, one.median, one.greatest))) for one in spreads]
    terminal.data("")
    terminal.data_table(head, rows, right=head[1:])
    for _, ranked in itertools.groupby(best, lambda one: one.ranked_by):
        terminal.data("")
        _print_best(list(ranked))
    if not best:
        terminal.data("")
        terminal.data("no parameter set has a loss")


def _print_best(best: Sequence[BestSet]) -> None:
    low, high = min(0.0, best[0].loss), best[-1].loss  # a zero far above all losses would leave every bar empty
    head = ["best sets", best[0].ranked_by]
    rows = [[short_id(one.param_id), _number(one.loss)] for one in best]
    if _has_bars():
        head.append(f"{_number(low)} to {_number(high)}")
        for row, one in zip(rows, best, strict=True):
            row.append(bar(_share(one.loss, low, high), _BAR_COLUMNS))
    terminal.data_table(head, rows, right=[best[0].ranked_by])


def _share(loss: float, low: float, high: float) -> float:
    """Return where a loss is between two numbers, as a part of 1. Their difference may be too large for a float."""
    return (loss / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.0


def _has_bars() -> bool:
    console = Console()
    is_wide = not sys.stdout.isatty() or console.width >= _LEAST_WIDTH_WITH_BARS
    return is_wide and not console.options.ascii_only


def _number(value: float) -> str:
    return f"{value:.4g}"


def list_(
    state: Annotated[list[str] | None, typer.Option(metavar="STATES", help="Show only jobs in these states")] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", metavar="N", min=1, help="Show only this many of the newest jobs")
    ] = None,
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the jobs of a storage, newest first.

    'sets' counts the committed parameter sets. 'finished' and 'durable' count simulations: those that have run, and
    those that are committed. 'reused' counts simulations that come from other jobs.

    States: submitted, running, interrupted, succeeded, partial, failed, cancelled, unreadable.

    Example:

        mops jobs list --state running,interrupted
    """
    files = locate(storage, local=local).open()
    states = [name.strip() for names in state or [] for name in names.split(",")]
    runners = phases_of(files, local=local)
    found = list_jobs(files.brief(), states, limit, phases=runners)
    open_ones = {job.job for job in found if job.state in OPEN_STATES}
    phases = {job: phase for job, phase in runners().items() if job in open_ones} if open_ones else {}
    if as_json:
        kubernetes = {job: {"kubernetes": asdict(phase)} for job, phase in phases.items()}
        terminal.data_json([asdict(job) | kubernetes.get(job.job, {}) for job in found])
        return
    if found:
        with_reused = any(job.simulations_reused for job in found)
        columns = (
            "job",
            "state",
            "sets",
            "finished",
            "durable",
            "failed",
            *(("reused",) if with_reused else ()),
            "submitted",
            *(("Kubernetes",) if phases else ()),
        )
        rows = [_row(job, phases, with_reused=with_reused) for job in found]
        terminal.data_table(columns, rows, right=("sets", "finished", "durable", "failed", "reused"))
    else:
        terminal.say(f"no {' or '.join(states) + ' ' if states else ''}jobs in {files.url}")
    for job in found:
        if job.error is not None:
            terminal.say(f"warning: job {job.job} cannot be read: {job.error}")


def _row(job: Listed, phases: Mapping[str, Phase], *, with_reused: bool) -> tuple[str, ...]:
    submitted = units.moment(job.created) if job.created else "-"
    kubernetes = (str(phases.get(job.job, "")),) if phases else ()
    if job.groups is None or job.n_groups is None:
        return job.job, job.state, "-", "-", "-", "-", *(("-",) if with_reused else ()), submitted, *kubernetes
    simulations = (f"{job.simulations_finished:,}/{job.n_simulations:,}", f"{job.simulations_durable:,}")
    counts = (f"{job.groups:,}/{job.n_groups:,}", *simulations, f"{job.simulations_failed:,}")
    reused = (f"{job.simulations_reused:,}",) if with_reused else ()
    return job.job, job.state, *counts, *reused, submitted, *kubernetes


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
    found = JobState(storage_of(job, locate(storage, local=local)), job)
    moment = JobMoment.read(found.files, job)
    service = None if moment.view.complete else service_with(found.files, local=local)
    phase = service.phase(job) if service else None
    if phase is not None:  # the runner may have finished the job before Kubernetes answered
        moment = JobMoment.read(found.files, job)
    now = with_runner(moment.status, phase)
    data = _with_tables(moment) if losses or moment.n_failed else None
    reasons = data.reasons if data else []
    cluster = service.dedicated_state(job) if service and phase and not phase.over else ""
    summary = _losses(data) if data and losses else None
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


def _with_tables(moment: JobMoment) -> JobData:
    from mops.jobs.data import JobData  # noqa: PLC0415 - Arrow: 0.3 s, and most calls need no tables

    return JobData(**vars(moment))


def _losses(data: JobData) -> LossSummary:
    from mops.jobs.figure_data import loss_summary_of  # noqa: PLC0415 - as in _with_tables

    return loss_summary_of(data)


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
    if now.error:
        yield "error", now.error.what
    if now.state == "running" and now.cancel_requested:
        yield "", CANCEL_REQUESTED
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


def logs(
    job: JobArgument,
    attempt: Annotated[int | None, typer.Option(metavar="N", help="Print the log of this attempt only")] = None,
    tail: Annotated[
        int | None, typer.Option("-n", "--tail", metavar="N", min=0, help="Print only this many last lines")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines until the job ends")] = False,
    pod: Annotated[
        bool, typer.Option("--pod", help="Print the output of the runner's newest pod", rich_help_panel=SERVICE)
    ] = False,
    workers: Annotated[
        bool, typer.Option("--workers", help="Print the output of the workers' pods", rich_help_panel=SERVICE)
    ] = False,
    storage: StorageOption = None,
    local: LocalOption = False,
) -> None:
    """Print the log of a job, with the output of its model.

    The runner writes the log with each checkpoint, so the log is some seconds behind a running job.

    Example:

        mops jobs logs waves --tail 50 --follow
    """
    found, printed = JobState(storage_of(job, locate(storage, local=local)), job), False
    if pod or workers:
        _of_pods(found, local=local, workers=workers, follow=follow, tail=tail)
        return
    try:
        for text in read(found, attempt, tail=tail, follow=follow):
            terminal.data_text(text)
            printed = printed or bool(text)
    except KeyboardInterrupt:
        terminal.say(f"stopped following; the job continues: {job_text.command('status', found)}")
        raise typer.Exit(130) from None
    if follow:
        terminal.say(f"job {job} is {found.status().state}")
    elif not printed and tail != 0:
        terminal.say(f"the job has no log yet: {job_text.command('status', found)}")


def _of_pods(job: JobState, *, local: bool, workers: bool, follow: bool, tail: int | None) -> None:
    """Print the output of pods.

    Raises
    ------
    UsageError
        No connected service has this job.
    """
    service = service_with(job.files, local=local)
    if service is None:
        raise UsageError(
            f"job {job.name!r} does not run on a connected service",
            where=job.files.url,
            hint="connect to the service that runs it: mops connect",
        )
    if workers:
        for name, line in service.worker_logs(job.name, tail):
            terminal.data_text(f"{name}: {line}\n")
        return
    for line in service.runner_log(job.name, follow=follow, tail=tail):
        terminal.data_text(f"{line}\n")


def cancel(job: JobArgument, storage: StorageOption = None, local: LocalOption = False) -> None:
    """Stop a job.

    The runner commits what is finished, and stops within seconds. 'mops jobs resume' continues the job later.

    Example:

        mops jobs cancel waves
    """
    found = JobState(storage_of(job, locate(storage, local=local)), job)
    if found.cancel():
        terminal.say(f"job {job} is cancelled; if it runs, its runner commits what is finished and stops")
        service = service_with(found.files, local=local)
        for name in service.delete_idle_jobs(job) if service else ():
            terminal.say(f"deleted its Kubernetes Job {name}, which had not started")
        terminal.say(f"to continue it: {job_text.command('resume', found)}")
    else:
        terminal.say(f"job {job} is complete ({found.status().state}): there is nothing to cancel")
