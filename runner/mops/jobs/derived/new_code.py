"""Takes the present files of a job's project, after a check that its model has not changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from mops.errors import JobError, UsageError
from mops.jobs.derived.same_model import CodeChange
from mops.jobs.job import Job
from mops.jobs.prepare import kept_functions, listed_files, unpacked
from mops.project.bundle import Bundle, pack
from mops.project.bundle_cache import cache_folder, unpack
from mops.project.function_files import FunctionFiles, is_function_file
from mops.project.project import ModelSpec
from mops.storage.job_records import JobRecord


@dataclass(frozen=True)
class NewCode:
    """The present files of a project, and a line for people if files have changed since the submit."""

    bundle: Bundle
    root: Path
    changes: list[str]


def present_bundle(
    job: Job, record: JobRecord, project: Path | None, functions: FunctionFiles = MappingProxyType({})
) -> tuple[Bundle, Path]:
    """Pack the project of a job as it is now, and unpack the bundle into the cache; return it and the project's folder.

    Parameters
    ----------
    project
        The folder; None: where it was at the submit.
    functions
        Files with more functions than those that a notebook or program defined before the submit.

    Raises
    ------
    UsageError
        The project is not there.
    BundleError
        The project cannot be packed.
    """
    root = project or Path(record.project)
    if not (project or record.project) or not root.is_dir():
        raise UsageError(
            f"the project of job {job.name!r} is not on this machine",
            where=str(root),
            hint="name the folder with the model: --project FOLDER",
        )
    results = None if "://" in job.files.url else Path(job.files.url)
    bundle = pack(root, results, {**kept_functions(job.files, record), **functions})
    unpack(bundle.digest, lambda: bundle.data, cache_folder())  # the bundle runs, not the folder
    return bundle, root


def read_new_code(
    job: Job, project: Path | None, spec: ModelSpec, functions: FunctionFiles, *, trust_model: bool
) -> NewCode:
    """Pack the project of a job as it is now.

    Functions that a notebook or program defined stay as at the submit.

    Parameters
    ----------
    project
        Its folder; None: where it was at the submit.
    spec
        The model, and the targets of the old and of the new job.
    functions
        Files with more functions.
    trust_model
        Do not check the model's files.

    Raises
    ------
    UsageError
        The project is not there.
    JobError
        A file has changed that may change what the model computes.
    BundleError
        The project cannot be packed.
    """
    record = job.record
    bundle, root = present_bundle(job, record, project, functions)
    difference = CodeChange.between(unpacked(job.files, record), bundle, root)
    of_model = [] if trust_model else difference.of_model(spec)
    if of_model:
        raise JobError(
            f"the model of job {job.name!r} may have changed since the submit: {listed_files(of_model)}",
            where=str(root),
            hint="list files that the model does not read in .mopsignore, or accept the changes: --trust-model",
        )
    own = {name: how for name, how in difference.files.items() if not is_function_file(name)}
    listed = listed_files([f"{name} ({how})" for name, how in own.items()])
    changes = [f"uses the present files of the project; changed since the submit: {listed}"] if listed else []
    return NewCode(bundle, root, changes)
