"""The command that runs one failed simulation of a job again, in the foreground."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mops.cli import job_text
from mops.jobs.job import Job
from mops.study.ids_and_seeds import short_id


def reproducer(job: Job) -> Callable[[dict[str, Any]], str]:
    """Return a function that returns the command for a row of :meth:`mops.jobs.job.Job.causes`.

    If this machine has the project, the command runs its present files, so that a person can repair the model and type
    the command again. If not, the command runs the files that the job keeps.
    """
    project = job.record.project
    code = ["--with-new-code"] if project and Path(project).is_dir() else []

    def command(row: dict[str, Any]) -> str:
        replicate = [] if row["replicate"] is None else ["--replicate", str(row["replicate"])]
        chosen = ["--job", job.name, "--set", short_id(row["param_id"]), *replicate, *code]
        return shlex.join(["mops", "study", "run", *chosen, *job_text.options(job)])

    return command
