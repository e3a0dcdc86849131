"""``mops run``, ``mops jobs submit``, ``resume`` and ``run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mops.cli import job_progress, status, terminal
from mops.cli.options import JobArgument, StorageOption
from mops.cli.start_options import NameOption, ProjectOption, StartOptions, with_options
from mops.errors import MopsError, Superseded
from mops.jobs.job import open_job
from mops.jobs.submit import RunnerProcess
from mops.jobs.submit import resume as resume_job
from mops.jobs.submit import run as run_job
from mops.jobs.submit import submit as submit_study
from mops.k8s.dedicated_lifecycle import dedicated_cluster
from mops.k8s.pod_ends import Pods
from mops.options import SERVICE
from mops.settings import Settings
from mops.storage.joblog.records import NothingToRun, Overtaken, RunRequest


@with_options
def submit(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file, like study.json")],
    project: ProjectOption = None,
    name: NameOption = None,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Take simulations that other jobs of the storage have run already")
    ] = False,
    *,
    start: StartOptions,
) -> None:
    """Run a study on this machine or on the connected service.

    Results are durable while the job runs. On a service, the command returns when Kubernetes has accepted the job; with
    --wait it follows the job. mops stores NAME=VALUE of --env with the job. For a secret, give only NAME: the runner
    takes the value from its environment.

    With --reuse, the job runs only simulations that no complete job of the storage has run with the same model code,
    data files, --env, parameters and seed. All targets run again. mops does not compare libraries, data
    outside the project, or variables that simulations inherit from the shell.

    Example:

        mops jobs submit study.json --name waves

    Exit codes: 0 succeeded, 3 some simulations failed, 1 failed, 130 stopped, 2 wrong input, 4 storage or service out
    of reach.
    """
    service = start.location.service
    with job_progress.displayed(start.location.settings, as_json=start.as_json) as shown:
        job = submit_study(
            study,
            project=project,
            name=name,
            on_start=shown.started,
            reuse=reuse,
            **start.run_options(shown),
        )
        if not start.detach and service is None:
            shown.ended(job)
    if service is not None and start.wait:
        status.follow(job, service, as_json=start.as_json)


@with_options
def resume(
    job: JobArgument,
    take_over: Annotated[bool, typer.Option("--take-over", help="Replace the runner that runs the job")] = False,
    *,
    start: StartOptions,
) -> None:
    """Continue a job that was stopped or killed.

    mops runs the parameter sets that are not committed. The job keeps its project, its study and its seeds, its limits
    of time and memory, and every option that you do not give here. Other settings come from your environment now.

    Example:

        mops jobs resume waves
    """
    found = open_job(job, start.storage, local=start.local_by is not None)
    before = found.status().attempt
    service = start.location.service
    with job_progress.displayed(start.location.settings, as_json=start.as_json) as shown:
        resume_job(
            found,
            take_over=take_over,
            on_start=shown.resumed,
            **start.run_options(shown),
        )
        if not start.detach and service is None:
            shown.ended(found)
    if service is not None and start.wait:
        status.follow(found, service, as_json=start.as_json, after=before)


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
