"""Starts jobs: submit, resume, retry, and the command that a detached runner runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from mops.attempt.attempt import Attempt, job_context, simulations_grace
from mops.attempt.reporting.progress import Snapshot
from mops.cluster.worker_losses import Pods
from mops.errors import BundleError, JobError, OptionsError, Problem, UsageError
from mops.jobs import derived_jobs, detached
from mops.jobs.detached import DetachedRunner
from mops.jobs.job import Job
from mops.jobs.location import Location, locate
from mops.jobs.prepare import (
    PreparedStudy,
    checked_name,
    context_for,
    job_name,
    make_record,
    prepare,
    retry_name,
    study_name,
    trim_memory,
)
from mops.jobs.status import job_state
from mops.project.bundle import differing_files, pack
from mops.project.bundle_cache import cache_folder, unpack
from mops.service.service import KubernetesRunner, Service
from mops.settings import PREFIX, Settings
from mops.storage.files import Files
from mops.storage.job_options import JobOptions, PodOptions
from mops.storage.job_records import JobRecord, create_derived, create_job, load_bundle, load_job
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Asked, By
from mops.storage.joblog.starting import check_start
from mops.storage.joblog.view import LogView
from mops.storage.kept_options import KeptOptions, keep_options, read_options
from mops.storage.live_record import read_live
from mops.storage.paths import JobPaths
from mops.worker.environment.options import ChildEnvironment, child_environment
from mops.worker.environment.variables import Variables

StartedRunner: TypeAlias = DetachedRunner | KubernetesRunner
"""A runner that runs somewhere else than in this process."""

Launcher: TypeAlias = Callable[[Files, str], AbstractContextManager[Callable[[Mapping[str, str], str], StartedRunner]]]
"""Starts runners somewhere else, for a storage and a job. Within its context the job is created; then what it has given
is called with the settings as variables, and the request that the runner carries out
(:class:`mops.storage.joblog.records.Asked`, as text)."""

_FILES_SHOWN = 5


def submit(
    study: str | Path,
    *,
    project: str | Path | None = None,
    storage: str | None = None,
    name: str | None = None,
    env: Variables | None = None,
    python: str | Path | None = None,
    pod: PodOptions | None = None,
    settings: Settings | None = None,
    detach: bool = False,
    local: bool = False,
    service: Service | None = None,
    on_start: Callable[[PreparedStudy, Job], None] = lambda *_: None,
    on_progress: Callable[[Snapshot], None] = lambda _: None,
    on_detach: Callable[[Job, StartedRunner], None] = lambda *_: None,
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
    env
        Variables for the model. A value is kept with the job; None: it is taken from the environment of whoever
        runs or resumes the job, and never kept.
    python
        The interpreter that runs simulations, if it is to be another one: it needs numpy and pyarrow, and what the
        model imports, but not mops.
    pod
        What the runner's pod has in place of what the service's chart says. Like ``env`` and ``python`` it is kept with
        the job.
    settings
        None: from the environment.
    detach
        Return as soon as a runner of its own has begun, which outlives this process.
    local
        Run on this machine even when connected to a service.
    service
        Return as soon as this cluster service has taken the runner's Job; None: the connected one, if
        :mod:`mops.jobs.location` says so.
    on_start
        Called when the job exists and before it runs.
    on_progress
        Called about four times a second, while this process runs the job.
    on_detach
        Called when the runner has begun that is detached, or Kubernetes has taken it.

    Raises
    ------
    UsageError
        The study, the settings, the project, the model or what it is to be started with; nothing was written.
    StorageError
        The storage is out of reach, or full; ``mops.resume(mops.open_job(name))`` goes on.
    RunnerEnded
        The detached runner ended before it had begun; the job is there to be resumed.
    """
    settings = settings or Settings.from_environment()
    location, service = _located(service, settings, storage, here=local or detach)
    service, pod = _placed(service, pod or PodOptions())
    given = _given(env, python, service, settings)
    prepared = prepare(study, project, location.storage)
    name = checked_name(name) if name else job_name(Path(study), prepared.root, datetime.now(UTC))
    files = location.open(prepared.root)
    files.brief().list(JobPaths(name).root)  # out of reach? said before the model is imported, and within seconds
    job = Job(files, name)
    options = JobOptions(dict(env or {}), given.python, pod)
    record = replace(make_record(name, prepared), options=options, study=study_name(Path(study)))
    context = context_for(
        prepared, given.of(job_context(name, prepared.bundle.digest, files.url, prepared.spec, settings))
    )
    pending = [prepared]
    del prepared

    def create() -> None:
        # Taken out, so that the study is not held as objects while the job runs: the runner reads its groups as Arrow.
        study = pending.pop()
        create_job(files, record, study.bundle, study.text, study.study.groups)
        on_start(study, job)
        del study
        trim_memory()

    asked = Asked.behind(0)
    _carry_out(Attempt(files, record, context, settings, create, on_progress, asked=asked), detach, service, on_detach)
    return job


def _located(
    service: Service | None, settings: Settings, storage: str | None = None, *, here: bool, results: str | None = None
) -> tuple[Location, Service | None]:
    """Return where a job runs, and the service for it: the connected one if none is named, unless ``here``."""
    location = locate(storage, local=here, profile=service.profile if service else None, settings=settings)
    if service is None and location.profile is not None:
        service = Service.current(location.profile)
        location = locate(storage, profile=service.profile, settings=settings)
    return location, replace(service, results=results) if service else None


def _placed(
    service: Service | None, pod: PodOptions, asked: PodOptions | None = None
) -> tuple[Service | None, PodOptions]:
    """Return the service with a job's options, and the options with the kind of its Dask cluster.

    Parameters
    ----------
    asked
        Those of ``pod`` that this command names; None: all.

    Raises
    ------
    UsageError
        This machine runs the job, and the command names such options; or as :meth:`Service.given`.
    """
    if service is not None:
        service = service.given(pod)
        return service, replace(pod, dedicated=service.dedicated_size is not None)
    if refused := (asked or pod).of_a_service:
        raise UsageError(
            f"this machine is to run the job, and has no {', '.join(refused)}",
            where="the options of the runner's pod",
            hint="leave them out, or name the service that runs the job",
        )
    return None, pod


def _given(
    env: Variables | None,
    python: str | Path | None,
    service: Service | None,
    settings: Settings,
    where: str | None = None,
) -> ChildEnvironment:
    """Check what simulations are to be started with, as far as this machine can tell.

    Raises
    ------
    OptionsError
        What :func:`mops.worker.environment.options.child_environment` finds; or an interpreter of this machine for
        pods.
    """
    if service is None:
        return child_environment(env, python, where=where, install=settings.install)
    if python is not None:
        problem = Problem("--python", f"{python} is of this machine, and pods have their image's interpreter")
        raise OptionsError([problem], where=where, hint="put what the model needs into a requirements.txt beside it")
    # A variable without a value is one of the pods' own, from the operator's Secret: here only its name is checked.
    return child_environment(env, None, where=where, install=settings.install, environ=None)


def _elsewhere(detach: bool, service: Service | None) -> Launcher | None:
    """Return what starts the runner; None: this process runs the job."""
    if service is not None:
        return service.ready
    return detached.ready if detach else None


def _carry_out(
    attempt: Attempt,
    detach: bool,
    service: Service | None,
    on_detach: Callable[[Job, StartedRunner], None],
) -> None:
    """Run an attempt here, or start a runner for it."""
    service = replace(service, study=attempt.record.study) if service else None
    elsewhere = _elsewhere(detach, service)
    if elsewhere is None:
        attempt.run()
        return
    files, name = attempt.files, attempt.record.job
    with elsewhere(files, name) as start:
        attempt.create_only(other_packages=service is not None)
        runner = start(attempt.settings.to_environment(), str(attempt.asked))
    on_detach(Job(files, name), runner)


def resume(
    job: Job,
    *,
    env: Variables | None = None,
    python: str | Path | None = None,
    pod: PodOptions | None = None,
    settings: Settings | None = None,
    take_over: bool = False,
    detach: bool = False,
    local: bool = False,
    service: Service | None = None,
    on_start: Callable[[Job, list[str]], None] = lambda *_: None,
    on_progress: Callable[[Snapshot], None] = lambda _: None,
    on_detach: Callable[[Job, StartedRunner], None] = lambda *_: None,
) -> Job:
    """Go on with a job from what is committed; return it when it has ended.

    Parameters
    ----------
    job
        The job, not complete.
    env, python, pod
        As for :func:`submit`: in place of what is kept with the job, now and from now on; of ``env`` and ``pod``
        only what is named.
    settings
        None: from the environment, read afresh.
    take_over
        Also if a runner is at the job: it meets the new attempt's claim, stops, and commits nothing more.
    detach
        Return as soon as a runner of its own has begun, which outlives this process.
    local, service
        As for :func:`submit`.
    on_start
        Called before anything runs, with a line for each setting or option that the attempt before had otherwise.
    on_progress
        Called about four times a second, while this process runs the job.
    on_detach
        Called when the runner has begun that is detached, or Kubernetes has taken it.

    Raises
    ------
    JobError
        The job is complete: there is nothing to resume. Or a runner is at it.
    Overtaken
        Somebody has cancelled the job, or another runner has begun or ended, since this was called.
    RunnerEnded
        The detached runner ended before it had begun.
    OptionsError
        A variable that the job takes from this environment is not set in it, or its interpreter is not what it was.
    """
    settings = settings or Settings.from_environment()
    _, service = _located(service, settings, here=local or detach, results=job.files.url)
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
    next_run = _next_run(job, record, env, python, pod, service, settings)
    service, changes = next_run.service, [*_changes(job, record, view, settings, service), *next_run.changes]
    replaces = service is not None and service.refuse_another(job.name, take_over=take_over)

    def begin() -> None:
        keep_options(job.files, record, next_run.kept, next_run.options)
        if service is not None and replaces:
            service.remove_runner(job.name)  # when nothing can be refused any more: else nobody would be at the job
        on_start(job, changes)

    attempt = _attempt(job, record, next_run.given, settings, begin, on_progress, Asked.behind(view.k))
    _carry_out(attempt, detach, service, on_detach)
    return job


@dataclass(frozen=True)
class _NextRun:
    """How a job that exists is started once more.

    Parameters
    ----------
    kept, options
        What is kept with the job, and what is in effect from now on.
    changes
        A line for each option that this command has changed.
    given
        The checked variables and interpreter.
    """

    kept: KeptOptions
    options: JobOptions
    changes: list[str]
    service: Service | None
    given: ChildEnvironment


def _next_run(
    job: Job,
    record: JobRecord,
    env: Variables | None,
    python: str | Path | None,
    pod: PodOptions | None,
    service: Service | None,
    settings: Settings,
) -> _NextRun:
    """Put what a command names in place of what is kept with a job, and check the whole."""
    kept = read_options(job.files, record)
    asked = JobOptions(dict(env or {}), str(python) if python is not None else None, pod or PodOptions())
    options = kept.options.overridden(asked)
    if service is not None:
        options = replace(options, python=asked.python)  # a kept one is of a machine: it is set aside, not refused
    where = f"job {job.name}"
    given = _given(options.env, options.python, service, settings, where=where)
    options = replace(options, python=given.python)
    changes = options.changes_since(kept.options)
    service, placed = _placed(service, options.pod, asked.pod)
    return _NextRun(kept, replace(options, pod=placed), changes, service, given)


def _changes(job: Job, record: JobRecord, view: LogView, settings: Settings, service: Service | None) -> list[str]:
    """Return a line for each setting that the job's last attempt had otherwise, and one for the project's files.

    Places are the service's own matter.
    """
    before = read_live(job.files, JobPaths(job.name), view.attempt)
    changes = settings.changes_since(before.settings) if before else []
    return [
        *(change for change in changes if service is None or change.startswith(PREFIX)),
        *_project_changes(job, record),
    ]


def _project_changes(job: Job, record: JobRecord) -> list[str]:
    """Say which files of the project differ from those of the job, which run all the same; nothing if none does."""
    if not record.project:
        return []
    root, results = Path(record.project), job.files.url
    try:
        bundle = pack(root, None if "://" in results else Path(results))
    except BundleError:  # it is not on this machine, or is no project any more
        return []
    if bundle.digest == record.bundle:
        return []
    then = unpack(record.bundle, lambda: load_bundle(job.files, record.bundle), cache_folder())
    differing = list(differing_files(bundle, then))
    shown = ", ".join(f"{name} ({how})" for name, how in differing[:_FILES_SHOWN])
    more = len(differing) - _FILES_SHOWN
    listed = f"{shown} and {more} more" if more > 0 else shown
    return [f"the project has changed since the submit, and the job runs its files of then: {listed}"]


def _attempt(
    job: Job,
    record: JobRecord,
    given: ChildEnvironment,
    settings: Settings,
    create: Callable[[], None],
    on_progress: Callable[[Snapshot], None],
    asked: Asked | None,
    by: By = "person",
) -> Attempt:
    """Return an attempt of a job whose bundle is stored."""
    unpack(record.bundle, lambda: load_bundle(job.files, record.bundle), cache_folder())
    context = given.of(job_context(job.name, record.bundle, job.files.url, record.spec, settings))
    return Attempt(job.files, record, context, settings, create, on_progress, by, asked)


def run(
    job: Job,
    *,
    asked: Asked | None = None,
    settings: Settings | None = None,
    on_progress: Callable[[Snapshot], None] = lambda _: None,
    pods: Pods | None = None,
    unwatched: bool = False,
    grace_s: float | None = None,
) -> str:
    """Run a job that exists and return its state: what a runner does that nobody watches.

    Parameters
    ----------
    asked
        The request that this runner carries out: of a person, so that it goes on with a job that was cancelled or
        failed before. Once it has been carried out, and with None, such a job stays as it is.
    settings
        None: from the environment.
    pods
        Tells why pods ended, where this process runs in one; None: nobody can.
    unwatched
        Nobody waits for this process's first words, either: a model that cannot be imported, or whose dependencies
        cannot be installed, ends the job as failed, unless another runner is at it.
    grace_s
        The time from SIGTERM to the kill, of which some is kept for the last commit; None: nobody kills this process.

    Raises
    ------
    Settled
        There is nothing to run.
    Overtaken
        The request is void: somebody has cancelled, ended or claimed the job since.
    """
    settings = settings or Settings.from_environment()
    view = JobLog(job.files, JobPaths(job.name)).read()
    by = check_start(view, "person" if asked else "auto", asked, job=job.name, where=job.files.url)
    record = job.record
    options = read_options(job.files, record).options
    given = _given(options.env, options.python, None, settings, where=f"job {job.name}")
    attempt = _attempt(job, record, given, settings, lambda: None, on_progress, asked, by)
    alone = unwatched and job_state(job.files, job.name, view)[0] != "running"
    attempt = replace(attempt, grace_s=simulations_grace(grace_s))
    # A restarted pod has the same request, and knows by its nonce that this claim is its own.
    unseen = Asked(view.k, asked.nonce) if asked else Asked.behind(view.k)
    return replace(attempt, pods=pods, unseen=unseen if alone else None).run()


def retry(
    job: Job,
    verdicts: str | Iterable[str],
    *,
    name: str | None = None,
    env: Variables | None = None,
    python: str | Path | None = None,
    pod: PodOptions | None = None,
    settings: Settings | None = None,
    detach: bool = False,
    local: bool = False,
    service: Service | None = None,
    on_start: Callable[[Job, list[str]], None] = lambda *_: None,
    on_progress: Callable[[Snapshot], None] = lambda _: None,
    on_detach: Callable[[Job, StartedRunner], None] = lambda *_: None,
) -> Job:
    """Run the parameter sets with some failures again, in a new job that takes over all others.

    Parameters
    ----------
    job
        The job, complete. It stays as it is.
    verdicts
        The failures meant, by their ``reason``: names, ``"oom,timeout"``, or ``"all"``.
    name
        The new job's name; None: made from the job's.
    env, python, pod
        As for :func:`submit`: in the new job, in place of what is kept with the old one; of ``env`` and ``pod`` only
        what is named.
    settings
        None: from the environment, read afresh.
    detach
        Return as soon as a runner of its own has begun, which outlives this process.
    local, service
        As for :func:`submit`.
    on_start
        Called when the new job exists and before it runs, with a line for each setting or option that the old one had
        otherwise.
    on_progress
        Called about four times a second, while this process runs the job.
    on_detach
        Called when the runner has begun that is detached, or Kubernetes has taken it.

    Raises
    ------
    UsageError
        There is no such verdict.
    JobError
        The job is not complete, or has no such failure.
    StorageError, RunnerEnded
        As for :func:`submit`.
    """
    settings = settings or Settings.from_environment()
    _, service = _located(service, settings, here=local or detach, results=job.files.url)
    record, view = job.record, JobLog(job.files, JobPaths(job.name)).read()
    parent = derived_jobs.parent(job, record, view, derived_jobs.wanted(verdicts))
    now = datetime.now(UTC)
    name = checked_name(name) if name else retry_name(job.name, now)
    next_run = _next_run(job, record, env, python, pod, service, settings)
    created = now.isoformat(timespec="seconds")
    derived = replace(record, job=name, created=created, parent=parent, options=next_run.options)
    service, changes = next_run.service, [*_changes(job, record, view, settings, service), *next_run.changes]
    child = Job(job.files, name)

    def create() -> None:
        create_derived(job.files, derived, parent)
        on_start(child, changes)

    attempt = _attempt(child, derived, next_run.given, settings, create, on_progress, Asked.behind(0))
    _carry_out(attempt, detach, service, on_detach)
    return child
