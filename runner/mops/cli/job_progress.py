"""Shows a job that submit, resume or retry starts: its plan, its progress, its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

import typer

from mops import units
from mops.attempt.attempt import as_command
from mops.cli import job_text, terminal
from mops.errors import ClusterError, StorageError
from mops.jobs.job import Job
from mops.jobs.launch import DetachedRunner, StartedRunner
from mops.settings import PREFIX, Settings
from mops.storage.job_records import read_options
from mops.storage.progress_record import Progress


class JobDisplay:
    """Shows a job's events."""

    def __init__(
        self,
        show: Callable[[Progress], None],
        given: Settings,  # of the command, without the limits that the study or the job has
        *,
        as_json: bool,
    ):
        self._show, self._given, self._as_json = show, given, as_json
        self._last: Progress | None = None
        self._job: Job | None = None

    def started(self, job: Job, notes: list[str]) -> None:
        """Print what the job runs."""
        self._job = job
        record = job.record
        for note in notes:
            terminal.say(f"note: {note}")
        terminal.say(
            f"job {job.name}: {units.counted(record.n_groups, 'parameter set')}, "
            f"{units.counted(record.n_simulations, 'simulation')}, {units.counted(len(record.spec.targets), 'target')}"
        )
        if record.reuse:
            n_run = record.n_simulations - sum(source.simulations for source in record.reuse)
            terminal.say(f"runs {units.counted(n_run, 'simulation')}; reuses {job_text.origins_of(record.origins)}")
        say_limits(job, self._given, "study")
        terminal.say(f"results go to {job_text.nearby(job.files.url)}")

    def resumed(self, job: Job, changes: list[str]) -> None:
        """Print what the job continues with."""
        self._job = job
        status = job.status()
        terminal.say(f"job {job.name} continues: {status.groups:,} of {status.n_groups:,} parameter sets are committed")
        _say_changes(changes)
        say_limits(job, self._given, "kept")

    def derived(self, job: Job, changes: list[str]) -> None:
        """Print what the job runs and what it takes over."""
        self._job = job
        record = job.record
        n_to_run = record.n_simulations - sum(record.origins.values())
        n_scored = len(record.due) * bool(record.spec.targets)
        scored = f" and scores {n_scored:,} of {units.counted(record.n_groups, 'parameter set')}" if n_scored else ""
        taken = ", ".join(f"{units.counted(n, 'simulation')} from {its}" for its, n in record.origins.items())
        terminal.say(f"job {job.name}: runs {units.counted(n_to_run, 'simulation')}{scored}; takes over {taken}")
        _say_changes(changes)
        say_limits(job, self._given, "kept")

    def detached(self, job: Job, runner: StartedRunner) -> None:
        """Print which process runs the job, and the commands for it."""
        if self._as_json:
            terminal.data_json(asdict(runner))
        else:
            terminal.data(runner.job)
        if isinstance(runner, DetachedRunner):
            terminal.say(f"process {runner.pid} runs the job, and keeps running after this terminal closes")
            where = ("output", job_text.nearby(runner.log))
        else:
            terminal.say(f"Kubernetes has accepted Job {runner.runner} in namespace {runner.namespace}")
            where = ("status", job_text.command("status", job))
        verbs = {"watch": "watch", "stop": "cancel", "continue after a stop or a crash": "resume"}
        commands = [(meaning, job_text.command(verb, job)) for meaning, verb in verbs.items()]
        terminal.say_fields([*commands, where])

    def progress(self, now: Progress) -> None:
        """Show the progress."""
        if now.sizing and (self._last is None or self._last.sizing != now.sizing):
            terminal.say(f"batch size: {now.sizing}")
        self._last = now
        self._show(now)

    def interrupted(self) -> None:
        """Print how to continue a job whose storage or cluster has failed."""
        if self._job is None:
            return  # it does not exist
        fields = []
        if (last := self._last) is not None:
            fields.append(("parameter sets", f"{last.n_groups_durable:,} of {last.n_groups:,} committed"))
        fields.append(("continue", job_text.command("resume", self._job)))
        terminal.say(f"interrupted after {units.duration(last.seconds)}" if last else "interrupted")
        terminal.say_fields(fields)

    def ended(self, job: Job) -> None:
        """Print how the job ended, and exit with the code of its state."""
        status, reasons = job.status(), job.reasons()
        if self._as_json:
            measured = {"seconds": self._last.seconds, "peak_bytes": self._last.peak_bytes} if self._last else {}
            terminal.data_json(asdict(status) | measured | {"reasons": [asdict(reason) for reason in reasons]})
        elif not sys.stdout.isatty():  # on a terminal, the summary has the name
            terminal.data(job.name)
        took = f" in {units.duration(self._last.seconds)}" if self._last else ""
        terminal.say(job_text.state_of(status, took))
        if self._last and self._last.peak_bytes:
            status = replace(status, peak_bytes=self._last.peak_bytes)
        terminal.say_fields(list(job_text.ended_of(job, status, reasons)))
        raise typer.Exit(terminal.EXIT_CODES[status.state])


def say_limits(job: Job, given: Settings, otherwise: str) -> None:
    """Print the limits of a job's simulations, each with its source: ``given`` are the environment's, or otherwise."""
    limits, named = read_options(job.files, job.record).options.limits, given.model_fields_set
    if text := job_text.limits_of(limits, lambda field: "environment" if field in named else otherwise):
        terminal.say(f"limits: {text}")


@contextmanager
def displayed(given: Settings, *, as_json: bool) -> Iterator[JobDisplay]:
    """Show a job while the body runs it; arguments as for :class:`JobDisplay`."""
    with as_command(), terminal.progress() as show:
        display = JobDisplay(show, given, as_json=as_json)
        try:
            yield display
        except (StorageError, ClusterError):
            display.interrupted()
            raise


def _say_changes(changes: list[str]) -> None:
    for change in changes:
        kind = "option" if change.startswith("--") else "setting" if change.startswith(PREFIX) else "warning:"
        terminal.say(f"{kind} {change}")
