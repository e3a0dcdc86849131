"""Reads and checks a study, packs its project, and names the job."""

from __future__ import annotations

import logging
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from mops.child.load import is_in_import
from mops.errors import StudyError, UsageError, check_text_path, path_refused
from mops.jobs.location import path_text
from mops.project.bundle import FILE_LIMIT_BYTES, Bundle, pack, printable
from mops.project.bundle_cache import cache_folder, unpack
from mops.project.difference import Difference
from mops.project.function_files import FunctionFiles, function_files, is_from_function_file, is_function_file
from mops.project.import_folders import relative_to, with_import_folders
from mops.project.mops_toml import read_data_paths, read_observed
from mops.project.project import ModelSpec, read_registry, resolve
from mops.project.study_source import StudySource, given_study, read_study
from mops.settings import limits_of_study
from mops.storage.files import Files, canonical_url
from mops.storage.job_options import JobOptions
from mops.storage.job_records import JobRecord
from mops.storage.paths import bundle_path, new_job_id
from mops.study.study_file import Study, parse_study
from mops.system.process_memory import trim_heap
from mops.units import listed, mebibytes

logger = logging.getLogger(__name__)

_SHOWN = 5
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

_NAME_LIMIT = 60

_STUDY_HINT = "pass the path of a study file, like mops.submit('study.json'), a dict, or model=... and sets=..."


@dataclass(frozen=True)
class PreparedStudy:
    """A checked study, with its packed project."""

    study: Study
    text: str  # of the study file
    root: Path  # of the project
    spec: ModelSpec
    bundle: Bundle
    label: str | None  # what a new job's name begins with; None: the project's name
    name: str  # of the study, for people
    file: str  # the absolute path of the study file; empty: there is none
    limits: dict[str, Any]  # that the study sets: `mops.settings.Settings.limits`

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the study's parameters."""
        return tuple(self.study.groups.group(0).params)


def refuse_in_import() -> None:
    """Raise UsageError if the import of a model makes this call: each process that imports the model would start it."""
    if not is_in_import():
        return
    frame = sys._getframe()
    while frame.f_back and str(frame.f_back.f_globals.get("__name__")).partition(".")[0] == "mops":
        frame = frame.f_back
    raise UsageError(
        f"the import of the model calls mops.{frame.f_code.co_qualname}",
        hint="put the call below `if __name__ == '__main__':`",
    )


def prepare(
    study: str | Path | Mapping[str, Any],
    project: str | Path | None = None,  # None: mops finds it from the place of the study
    storage: str | None = None,  # the bundle leaves it out if it is a folder in the project
) -> PreparedStudy:
    """Read and check a study and its project; write nothing except to the cache of bundles."""
    root = given_project(project) if project is not None else None
    if isinstance(study, Mapping):
        source = given_study(study, root)
    else:
        source = read_study(Path(path_text(study, "study", _STUDY_HINT)), root)
    root = source.root
    check_text_path(root, "the project folder")
    check_text_path(source.file, "the study file")
    parsed, limits = _parsed(source)
    trim_memory()
    registry = read_registry(root)
    spec = resolve(parsed, root, registry)
    read_data_paths(root)  # a mistake in mops.toml shows here, and not on a worker
    results = canonical_url(storage) if storage else "://"
    bundle = pack(root, None if "://" in results else Path(results), source.functions)
    read_observed(bundle.data)  # as above: reports would lack the data
    sets = source.data.get("parameter_sets") if isinstance(source.data, dict) else None
    read = Path(os.path.realpath(source.folder / sets)) if isinstance(sets, str) else None
    own_sets = read.relative_to(root).as_posix() if read and read.is_relative_to(root) else ""
    # The model cannot read these files. A file of parameter sets is stored with the job.
    left_out = [f"{printable(name)} ({mebibytes(n_bytes)})" for name, n_bytes in bundle.too_large if name != own_sets]
    if left_out:
        message = "simulations cannot read %s: a file above %s is not sent to the workers; see [data] in mops.toml"
        logger.warning(message, listed_files(left_out), mebibytes(FILE_LIMIT_BYTES))
    folder = relative_to(source.folder, root)
    spec = with_import_folders(spec, bundle.names, folder, registry.entry_points, source.imported)
    unpack(bundle.digest, lambda: bundle.data, cache_folder())  # the check runs the bundle, not the folder
    return PreparedStudy(parsed, source.text, root, spec, bundle, source.label, source.name, source.file, limits)


def _parsed(source: StudySource) -> tuple[Study, dict[str, Any]]:
    """Return the study and its limits; a StudyError lists the problems of both."""
    try:
        parsed = parse_study(source.data, where=source.where, folder=source.folder)
    except StudyError as bad:
        given = source.data.get("limits") if isinstance(source.data, Mapping) else None
        if isinstance(given, Mapping):
            try:
                limits_of_study(given, source.where)
            except StudyError as also:
                raise StudyError(bad.what, [*bad.problems, *also.problems], where=source.where) from None
        raise
    return parsed, limits_of_study(parsed.limits, source.where)


def with_sets(
    prepared: PreparedStudy,
    study: Mapping[str, Any],  # the study that was prepared
    sets: Sequence[Mapping[str, Any]],
) -> PreparedStudy:
    """Return a prepared study with other parameter sets and the same files."""
    source = given_study({**study, "parameter_sets": sets}, prepared.root)
    parsed = parse_study(source.data, where=source.where, folder=source.folder)
    return replace(prepared, study=parsed, text=source.text)


def unpacked(files: Files, digest: str) -> Path:
    """Return the folder with the files of a stored bundle."""
    return unpack(digest, lambda: files.get(bundle_path(digest)), cache_folder())


def changed_inputs(files: Files, digest: str, prepared: PreparedStudy) -> tuple[list[str], list[str]]:
    """Return the code and the other files that differ from a stored bundle and may change simulations or losses.

    Of the other files, added ones do not count: they may be results.
    """
    if digest == prepared.bundle.digest:
        return [], []
    now = cache_folder() / prepared.bundle.digest
    difference = Difference(unpacked(files, digest), prepared.bundle, now, prepared.spec, prepared.spec.targets)
    changed = difference.of_model_and_targets(prepared.root)
    code = [name for name in changed if name.endswith(".py")]
    functions = "functions of the notebook or program, or variables that they use"
    shown = dict.fromkeys(functions if is_function_file(name) else f"the file {name}" for name in code)
    return list(shown), [name for name in changed if name not in code and difference.files.get(name) != "added"]


def kept_functions(files: Files, record: JobRecord) -> FunctionFiles:
    """Return the files of a job's bundle with functions that a notebook or program defined."""
    entries = (record.spec.model, *record.spec.targets)
    return function_files(unpacked(files, record.bundle)) if any(map(is_from_function_file, entries)) else {}


def listed_files(names: Sequence[str]) -> str:
    """Return the first names of files as one text, and the number of the others."""
    return listed(names, _SHOWN)


def trim_memory() -> None:
    """Return freed memory to the system: of a million sets, 200 MiB that Arrow would keep while the job runs."""
    pa.default_memory_pool().release_unused()
    trim_heap()  # Arrow may use another allocator than the system's


def given_project(folder: str | Path) -> Path:
    """Return the project root that a user names; raise UsageError if it does not exist."""
    try:
        root = Path(os.path.realpath(path_text(folder, "project", "pass the folder that holds the model")))
        is_there = root.is_dir()
    except (OSError, ValueError) as bad:
        raise path_refused(folder, "the project folder", bad) from bad
    if not is_there:
        raise UsageError(
            "the project folder does not exist", where=str(folder), hint="set --project to the folder with the model"
        )
    return root


def job_name(prepared: PreparedStudy, now: datetime) -> str:
    """Return a new name: the name of the study or its project, the date, and four random characters."""
    return f"{_slug(prepared.label or prepared.root.name) or 'study'}-{now:%y%m%d}-{secrets.token_hex(2)}"


def derived_name(
    parent: str,
    verb: str,  # retry, extend or rescore
    now: datetime,
) -> str:
    """Return a new name for a job derived from another, which may be derived itself."""
    stem = re.sub(r"(-retry|-extend|-rescore)?-\d{6}-[0-9a-f]{4}$", "", parent)
    return f"{_slug(stem) or 'job'}-{verb}-{now:%y%m%d}-{secrets.token_hex(2)}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:30].strip("-")


def checked_name(name: str) -> str:
    """Return a name that a person gave a job; raise UsageError if it is not valid."""
    if not isinstance(name, str) or len(name) > _NAME_LIMIT or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name for a job",
            where="the job's name",
            hint=f"use lower-case letters, digits and single hyphens, at most {_NAME_LIMIT} characters",
        )
    return name


def make_record(name: str, prepared: PreparedStudy, options: JobOptions, owner: str = "") -> JobRecord:
    """Return the record of a new job."""
    return JobRecord(
        job=name,
        id=new_job_id(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        bundle=prepared.bundle.digest,
        spec=prepared.spec,
        n_groups=len(prepared.study.groups),
        n_simulations=prepared.study.n_simulations,
        options=options,
        study=prepared.name,
        project=str(prepared.root),
        study_file=prepared.file,
        owner=owner,
    )
