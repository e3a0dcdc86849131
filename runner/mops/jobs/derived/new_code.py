"""Takes the present files of a job's project, after a check that its model has not changed."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

from mops.errors import JobError, UsageError
from mops.jobs.derived.model_files import model_files
from mops.jobs.job import Job
from mops.jobs.submit import listed_files, unpacked
from mops.project.bundle import Bundle, differing_files, pack
from mops.project.bundle_cache import cache_folder, unpack
from mops.project.project import ModelSpec
from mops.storage.job_records import JobRecord


@dataclass(frozen=True)
class NewCode:
    """The present files of a project, and a line for people about what has changed since the submit."""

    bundle: Bundle
    root: Path
    change: str


def read_new_code(job: Job, record: JobRecord, *, project: Path | None, spec: ModelSpec, trust_model: bool) -> NewCode:
    """Pack the project of a job as it is now.

    Parameters
    ----------
    project
        Its folder; None: where it was at the submit.
    spec
        The model, and the targets of the old and of the new job.
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
    root = project or Path(record.project)
    if not (project or record.project) or not root.is_dir():
        raise UsageError(
            f"the project of job {job.name!r} is not on this machine",
            where=str(root),
            hint="name the folder that has it: --project FOLDER",
        )
    bundle = pack(root, None if "://" in job.files.url else Path(job.files.url))
    unpack(bundle.digest, lambda: bundle.data, cache_folder())  # the check runs the bundle, not the folder
    before = unpacked(job, record)
    differing = dict(differing_files(bundle, before))
    # A file that is left out now and still there: .mopsignore says that the model does not read it.
    known = {name: how for name, how in differing.items() if how != "removed" or not (root / name).is_file()}
    of_model = [] if trust_model else model_files(known, _sources(bundle, before), spec)
    if of_model:
        raise JobError(
            f"the model of job {job.name!r} may have changed since the submit: {listed_files(of_model)}",
            where=str(root),
            hint="list files that the model does not read in .mopsignore, or accept the changes: --trust-model",
        )
    listed = listed_files([f"{name} ({how})" for name, how in differing.items()])
    change = f"uses the present files of the project; changed since the submit: {listed or 'none'}"
    return NewCode(bundle, root, change)


def _sources(bundle: Bundle, before: Path) -> dict[str, str]:
    """Return the text of each Python and JSON file, before and after the change."""
    with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
        new = {name: archive.read(name) for name in archive.namelist() if name.endswith((".py", ".json"))}
    found = {name: data.decode(errors="replace") for name, data in new.items()}
    for path in (*before.rglob("*.py"), *before.rglob("*.json")):
        name, text = path.relative_to(before).as_posix(), path.read_text(encoding="utf-8", errors="replace")
        if name.endswith(".py"):
            found[name] = f"{text}\n{found.get(name, '')}"
        else:
            found.setdefault(name, text)
    return found
