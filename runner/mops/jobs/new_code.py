"""The code of a derived job: which files its model needs, and what happens if they differ from the parent's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from mops.errors import JobError, UsageError
from mops.jobs.job import Job
from mops.jobs.prepare import given_project, kept_functions, listed_files, unpacked
from mops.project.bundle import Bundle, pack
from mops.project.bundle_cache import cache_folder, unpack
from mops.project.difference import Difference
from mops.project.function_files import FunctionFiles, is_from_function_file, is_function_file
from mops.project.functions import Code, GivenCode
from mops.project.import_folders import with_import_folders
from mops.project.project import ModelSpec
from mops.storage.files import Files
from mops.storage.job_records import JobRecord
from mops.study.entry_point import EntryPoint


@dataclass(frozen=True)
class NewCode:
    """The present files of a project."""

    bundle: Bundle
    root: Path
    changes: list[str]  # a line for people if files have changed since the submit
    of_model: list[str]  # the changed files that may belong to the model

    def check_model(self, job: Job, *, trust_model: bool) -> None:
        """Raise JobError if a file has changed that may change what the model computes, unless a person trusts it."""
        if self.of_model and not trust_model:
            raise JobError(
                f"the model of job {job.name!r} may have changed since the submit: {listed_files(self.of_model)}",
                where=str(self.root),
                hint="list files that the model does not read in .mopsignore, or accept the changes: --trust-model",
            )


def present_project(record: JobRecord, project: str | Path | None) -> Path:
    """Return the project folder that a user names; None: where the job's project was at the submit."""
    if project is not None:
        return given_project(project)
    root = Path(record.project)
    if not record.project or not root.is_dir():
        raise UsageError(
            f"the project of job {record.job!r} is not on this machine",
            where=str(root),
            hint="name the folder with the model: --project FOLDER",
        )
    return root


def present_bundle(
    files: Files,
    record: JobRecord,
    root: Path,  # from `present_project`
    # Files with more functions than those that a notebook or program defined before the submit.
    functions: FunctionFiles = MappingProxyType({}),
) -> Bundle:
    """Pack the project of a job as it is now, and unpack the bundle into the cache."""
    results = None if "://" in files.url else Path(files.url)
    bundle = pack(root, results, {**kept_functions(files, record), **functions})
    unpack(bundle.digest, lambda: bundle.data, cache_folder())  # the bundle runs, not the folder
    return bundle


def present_code(
    job: Job,
    project: str | Path | None,  # None: where it was at the submit
    *,
    model: Code | None = None,  # in place of the job's
    targets: Sequence[Code] = (),
    replaced: bool = False,  # whether the targets replace those of the job
) -> tuple[ModelSpec, NewCode]:
    """Return a job's spec with this model and these targets, and the project's present files, which have them."""
    # Functions that a notebook or program defined stay as at the submit.
    record = job.record
    spec, root = record.spec, present_project(record, project)
    given = GivenCode(root, root, kept_functions(job.files, record))
    if model is not None:
        spec = replace(spec, model=_named(given.model(model), "the model"))
    if targets:
        entries, kept = given.targets(targets), () if replaced else spec.targets
        for target in entries:
            _check_target(target, kept)
        spec = replace(spec, targets=tuple(dict.fromkeys([*kept, *entries])))
    bundle = present_bundle(job.files, record, root, given.files())
    before, now = unpacked(job.files, record.bundle), cache_folder() / bundle.digest
    difference = Difference(before, bundle, now, spec, record.spec.targets)
    own = {name: how for name, how in difference.files.items() if not is_function_file(name)}
    listed = listed_files([f"{name} ({how})" for name, how in own.items()])
    changes = [f"uses the present files of the project; changed since the submit: {listed}"] if listed else []
    code = NewCode(bundle, root, changes, difference.of_model(root))
    if model is not None or targets:
        folders = with_import_folders(spec, bundle.names, imported=given.imported).import_folders
        spec = replace(spec, import_folders=tuple(dict.fromkeys([*spec.import_folders, *folders])))
    return spec, code


def _named(entry: str, where: str) -> str:
    if EntryPoint.parse(entry).name is None:
        raise UsageError(f"{entry!r} names no function", where=where, hint=f"write '{entry}:function'")
    return entry


def _check_target(target: str, kept: Sequence[str]) -> None:
    """Raise if a target names no function, or is a function whose loss would count twice in the sum of the losses."""
    name = EntryPoint.parse(_named(target, "the targets")).name
    same = [one for one in kept if is_from_function_file(one) and EntryPoint.parse(one).name == name]
    if same and is_from_function_file(target):
        raise UsageError(
            f"the job has a target {name!r} already",
            where="the targets",
            hint=f"score the stored simulations with the new one instead: job.rescore(targets=[{name}])",
        )


def changed_model(
    record: JobRecord,
    spec: ModelSpec,  # of the derived job
    code: NewCode | None,  # its own files; None: those of the job
) -> list[str]:
    """Return what differs between a job's model, whose simulations a derived job takes over, and the present one."""
    of_model = code.of_model if code else []
    names = dict.fromkeys("the model's function" if is_function_file(name) else name for name in of_model)
    return list(names) or ([f"the model {record.spec.model}"] if spec.model != record.spec.model else [])
