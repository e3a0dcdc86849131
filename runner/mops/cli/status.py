"""``mops jobs list``, ``status``, ``watch``, ``logs`` and ``cancel``: what jobs do now. Only ``watch`` needs Arrow."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from mops import units
from mops.cli import job_text, terminal
from mops.cli.options import HERE, ForceOption, JobArgument, JsonOption, Place, read_states
from mops.errors import UsageError
from mops.jobs.following import progress_of, read_log
from mops.jobs.listing import Listed, list_jobs
from mops.jobs.location import service_with
from mops.jobs.runners import Phases, Runners, service_and_phase, with_runner
from mops.jobs.status import CANCEL_REQUESTED, OPEN_STATES, JobMoment, JobState, Status, cancel_job, seen_text
from mops.jobs.summary import line_of, runner_of
from mops.options import SERVICE, Option
from mops.storage.job_records import read_options
from mops.storage.progress_record import Progress
from mops.study.ids_and_seeds import short_id

if TYPE_CHECKING:
    from mops.jobs.figure_data import BestSet, LossSpread, LossSummary
    from mops.jobs.job import Job
    from mops.jobs.summary import Reason
    from mops.k8s.job_phase import Phase
    from mops.service.service import Service


POLL_SECONDS = 2.0
FIRST_SECONDS = 60.0  # in which the runner reports its progress every second, so `watch` looks as often
LINE_SECONDS = 10.0
_LOG_LINES = 6
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
    console = Console()
    is_wide = not sys.stdout.isatty() or console.width >= _LEAST_WIDTH_WITH_BARS
    if is_wide and not console.options.ascii_only:
        head.append(f"{_number(low)} to {_number(high)}")
        for row, one in zip(rows, best, strict=True):
            row.append(terminal.bar(_share(one.loss, low, high), _BAR_COLUMNS))
    terminal.data_table(head, rows, right=[best[0].ranked_by])


def _share(loss: float, low: float, high: float) -> float:
    """Return where a loss is between two numbers, as a part of 1. Their difference may be too large for a float."""
    return (loss / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.0


def _number(value: float) -> str:
    return f"{value:.4g}"


def list_(
    state: Annotated[list[str] | None, Option("Show only jobs in these states", "STATES")] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", metavar="N", min=1, help="Show only this many of the newest jobs")
    ] = None,
    place: Place = HERE,
    as_json: JsonOption = False,
) -> None:
    """List the jobs of a storage, newest first.

    'sets' counts the committed parameter sets. 'finished' and 'durable' count simulations: those that have run, and
    those that are committed. 'reused' counts simulations that come from other jobs.

    States: submitted, running, interrupted, succeeded, partial, failed, cancelled, unreadable.

    Example:

        mops jobs list --state running,interrupted
    """
    files = place.locate().open()
    states = read_states(state)
    runners = Runners(files, local=place.local)
    found = list_jobs(files.brief(), states, limit, phases=runners.phases)
    open_ones = {job.job for job in found if job.state in OPEN_STATES}
    phases = {job: phase for job, phase in runners.phases().items() if job in open_ones} if open_ones else {}
    if runners.error:
        terminal.say(f"warning: {runners.warning}")
    if as_json:
        kubernetes = {job: {"kubernetes": asdict(phase)} for job, phase in phases.items()}
        terminal.data_json([asdict(job) | kubernetes.get(job.job, {}) for job in found])
        return
    if found:
        rows = [_row(job) | {"Kubernetes": str(phases.get(job.job, ""))} for job in found]
        is_shown = {
            "reused": any(job.simulations_reused for job in found),
            "owner": any(job.owner for job in found),
            "Kubernetes": bool(phases),
        }
        columns = [name for name in rows[0] if is_shown.get(name, True)]
        terminal.data_table(columns, [[row[name] for name in columns] for row in rows], right=_COUNTS)
    else:
        terminal.say(f"no {' or '.join(states) + ' ' if states else ''}jobs in {files.url}")
    for job in found:
        if job.error is not None:
            terminal.say(f"warning: job {job.job} cannot be read: {job.error}")


_COUNTS = ("sets", "finished", "durable", "failed", "reused")


def _row(job: Listed) -> dict[str, str]:
    """Return the cells of a job by column."""
    counts = dict.fromkeys(_COUNTS, "-")
    if job.groups is not None and job.n_groups is not None:
        simulations = f"{job.simulations_finished:,}/{job.n_simulations:,}"
        more = (job.simulations_durable, job.simulations_failed, job.simulations_reused)
        cells = (f"{job.groups:,}/{job.n_groups:,}", simulations, *map("{:,}".format, more))
        counts = dict(zip(_COUNTS, cells, strict=True))
    submitted = units.moment(job.created) if job.created else "-"
    return {"job": job.job, "state": job.state, **counts, "submitted": submitted, "owner": job.owner or "-"}


def status(
    job: JobArgument,
    losses: Annotated[bool, Option("Show how each loss is spread, and the five best parameter sets")] = False,
    place: Place = HERE,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a job.

    The command prints what is committed, why simulations failed, and when the runner was last seen. 'finished' and
    'durable' count simulations: those that have run, and those that are committed.

    Example:

        mops jobs status waves

        mops jobs status waves --losses
    """
    found = place.state_of(job)
    moment = JobMoment.read(found.files, job)
    service, phase = (None, None) if moment.view.complete else service_and_phase(found.files, job, local=place.local)
    if phase is not None:  # the runner may have finished the job before Kubernetes answered
        moment = JobMoment.read(found.files, job)
    now = with_runner(moment.status, phase)
    reasons: list[Reason] = []
    summary: LossSummary | None = None
    if losses or moment.n_failed:
        from mops.jobs.data import JobData  # noqa: PLC0415 - Arrow: 0.3 s, and most calls need no tables

        data = JobData(**vars(moment))
        reasons = data.reasons
        if losses:
            from mops.jobs.figure_data import loss_summary_of  # noqa: PLC0415 - as above

            summary = loss_summary_of(data)
    cluster = service.dedicated_state(job) if service and phase and phase.has_runner else ""
    if as_json:
        kubernetes = {"kubernetes": asdict(phase) | {"dask_cluster": cluster}} if phase else {}
        finished = {
            "simulations_finished": now.finished.simulations,
            "simulations_durable": now.counts.simulations,
            "reasons": [asdict(reason) for reason in reasons],
        }
        in_losses = {"losses": asdict(summary)} if summary is not None else {}
        terminal.data_json(asdict(now) | finished | in_losses | kubernetes)
        return
    terminal.data_fields([*_fields(found, moment, now, reasons, phase, cluster), *loss_fields(found, now, summary)])
    if summary is not None and summary.spreads and summary.best is not None:
        print_losses(summary.spreads, summary.best)


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
    if now.state == "running" and now.live is not None and now.live.waits_for:
        yield "", now.live.outlook
    if phase is not None:
        yield from _kubernetes(phase, dask_cluster)
    yield "submitted", f"{units.moment(now.created)}{f' by {now.owner}' if now.owner else ''}"
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
    yield from job_text.steps_of(job, now, reasons, is_waiting=phase is not None and phase.has_runner)


def _origins(now: Status) -> Iterator[tuple[str, str]]:
    if now.parent is not None:
        yield "derived from", now.parent
    if now.mixed_code:
        files = ", ".join(now.mixed_code)
        yield "mixed code", f"simulations of {now.parent} or its parents ran with other versions of {files}"
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


def watch(job: JobArgument, place: Place = HERE, as_json: JsonOption = False) -> None:
    """Follow a job until it ends.

    You can watch from any machine that reaches the storage. Ctrl-C stops watching; the job continues. If the output is
    not a terminal, the command prints a line for each change, at most every 10 s. With --json, each line is a JSON
    object.

    Example:

        mops jobs watch waves

    Exit codes: 0 succeeded, 3 some simulations failed, 1 failed or interrupted, 130 cancelled.
    """
    found = place.open(job)
    service, phase = service_and_phase(found.files, job, local=place.local)
    if phase is not None and not phase.is_known:
        terminal.say(f"warning: Kubernetes does not answer, so watch reads the storage alone: {phase.reason}")
    follow(found, service, as_json=as_json)


def follow(
    job: Job,
    service: Service | None,  # that may run the job
    *,
    as_json: bool,
    after: int = 0,  # wait for an attempt later than this one; 0: follow the job as it is
) -> None:
    """Show a job until it is over, and exit with its code."""
    try:
        phases = Phases(job.name, replace(service, results=job.files.url) if service else None, after)
        seen = History(job)
        if as_json or not sys.stdout.isatty():
            now = _follow(seen, phases, Lines(as_line if as_json else lambda now: line(now, phases.text)).show)
        else:
            with Live(console=Console(**terminal.AS_IS), transient=True, auto_refresh=False) as display:
                now = _follow(
                    seen, phases, lambda now: display.update(screen(seen, now, time.time(), phases.text), refresh=True)
                )
    except KeyboardInterrupt:
        terminal.say(f"stopped watching; the job continues: {job_text.command('watch', job)}")
        raise typer.Exit(130) from None
    if as_json:
        terminal.data(as_line(now, reasons=[asdict(reason) for reason in job.reasons()]))
    else:
        took = f" after {units.duration(now.seconds)}" if now.seconds else ""
        ended = ": its runner ended without a result" if now.state == "interrupted" else ""
        terminal.data(f"{now.job}: {job_text.state_of(now, took)}{ended}")
        terminal.data_fields(job_text.ended_of(job, now, job.reasons()))
    raise typer.Exit(terminal.EXIT_CODES.get(now.state, 1))


def _follow(seen: History, phases: Phases, show: Callable[[Status], None]) -> Status:
    while phases.may_continue(now := seen.look()):
        show(now)
        time.sleep(1.0 if (now.seconds or 0.0) < FIRST_SECONDS else POLL_SECONDS)
    return now


class History:
    """The status of a job, and its rate over time."""

    def __init__(self, job: Job):
        kept = job.samples(newest=terminal.MOST_POINTS // 6 + 1).to_arrow()  # an object holds about six
        self.rates = terminal.Rates(deque(kept["rate"].to_pylist(), terminal.MOST_POINTS), job.name)
        self._at = kept["time"][-1].as_py().timestamp() if kept.num_rows else 0.0
        self._status = job.follower()

    def look(self) -> Status:
        """Return the status now."""
        now = self._status()
        if now.live is not None and now.live.at > self._at:
            self._at = now.live.at
            self.rates.add(now.job, now.live.at, now.live.rate)
        return now


class Lines:
    """Prints a line for each change, at most every 10 s."""

    def __init__(self, line_of: Callable[[Status], str]):
        self._line_of = line_of
        self._last = ""
        self._at = float("-inf")

    def show(self, now: Status) -> None:
        """Print a line, if it is time and the line is new."""
        if time.monotonic() - self._at < LINE_SECONDS or (text := self._line_of(now)) == self._last:
            return
        self._last, self._at = text, time.monotonic()
        terminal.data(text)
        sys.stdout.flush()  # for the reader of a pipe


def as_line(now: Status, **more: object) -> str:
    """Return a status as a line of JSON."""
    fields = asdict(now) | more
    if now.live is not None:
        del fields["live"]["settings"]
    return json.dumps(fields, separators=(",", ":"), default=str)


def line(now: Status, kubernetes: str = "") -> str:
    """Return a status, and the runner's phase in Kubernetes, as a line of text."""
    more = f"; Kubernetes: {kubernetes}" if kubernetes else ""
    if now.live is None:
        return f"{now.state}: {now.groups:,} of {now.n_groups:,} parameter sets committed{more}"
    pace = [units.rate(now.live.rate)] if now.live.rate else []
    if text := now.to_go(time.time()):
        pace.append(text)
    durable, memory = f"{now.counts.simulations:,} durable", terminal.size(now.live.memory_bytes)
    return ", ".join([line_of(now), durable, *pace, memory]) + more


def screen(
    seen: History,
    now: Status,
    time_s: float,  # since the epoch, for ages
    kubernetes: str = "",  # the runner's phase
) -> terminal.JobScreen:
    """Return what a terminal shows of a job."""
    title = "submitted, waiting for a runner" if now.state == "submitted" else f"{now.state}, {runner_of(now, time_s)}"
    if (live := now.live) is None:
        fields = [terminal.Field("durable", [f"{now.groups:,} of {now.n_groups:,} parameter sets"])]
    else:
        memory = [f"{terminal.size(live.runner_bytes)} of memory", f"{terminal.size(live.open_bytes)} not durable"]
        runner = terminal.Field("runner", memory, is_detail=True)
        fields = [*terminal.fields_of(progress_of(now), list(seen.rates.kept), time_s), runner]
    if kubernetes:
        fields.append(terminal.Field("Kubernetes", [kubernetes]))
    log = [terminal.plain(one) for one in live.lines[-_LOG_LINES:]] if live else []
    return terminal.JobScreen(f"{now.job}: {title}", fields, log)


def logs(
    job: JobArgument,
    tail: Annotated[
        int | None, typer.Option("-n", "--tail", metavar="N", min=0, help="Print only this many last lines")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines until the job ends")] = False,
    pod: Annotated[bool, Option("Print the output of the runner's newest pod", panel=SERVICE)] = False,
    workers: Annotated[bool, Option("Print the output of the workers' pods", panel=SERVICE)] = False,
    place: Place = HERE,
) -> None:
    """Print the log of a job, with the output of its model.

    The runner writes the log with each checkpoint, so the log is some seconds behind a running job.

    Example:

        mops jobs logs waves --tail 50 --follow
    """
    found, printed = place.state_of(job), False
    if pod or workers:
        _of_pods(found, workers=workers, follow=follow, tail=tail)
        return
    try:
        for text in read_log(found, tail=tail, follow=follow):
            terminal.data_text(text)
            printed = printed or bool(text)
    except KeyboardInterrupt:
        terminal.say(f"stopped following; the job continues: {job_text.command('status', found)}")
        raise typer.Exit(130) from None
    if follow:
        terminal.say(f"job {job} is {found.status().state}")
    elif not printed and tail != 0:
        terminal.say(f"the job has no log yet: {job_text.command('status', found)}")


def _of_pods(job: JobState, *, workers: bool, follow: bool, tail: int | None) -> None:
    service = service_with(job.files, local=job.local)
    if service is None:
        what = f"job {job.name!r} does not run on a connected service"
        raise UsageError(what, where=job.files.url, hint="connect to the service that runs it: mops connect")
    if workers:
        for name, line in service.worker_logs(job.name, tail):
            terminal.data_text(f"{name}: {line}\n")
        return
    for line in service.runner_log(job.name, follow=follow, tail=tail):
        terminal.data_text(f"{line}\n")


def cancel(job: JobArgument, force: ForceOption = False, place: Place = HERE) -> None:
    """Stop a job.

    The runner commits what is finished, and stops within seconds. 'mops jobs resume' continues the job later.

    Example:

        mops jobs cancel waves
    """
    found = place.state_of(job)
    removed = cancel_job(found, force=force)
    if removed is not None:
        terminal.say(f"job {job} is cancelled; if it runs, its runner commits what is finished and stops")
        for name in removed:
            terminal.say(f"deleted its Kubernetes Job {name}, which had not started")
        terminal.say(f"to continue it: {job_text.command('resume', found)}")
    else:
        terminal.say(f"job {job} is complete ({found.status().state}): there is nothing to cancel")
