"""``mops jobs run``: the program of a runner that nobody watches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mops.cli import job_progress, terminal
from mops.cli.options import JobArgument, StorageOption
from mops.errors import MopsError, Superseded
from mops.jobs.job import open_job
from mops.jobs.submit import RunnerProcess
from mops.jobs.submit import run as run_job
from mops.k8s.dedicated_lifecycle import dedicated_cluster
from mops.k8s.pod_ends import Pods
from mops.storage.joblog.records import Asked
from mops.storage.joblog.starting import NothingToRun, Overtaken

DONE = (0, *(terminal.EXIT_CODES[state] for state in ("partial", "cancelled")), Superseded.exit_code)
"""Exit codes after which a job needs no runner."""


def run(
    job: JobArgument,
    storage: StorageOption = None,
    asked: Annotated[
        Asked | None,
        typer.Option(
            parser=Asked.parse,
            metavar="K-NONCE",
            help="The request that this runner carries out; void if others cancelled, ended or claimed the job since.",
        ),
    ] = None,
    pod: Annotated[
        bool,
        typer.Option("--pod", help="Kubernetes starts this again unless it exits with 0: 0 whenever it has ended."),
    ] = False,
    grace: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=1, help="The time from SIGTERM to the kill: what a pod's grace period is."),
    ] = None,
    dedicated: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Make the dedicated Dask cluster that this folder describes."),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Label selector of the Dask workers' pods: Kubernetes is asked why those that go ended."),
    ] = None,
) -> None:
    """Run a job that exists.

    Unless somebody asked to go on, a job that was cancelled or has ended stays so. Exit codes are those of submit; in a
    pod partial, cancelled and superseded are 0, too: the state is in the storage. There a model that cannot be imported
    ends the job as failed.
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


def _run(job: str, storage: str | None, asked: Asked | None, process: RunnerProcess) -> None:
    with job_progress.displayed(as_json=False) as shown:
        found = open_job(job, storage)
        try:
            run_job(found, asked=asked, on_progress=shown.progress, process=process)
        except NothingToRun as settled:
            terminal.say(f"job {job} has ended ({settled.state}): there is nothing to run")
            raise typer.Exit(terminal.EXIT_CODES[settled.state]) from None
        shown.ended(found)
