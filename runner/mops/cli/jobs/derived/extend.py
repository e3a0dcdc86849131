"""``mops jobs extend``."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli.jobs.derived.retry import derive
from mops.cli.options import JobArgument
from mops.cli.start_options import NameOption, ProjectOption, StartOptions, TrustModelOption, with_start_options
from mops.errors import UsageError
from mops.jobs.derive import extend as extend_job


@with_start_options
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
