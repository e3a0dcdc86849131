"""The command that runs one failed simulation of a job again, in the foreground."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mops.cli import job_text
from mops.jobs.job import Job
from mops.project.project import find_root
from mops.storage.kept_options import read_options
from mops.study.ids_and_seeds import short_id


def reproducer(job: Job) -> Callable[[dict[str, Any]], str]:
    """Return a function that returns the command for a row of :meth:`mops.jobs.job.Job.causes`.

    If this machine has the study file, the command runs the present files of the project, so that a person can repair
    the model. If not, the command runs the files that the job keeps.
    """
    source = _study(job) or ["--job", job.name, *job_text.options(job)]

    def command(row: dict[str, Any]) -> str:
        replicate = [] if row["replicate"] is None else ["--replicate", str(row["replicate"])]
        return shlex.join(["mops", "study", "run", *source, "--set", short_id(row["param_id"]), *replicate])

    return command


def _study(job: Job) -> list[str]:
    """Return the study file of a job with the options of its submit; empty: this machine does not have the file."""
    record = job.record
    if not record.study_file or not Path(record.study_file).is_file():
        return []
    kept = read_options(job.files, record).options
    project = [] if str(find_root(record.study_file)) == record.project else ["--project", record.project]
    env = [name if value is None else f"{name}={value}" for name, value in kept.env.items()]
    python = ["--python", kept.python] if kept.python else []
    return [job_text.nearby(record.study_file), *project, *(part for one in env for part in ("--env", one)), *python]
