"""Takes a study from the user's folder into the storage, and runs it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mops.driver.attempt import Attempt, children, context_of
from mops.driver.progress import Snapshot
from mops.errors import JobError, StudyError, UsageError
from mops.job import Job, open_files
from mops.settings import Settings
from mops.storage.bundles import Bundle, cache_folder, pack, unpack
from mops.storage.jobs import JobRecord, create_job, load_bundle, load_job, read_live
from mops.storage.log import JobLog
from mops.storage.paths import JobPaths
from mops.study.project import ModelSpec, find_root, read_registry, resolve
from mops.study.schema import Study, parse_study, read_json

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NAME_LIMIT = 60


@dataclass(frozen=True)
class Prepared:
    """A study that was read and checked, with the project that it belongs to, packed.

    Parameters
    ----------
    raw
        The study as it was given.
    root
        The project root.
    """

    study: Study
    raw: object
    root: Path
    spec: ModelSpec
    bundle: Bundle


def prepare(study: str | Path, project: str | Path | None = None, storage: str | None = None) -> Prepared:
    """Read and check a study and its project; nothing is written but the cache of bundles.

    Parameters
    ----------
    study
        Path of the study file.
    project
        The project root; None: found from the study's place (STUDY.md).
    storage
        Where results go: left out of the bundle if it is a folder in the project.

    Raises
    ------
    StudyError
        The study is not as STUDY.md says: every problem.
    BundleError, ModelError, UsageError
        The project cannot be packed, or does not say which model is meant.
    """
    path = Path(study)
    raw = read_json(_read(path), where=str(path))
    parsed = parse_study(raw, where=str(path))
    root = _project(project) if project is not None else find_root(path)
    spec = resolve(parsed, root, read_registry(root))
    bundle = pack(root, Path(storage) if storage and "://" not in storage else None)
    unpack(bundle.data, bundle.digest, cache_folder())  # what runs here is the bundle, not the folder
    return Prepared(parsed, raw, root, spec, bundle)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            "there is no such study file", where=str(path), hint="name a study file, like study.json"
        ) from None
    except IsADirectoryError:
        raise UsageError(
            "this is a folder, not a study file", where=str(path), hint="name the study.json in it"
        ) from None
    except PermissionError:
        raise UsageError(
            "this study file may not be read", where=str(path), hint="look at its owner and mode"
        ) from None
    except UnicodeDecodeError as bad:
        raise StudyError(
            "the study file is not UTF-8 text", [], where=f"{path}, byte {bad.start}", hint="save it as UTF-8"
        ) from None


def _project(folder: str | Path) -> Path:
    root = Path(folder).resolve()
    if not root.is_dir():
        raise UsageError(
            "there is no such project folder", where=str(folder), hint="--project names the folder that holds the model"
        )
    return root


def job_name(study_path: Path, root: Path, now: datetime) -> str:
    """Return a new name: the study's (or its project's) name, the date, and four random characters."""
    stem = study_path.stem if study_path.stem != "study" else root.name
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:30].strip("-") or "study"
    return f"{slug}-{now:%y%m%d}-{secrets.token_hex(2)}"


def submit(
    study: str | Path,
    *,
    project: str | Path | None = None,
    storage: str | None = None,
    name: str | None = None,
    settings: Settings | None = None,
    on_start: Callable[[Prepared, Job], None] = lambda *_: None,
    on_progress: Callable[[Snapshot], None] = lambda _: None,
) -> Job:
    """Run a study on an embedded cluster and return its job when it has ended.

    Parameters
    ----------
    study
        Path of a study.json (docs: STUDY).
    project
        The folder with the model; None: found from the study's place.
    storage
        URL or folder for the results; None: ``MODELOPS_STORAGE``, else ``mops-storage`` in the project.
    name
        The job's name (lower-case letters, digits and single hyphens); None: made from the study's.
    settings
        None: from the environment.
    on_start
        Called when the job exists and before it runs.
    on_progress
        Called about four times a second.

    Raises
    ------
    UsageError
        The study, the settings, the project or the model; nothing was written.
    StorageError
        The storage is out of reach, or full; ``mops.resume(mops.open_job(name))`` goes on.
    """
    settings = settings or Settings.from_environment()
    prepared = prepare(study, project, storage or settings.storage)
    name = _checked(name) if name else job_name(Path(study), prepared.root, datetime.now(UTC))
    files = open_files(storage or settings.storage, prepared.root)
    files.brief().list(JobPaths(name).root)  # out of reach? said before the model is imported, and within seconds
    job = Job(files, name)
    record = _record(name, prepared)
    context = context_of(name, prepared.bundle.digest, files.url, prepared.spec, settings)
    pending = [prepared]
    del prepared

    def create() -> None:
        # Taken out, so that the study is not held as objects while the job runs: the runner reads its groups as Arrow.
        study = pending.pop()
        create_job(files, record, study.bundle, study.raw, study.study.groups)
        on_start(study, job)

    Attempt(files, record, context, settings, create, on_progress).run()
    return job


def _checked(name: str) -> str:
    if len(name) > _NAME_LIMIT or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a job",
            where="the job's name",
            hint=f"use lower-case letters, digits and single hyphens, at most {_NAME_LIMIT} characters",
        )
    return name


def _record(name: str, prepared: Prepared) -> JobRecord:
    return JobRecord(
        job=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        bundle=prepared.bundle.digest,
        spec=prepared.spec,
        n_groups=len(prepared.study.groups),
        n_simulations=prepared.study.n_simulations,
    )


def check_model(prepared: Prepared, settings: Settings) -> None:
    """Import the model and the targets in a child, from the bundle.

    Raises
    ------
    ModelError
        They cannot be imported, or are not what STUDY.md asks for.
    """
    here = settings.model_copy(update={"scheduler": None})
    context = context_of("check", prepared.bundle.digest, "", prepared.spec, here)
    with children(context, warm=False) as pool:
        pool.check()


def resume(
    job: Job,
    *,
    settings: Settings | None = None,
    take_over: bool = False,
    on_start: Callable[[Job, list[str]], None] = lambda *_: None,
    on_progress: Callable[[Snapshot], None] = lambda _: None,
) -> str:
    """Go on with a job from what is committed; return its state.

    Parameters
    ----------
    job
        The job, not complete.
    settings
        None: from the environment, read afresh.
    take_over
        Also if a runner is at the job: it meets the new attempt's claim, stops, and commits nothing more.
    on_start
        Called before anything runs, with a line for each setting that the attempt before had otherwise.
    on_progress
        Called about four times a second.

    Raises
    ------
    JobError
        The job is complete: there is nothing to resume. Or a runner is at it.
    """
    settings = settings or Settings.from_environment()
    record = load_job(job.files, job.name)
    view = JobLog(job.files, JobPaths(job.name)).read()
    if view.complete:
        raise JobError(
            f"job {job.name!r} is complete ({view.state}): there is nothing to resume",
            where=job.files.url,
            hint=f"read it with: mops jobs results {job.name}",
        )
    if not take_over:
        job.require_no_runner(f"stop it with: mops jobs cancel {job.name}; or supersede it with --take-over")
    before = read_live(job.files, JobPaths(job.name), view.attempt)
    changes = settings.changes_since(before.settings) if before else []
    unpack(load_bundle(job.files, record.bundle), record.bundle, cache_folder())
    context = context_of(job.name, record.bundle, job.files.url, record.spec, settings)
    return Attempt(job.files, record, context, settings, lambda: on_start(job, changes), on_progress).run()
