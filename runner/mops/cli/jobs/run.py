"""``mops jobs run``: the program of a detached runner, and of a runner in a pod."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mops.cli import job_progress, terminal
from mops.cli.options import SERVICE, JobArgument, StorageOption
from mops.errors import MopsError, Superseded
from mops.jobs.job import open_job
from mops.jobs.submit import RunnerProcess
from mops.jobs.submit import run as run_job
from mops.k8s.dedicated_lifecycle import dedicated_cluster
from mops.k8s.pod_ends import Pods
from mops.settings import Settings
from mops.storage.joblog.records import NothingToRun, Overtaken, RunRequest

DONE = (0, *(terminal.EXIT_CODES[state] for state in ("partial", "cancelled")), Superseded.exit_code)
"""Exit codes after which a job needs no runner."""


def run(
    job: JobArgument,
    storage: StorageOption = None,
    asked: Annotated[
        RunRequest | None,
        typer.Option(
            parser=RunRequest.parse,
            metavar="K-NONCE-ID",
            help="Carry out this request, unless others changed the job since",
        ),
    ] = None,
    pod: Annotated[
        bool,
        typer.Option("--pod", help="Exit with 0 when Kubernetes must not restart the runner", rich_help_panel=SERVICE),
    ] = False,
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=1, help="Expect SIGKILL this many seconds after SIGTERM", rich_help_panel=SERVICE
        ),
    ] = None,
    dedicated: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Create the dedicated Dask cluster that this folder describes",
            rich_help_panel=SERVICE,
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="SELECTOR", help="Ask Kubernetes why pods with these labels ended", rich_help_panel=SERVICE
        ),
    ] = None,
) -> None:
    """Run a job that exists.

    Without a request, a job that was cancelled or has ended does not run. Exit codes are those of submit. With --pod,
    the exit code is also 0 for partial, cancelled and superseded, because the state is in the storage. With --pod, a
    model that cannot be imported ends the job as failed.

    Example:

        mops jobs run waves --storage /srv/results
    """
    process = RunnerProcess(Pods(workers) if workers else None, unwatched=pod, grace_s=grace)
    with dedicated_cluster(dedicated):
        try:
            _run(job, storage, asked, process)
        except (Superseded, Overtaken, typer.Exit) as ended:
            if not pod or ended.exit_code not in DONE:
                raise
            if isinstance(ended, MopsError):
                terminal.error(ended)


def _run(job: str, storage: str | None, asked: RunRequest | None, process: RunnerProcess) -> None:
    with job_progress.displayed(Settings(), as_json=False) as shown:
        found = open_job(job, storage)
        try:
            run_job(found, asked=asked, on_progress=shown.progress, process=process)
        except NothingToRun as ended:
            terminal.say(f"job {job} has ended ({ended.state}): there is nothing to run")
            raise typer.Exit(terminal.EXIT_CODES[ended.state]) from None
        shown.ended(found)
