"""``mops jobs rescore``."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli.jobs.derived.retry import derive
from mops.cli.options import JobArgument
from mops.cli.start_options import NameOption, ProjectOption, StartOptions, TrustModelOption, with_start_options
from mops.jobs.derive import rescore as rescore_job


@with_start_options
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
