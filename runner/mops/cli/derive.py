"""``mops jobs retry``, ``extend`` and ``rescore``: new jobs that take over results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from mops.cli import job_progress, status
from mops.cli.options import JobArgument
from mops.cli.start_options import NameOption, ProjectOption, StartOptions, TrustModelOption, with_options
from mops.errors import UsageError
from mops.jobs.derive import extend as extend_job
from mops.jobs.derive import rescore as rescore_job
from mops.jobs.derive import retry as retry_job
from mops.jobs.job import Job, open_job


@with_options
def retry(
    job: JobArgument,
    verdict: Annotated[
        str | None,
        typer.Option(metavar="VERDICTS", help="Retry these failures, like oom,timeout, or all"),
    ] = None,
    with_new_code: Annotated[
        bool, typer.Option("--with-new-code", help="Run the present code of the project: retry after a repair")
    ] = False,
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
    found = open_job(job, start.storage, local=start.local_by is not None)
    if verdict is None and not with_new_code and (counts := found.status().counts).verdicts:
        raise UsageError(
            "no verdict is named",
            where=f"the failures of {found.name}: {', '.join(counts.by_verdict)}",
            hint=f"add --verdict {','.join(sorted(counts.verdicts))}, or --verdict all; after a repair of the code: "
            "--with-new-code",
        )
    # all: the error says that nothing has failed
    more = {"verdicts": "all" if verdict is None else verdict, "new_code": with_new_code, "project": project}
    derive(retry_job, job, start, name=name, **more)


def derive(derive_job: Callable[..., Job], job: str, start: StartOptions, **arguments: Any) -> None:
    """Start a job derived from another, and show it as the options of the start say.

    Parameters
    ----------
    derive_job
        A function of :mod:`mops.jobs.derive`.
    **arguments
        Its arguments, without those of the start.
    """
    found = open_job(job, start.storage, local=start.local_by is not None)
    service = start.location.service
    with job_progress.displayed(start.location.settings, as_json=start.as_json) as shown:
        child = derive_job(found, on_start=shown.derived, **arguments, **start.run_options(shown))
        if not start.detach and service is None:
            shown.ended(child)
    if service is not None and start.wait:
        status.follow(child, service, as_json=start.as_json)


@with_options
def extend(
    job: JobArgument,
    replicates: Annotated[
        int | None, typer.Option(metavar="N", help="Run this many replicates of each parameter set in all")
    ] = None,
    sets: Annotated[
        str | None, typer.Option(metavar="FILE", help="Add the parameter sets of a CSV or Parquet file")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:NAME", help="Add a target, with the present code of the project; repeatable"),
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
    more = {"replicates": replicates, "sets": sets, "targets": target or ()}
    derive(extend_job, job, start, name=name, trust_model=trust_model, project=project, **more)


@with_options
def rescore(
    job: JobArgument,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:NAME", help="Evaluate this target, not those of the job; repeatable"),
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
    derive(rescore_job, job, start, name=name, targets=target or (), trust_model=trust_model, project=project)
