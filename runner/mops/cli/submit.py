"""Commands that run jobs: ``mops run``, ``mops jobs submit``, ``resume``, ``retry``, ``extend``, ``rescore``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mops.cli import job_progress, terminal
from mops.cli.options import (
    ForceOption,
    JobArgument,
    NameOption,
    ProjectOption,
    StorageOption,
    StudyArgument,
    TrustModelOption,
)
from mops.cli.start_options import StartOptions
from mops.errors import MopsError, Superseded, UsageError
from mops.jobs import derive
from mops.jobs import submit as jobs
from mops.jobs.job import open_job
from mops.k8s.dedicated_lifecycle import dedicated_cluster
from mops.k8s.pod_ends import Pods
from mops.options import SERVICE, Option
from mops.settings import Settings
from mops.storage.joblog.records import NothingToRun, Overtaken, RunRequest


def submit(
    study: StudyArgument,
    project: ProjectOption = None,
    name: NameOption = None,
    reuse: Annotated[bool, Option("Take simulations that other jobs of the storage have run already")] = False,
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
    start.run(
        lambda shown, options: jobs.submit(
            study, project=project, name=name, reuse=reuse, on_start=shown.started, **options
        )
    )


def resume(
    job: JobArgument,
    take_over: Annotated[bool, Option("Replace the runner that runs the job")] = False,
    force: ForceOption = False,
    *,
    start: StartOptions,
) -> None:
    """Continue a job that was stopped or killed.

    mops runs the parameter sets that are not committed. The job keeps its project, its study and its seeds, its limits
    of time and memory, and every option that you do not give here. Other settings come from your environment now.

    Example:

        mops jobs resume waves
    """
    found = start.opened(job)
    start.run(
        lambda shown, options: jobs.resume(found, take_over=take_over, force=force, on_start=shown.resumed, **options),
        after=found.status().attempt,
    )


def retry(
    job: JobArgument,
    verdict: Annotated[str | None, Option("Retry these failures, like oom,timeout, or all", "VERDICTS")] = None,
    with_new_code: Annotated[bool, Option("Run the present code of the project: retry after a repair")] = False,
    name: NameOption = None,
    project: ProjectOption = None,
    *,
    start: StartOptions,
) -> None:
    """Run the parameter sets with failures again, in a new job.

    The new job takes over all other results. If only targets of a set have failed, no simulation of it runs again. The
    old job must be complete, and does not change. The new job keeps the project, the study and the seeds of the old
    job, its limits of time and memory, and every option that you do not give here. A variable of your environment
    overrides a limit, so you can retry a timeout with more time.

    With --with-new-code, the failed sets run with the present files of the project, so you can repair the model and
    retry only what failed. Without --verdict, this retries all failures. Simulations that the new job takes over ran
    with the old files. If the repair changes what good simulations compute, submit the study again instead.

    Verdicts: oom, crashed, timeout, error, invalid_output, lost.

    Example:

        mops jobs retry waves --with-new-code

        mops jobs retry waves --verdict timeout,oom
    """
    found = start.opened(job)
    if verdict is None and not with_new_code and (counts := found.status().counts).verdicts:
        where = f"the failures of {found.name}: {', '.join(counts.by_verdict)}"
        named = ",".join(sorted(counts.verdicts))
        hint = f"add --verdict {named}, or --verdict all; after a repair of the code: --with-new-code"
        raise UsageError("no verdict is named", where=where, hint=hint)
    verdicts = "all" if verdict is None else verdict  # all: the error says that nothing has failed
    start.run(
        lambda shown, options: derive.retry(
            found, verdicts, name=name, new_code=with_new_code, project=project, on_start=shown.derived, **options
        )
    )


def extend(
    job: JobArgument,
    replicates: Annotated[int | None, Option("Run this many replicates of each parameter set in all", "N")] = None,
    sets: Annotated[str | None, Option("Add the parameter sets of a CSV or Parquet file", "FILE")] = None,
    target: Annotated[
        list[str] | None, Option("Add a target, with the present code of the project; repeatable", "MODULE:NAME")
    ] = None,
    name: NameOption = None,
    trust_model: TrustModelOption = False,
    project: ProjectOption = None,
    *,
    start: StartOptions,
) -> None:
    """Add replicates, sets or targets, in a new job.

    It computes only what is missing. The new job takes over every good simulation of the old one, and its results are
    those of the whole study. The old job must be complete, and does not change.

    With --target, mops uses the present code of the project and evaluates all targets again. Without it, the new job
    runs the files of the old one.

    Example:

        mops jobs extend waves --replicates 15
    """
    if replicates is None and sets is None and not target:
        raise UsageError("nothing is added", where="the command line", hint="give --replicates, --sets or --target")
    found = start.opened(job)
    start.run(
        lambda shown, options: derive.extend(
            found,
            replicates=replicates,
            sets=sets,
            targets=target or (),
            name=name,
            trust_model=trust_model,
            project=project,
            on_start=shown.derived,
            **options,
        )
    )


def rescore(
    job: JobArgument,
    target: Annotated[
        list[str] | None, Option("Evaluate this target, not those of the job; repeatable", "MODULE:NAME")
    ] = None,
    name: NameOption = None,
    trust_model: TrustModelOption = False,
    project: ProjectOption = None,
    *,
    start: StartOptions,
) -> None:
    """Evaluate targets again on stored simulations.

    The result is a new job. No simulation runs. The new job uses the present code of the project. It is refused if a
    file has changed that may belong to the model, such as a data file, or a Python file that the model names.

    With --target, the targets that you name replace all targets of the job. Without it, the job keeps its targets.

    Example:

        mops jobs rescore waves

        mops jobs rescore waves --target model:peak --target model:final_size
    """
    found = start.opened(job)
    start.run(
        lambda shown, options: derive.rescore(
            found,
            targets=target or (),
            name=name,
            trust_model=trust_model,
            project=project,
            on_start=shown.derived,
            **options,
        )
    )


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
    pod: Annotated[bool, Option("Exit with 0 when Kubernetes must not restart the runner", panel=SERVICE)] = False,
    grace: Annotated[
        float | None, Option("Expect SIGKILL this many seconds after SIGTERM", "SECONDS", SERVICE, least=1)
    ] = None,
    dedicated: Annotated[
        Path | None, Option("Create the dedicated Dask cluster that this folder describes", "FOLDER", SERVICE)
    ] = None,
    workers: Annotated[
        str | None, Option("Ask Kubernetes why pods with these labels ended", "SELECTOR", SERVICE)
    ] = None,
) -> None:
    """Run a job that exists.

    Without a request, a job that was cancelled or has ended does not run. Exit codes are those of submit. With --pod,
    the exit code is also 0 for partial, cancelled and superseded, because the state is in the storage. With --pod, a
    model that cannot be imported ends the job as failed.

    Example:

        mops jobs run waves --storage /srv/results
    """
    process = jobs.RunnerProcess(Pods(workers) if workers else None, unwatched=pod, grace_s=grace)
    with dedicated_cluster(dedicated):
        try:
            _run(job, storage, asked, process)
        except (Superseded, Overtaken, typer.Exit) as ended:
            if not pod or ended.exit_code not in DONE:
                raise
            if isinstance(ended, MopsError):
                terminal.error(ended)


def _run(job: str, storage: str | None, asked: RunRequest | None, process: jobs.RunnerProcess) -> None:
    with job_progress.displayed(Settings(), as_json=False) as shown:
        found = open_job(job, storage)
        try:
            jobs.run(found, asked=asked, on_progress=shown.progress, process=process)
        except NothingToRun as ended:
            terminal.say(f"job {job} has ended ({ended.state}): there is nothing to run")
            raise typer.Exit(terminal.EXIT_CODES[ended.state]) from None
        shown.ended(found)
