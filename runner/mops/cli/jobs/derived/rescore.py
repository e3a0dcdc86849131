"""``mops jobs rescore``."""

from __future__ import annotations

from mops.cli.jobs.derived.retry import derive
from mops.cli.options import JobArgument
from mops.cli.start_options import NameOption, ProjectOption, StartOptions, TrustModelOption, with_start_options
from mops.jobs.derived.derive import rescore as rescore_job


@with_start_options
def rescore(
    job: JobArgument,
    name: NameOption = None,
    trust_model: TrustModelOption = False,
    project: ProjectOption = None,
    *,
    start: StartOptions,
) -> None:
    """Evaluate targets again on stored simulations.

    The result is a new job. No simulation runs. The new job uses the present code of the project. It is refused if a
    file has changed that may belong to the model, such as a data file, or a Python file that the model names.

    Example:

        mops jobs rescore waves
    """
    derive(rescore_job, job, start, name=name, trust_model=trust_model, project=project)
