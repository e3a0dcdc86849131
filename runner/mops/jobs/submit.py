"""Starts jobs: submit, resume; and run, the program of a runner that another process started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack, cast, get_args

from mops.attempt.attempt import Attempt, simulations_grace
from mops.cluster.worker_losses import Pods
from mops.errors import BundleError, JobDeleted, JobError, UsageError, check_type
from mops.jobs.job import Job
from mops.jobs.launch import Launch, RunOptions, Started, StudyParts, SubmitOptions, context_of, shows_options
from mops.jobs.owners import require_owner
from mops.jobs.prepare import (
    PreparedStudy,
    changed_inputs,
    checked_name,
    job_name,
    kept_functions,
    listed_files,
    make_record,
    prepare,
    trim_memory,
    unpacked,
)
from mops.jobs.reuse import Found, find_reuse
from mops.jobs.status import job_state
from mops.project.bundle import pack
from mops.project.difference import differing_files
from mops.settings import PREFIX, Settings
from mops.storage.files import Files
from mops.storage.job_records import (
    JobRecord,
    create_job,
    job_exists,
    keep_options,
    load_job,
    params_digest,
    read_options,
)
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import LogView, RunRequest, check_start
from mops.storage.params_file import encode_groups
from mops.storage.paths import NamePaths
from mops.storage.progress_record import Progress, read_live
from mops.study.study_file import KEY_OF_OPTION
from mops.worker.environment import child_environment

IfExists: TypeAlias = Literal["error", "open", "resume"]

_FILES_SHOWN = 5


@shows_options(SubmitOptions)
def submit(
    study: str | Path | Mapping[str, Any] | None = None,
    *,
    project: str | Path | None = None,
    storage: str | Path | None = None,
    name: str | None = None,
    if_exists: IfExists = "error",
    on_start: Started = None,
    **options: Unpack[SubmitOptions],
) -> Job:
    """Run a study and return its job when the job has ended, or at once with ``wait=False``.

    Parameters
    ----------
    study
        Path of a study.json, or a mapping with its keys; None: ``model`` and ``sets`` are the study. Wherever a
        mapping names code, it may have a function or class.
    project
        The folder with the model; None: mops finds it from the place of the study.
    storage
        URL or folder for the results; None: ``MODELOPS_STORAGE``, else the connected service's storage, else
        ``mops-storage`` in the project.
    name
        The job's name (lower-case letters, digits and single hyphens); None: mops makes one from the study's name.
    if_exists : {"error", "open", "resume"}
        What to do if a job of this ``name`` exists: raise JobError; return it as it is; or continue it if it is not
        complete, and return it. A job with another study is an error in each case.
    on_start
        Called with the job, when it exists and before it runs, and with notes on the study. None: these notes are
        warnings of Python.
    model : function, class or str
        The model: ``f(params, seed)``, or text like ``"module:name"``. If a notebook or the program itself defines
        the function, the job keeps the function with the variables that it uses.
    targets : sequence of functions or str
        The targets; not given: those that the project registers.
    sets : table, sequence of mappings, or path
        The parameter sets: a pandas, polars or pyarrow table with a column for each parameter, a list of dicts, or
        the path of a CSV or Parquet file. If a table or file has a column ``seed``, a row with a seed is one
        simulation with this seed.
    replicates : int
        Simulations of each set; not given: 1.
    scenario : str
        Passed to the model; not given: ``"baseline"``.
    outputs : sequence of str
        The outputs to keep; not given: all.
    reuse : bool
        Take simulations that complete jobs of the same storage have run with the same model code, data files, ``env``,
        parameters and seed, and run only the others. mops does not compare libraries, data outside the project, or
        variables that simulations inherit from this process. The targets run again. The job copies the rows, and needs
        the other jobs only while it runs.
    env : mapping of str to str or None
        Variables for the model. mops keeps a value with the job. It never keeps a variable whose value is None: the
        runner takes the value from its own environment.
    python : str or Path
        The interpreter that runs simulations. It needs numpy, pyarrow and what the model imports, but not mops.
    pod : PodOptions
        Options of the runner's pod, in place of the values of the service's chart. mops keeps ``env``, ``python`` and
        ``pod`` with the job.
    settings : Settings
        None: from the environment. Limits of simulations that are not given come from the study's ``limits``, and mops
        keeps them with the job.
    wait : bool
        False: return as soon as another process runs the job: a detached runner on this machine, which keeps running
        when this process ends, or a pod of the service. ``Job.wait`` waits for its end. Not given: return when the job
        has ended.
    local : bool
        Run on this machine even when connected to a service.
    location : Location
        Where the job runs, if the caller has decided it; then ``storage``, ``settings`` and ``local`` do not count.
    on_progress : callable
        Called with a ``Progress`` about four times a second while this process runs the job. If it raises, mops
        warns once (RuntimeWarning) and the job continues. Not given: a terminal shows a line, a notebook shows a bar,
        and other outputs show nothing.
    on_detach : callable
        Called with the job and its runner when another process runs the job.

    Warns
    -----
    UserWarning
        Something about the study that you may not have meant, such as a parameter that only some sets have.

    Raises
    ------
    UsageError
        The study, the settings, the project, the model or an option is wrong. Nothing was written, unless the model
        lacks an output that the study names: then the job ended as ``failed``.
    JobFailed
        More simulations have failed than ``MODELOPS_JOB_MAX_FAILURES`` allows.
    StorageError, ClusterError
        The storage or the Dask cluster is out of reach, or the storage is full. If the job exists,
        ``mops.resume(mops.open_job(name))`` continues it.
    ServiceError
        Kubernetes is out of reach or refuses the job.
    RunnerEnded
        The detached runner ended before it claimed the job, or the runner on the service ended without a result; the
        job can be resumed.
    KeyboardInterrupt
        Ctrl-C stopped the job, which keeps what is finished. On a service, it stopped only this call.

    Examples
    --------
    >>> job = mops.submit("study.json", name="waves", env={"MODE": "fast"})
    >>> job.status().state
    'succeeded'

    >>> sets = pd.DataFrame({"beta": [0.2, 0.3, 0.4]})
    >>> job = mops.submit(model=sir.simulate, targets=[sir.peak], sets=sets, replicates=5)

    >>> job = mops.submit("study.json", reuse=True)

    >>> job = mops.submit("study.json", wait=False)
    >>> job.wait().best(5).to_pandas()
    """
    if if_exists not in get_args(IfExists) or (if_exists != "error" and name is None):
        raise UsageError(
            f"if_exists={if_exists!r} {'needs a name' if if_exists in get_args(IfExists) else 'is unknown'}",
            where="mops.submit",
            hint=f"use one of {', '.join(get_args(IfExists))}, and name the job",
        )
    given = dict(options)
    parts = {key: value for key in StudyParts.__annotations__ if (value := given.pop(key, None)) is not None}
    reuse, run_options = bool(given.pop("reuse", None)), cast("RunOptions", given)
    launch = Launch.of(run_options, storage=storage)
    prepared = prepare(study_of_call(study, cast("StudyParts", parts), "mops.submit"), project, launch.location.storage)
    launch = launch.with_limits(prepared.limits)
    name = checked_name(name) if name else job_name(prepared, datetime.now(UTC))
    files = launch.location.open(prepared.root)
    files.brief().list(NamePaths(name).root)  # a storage out of reach shows within seconds, before the model's import
    if if_exists != "error" and job_exists(files, name):
        job = Job(files, name, local=launch.service is None)
        _refuse_other_study(job, prepared)
        if if_exists == "open" or JobLog(files, job.record.paths).read().complete:
            return job
        return resume(job, **(run_options | RunOptions(location=launch.location)))
    pending = [prepared]
    del prepared
    return submit_prepared(pending, name, launch, files, reuse=reuse, on_start=on_start)


def submit_prepared(
    pending: list[PreparedStudy],  # holds the study, which this function removes so that its memory is freed
    name: str,
    launch: Launch,
    files: Files,
    *,
    reuse: bool = False,
    round_of: str = "",  # the identity of a calibration
    on_start: Started = None,
) -> Job:
    """Run a prepared study as a new job, and return the job; raises as ``submit``."""
    (prepared,) = pending
    record = make_record(name, prepared, launch.options, launch.owner)
    found = find_reuse(files, record, prepared) if reuse else Found()
    record = replace(record, reuse=found.reuse, round_of=round_of)
    notes, parameters = list(prepared.study.warnings), prepared.parameters
    del prepared

    def write() -> None:
        # Popped, so that the study's objects are freed while the job runs: the runner reads its groups as Arrow.
        study = pending.pop()
        params = encode_groups(study.study.groups, files.spool())
        create_job(files, record, study.bundle, study.text, params, found.table)
        del study
        trim_memory()

    return launch.start(files, record, write, notes, on_start, parameters=parameters)


def study_of_call(
    study: str | Path | Mapping[str, Any] | None, parts: StudyParts, function: str
) -> str | Path | Mapping[str, Any]:
    """Return the study of a call of a function, which gives it whole or in parts."""
    if study is None and {"model", "sets"} <= parts.keys():
        return {KEY_OF_OPTION.get(name, name): value for name, value in parts.items()}
    if study is None or parts:
        raise UsageError(
            "the call has neither a study nor a model with sets, or has both",
            where=function,
            hint=f"{function}('study.json'), or {function}(model=simulate, sets=table, replicates=5)",
        )
    return study


def _refuse_other_study(job: Job, prepared: PreparedStudy) -> None:
    """Raise if an existing job does not have this study, these parameter sets and this code."""
    params = encode_groups(prepared.study.groups, job.files.spool()).digest
    different = [
        *changed_inputs(job.files, job.record.bundle, prepared)[0][:_FILES_SHOWN],
        *(["the model, scenario, outputs or targets"] if job.record.spec != prepared.spec else []),
        *(["the parameter sets"] if params_digest(job.files, job.record.paths) != params else []),
    ]
    if different:
        raise JobError(
            f"job {job.name!r} exists and has another study; what differs: {', '.join(different)}",
            where=job.files.url,
            hint="give the new study another name",
        )


@shows_options(RunOptions)
def resume(
    job: Job,
    *,
    take_over: bool = False,
    force: bool = False,
    on_start: Started = None,
    **options: Unpack[RunOptions],
) -> Job:
    """Continue a job from what is committed, and return it when it has ended.

    Parameters
    ----------
    job
        A job that is not complete.
    take_over
        Replace a runner that runs the job: it stops at the new attempt's claim and commits nothing more.
    force
        Also resume a job that another person has submitted to the service. This needs the Role for managers.
    on_start
        Called with the job before anything runs, and with a line for each setting or option that has changed since
        the last attempt. None: these lines are warnings of Python.
    **options
        As for :func:`submit`. ``env``, ``python`` and ``pod`` replace what mops keeps with the job, in this and later
        attempts. Entries of ``env`` and ``pod`` that are not given keep their values, and so do the limits of
        simulations in ``settings``. mops does not keep the other settings: None reads the environment.

    Raises
    ------
    JobError
        The job is complete, a runner runs it, or it belongs to another person.
    Overtaken
        Another person or runner has cancelled, ended or started the job since this call began.
    RunnerEnded
        The detached runner ended before it claimed the job.
    OptionsError
        A variable that the job takes from the environment is not set, or its interpreter has changed.
    JobFailed, StorageError, ClusterError, ServiceError
        As for :func:`submit`.
    """
    check_type(job, Job, "job", "a job", "open the job: mops.resume(mops.open_job(name))")
    record = load_job(job.files, job.name)
    view = JobLog(job.files, record.paths).read()
    if view.complete:
        raise JobError(
            f"job {job.name!r} is complete ({view.state}): there is nothing to resume",
            where=job.files.url,
            hint=f"run what failed again: mops jobs retry {job.name}"
            if view.state == "partial"
            else f"read the results: mops jobs results {job.name}",
        )
    kept = read_options(job.files, record)
    launch = Launch.of(options, job=job, kept=kept.options)
    service = launch.service
    require_owner(record, service, force=force, command=f"mops jobs resume {job.name}")
    if not take_over:
        phase = service.phase(job.name) if service is not None and view.claim is not None else None
        # Kubernetes knows that a pod has ended, however recent the last sign of life of its runner is.
        if phase is None or view.claim is None or not (phase.over and phase.is_of(view.claim.host)):
            hint = f"stop the job with 'mops jobs cancel {job.name}', or replace its runner with --take-over"
            job.require_no_runner(hint)
    changes = [*changed_settings(job, view, launch), *changed_files(job, record), *launch.changes]
    replaces = service is not None and service.replaces_runner(job.name, take_over=take_over)

    def write() -> None:
        keep_options(job.files, record, kept, launch.options)
        if service is not None and replaces:
            service.remove_runner(job.name)  # last, when no check can refuse the new runner

    unpacked(job.files, record.bundle)
    launch.start(job.files, record, write, changes, on_start, seen=view.k)
    return job


@dataclass(frozen=True)
class RunnerProcess:
    """The environment of a runner's process that another process started."""

    pods: Pods | None = None  # tells why pods of workers ended, if this process runs in a pod
    # True: no person reads the first output of this process. So a model that cannot be imported, or whose dependencies
    # cannot be installed, ends the job as failed, unless another runner runs it.
    unwatched: bool = False
    # Seconds from SIGTERM to the kill, of which some are kept for the last commit; None: nothing kills this process.
    grace_s: float | None = None


def run(
    job: Job,
    *,
    # A person's request: it may continue a job that was cancelled or has failed, which otherwise stays as it is. A
    # request counts once.
    asked: RunRequest | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    process: RunnerProcess | None = None,  # None: a person's own program runs the job
) -> str:
    """Run a job that exists and return its state. Detached runners and pods run this."""
    # Raises NothingToRun; Overtaken, if someone has cancelled, ended or claimed the job since the request; JobDeleted,
    # if the request is for a deleted job of the same name.
    settings, process = Settings.from_environment(), process or RunnerProcess()
    record = job.record
    if asked is not None and asked.job not in ("", record.id):
        what = f"job {job.name!r}, for which this runner was started, was deleted; another job has its name"
        raise JobDeleted(what, where=job.files.url, hint="leave the new job to its own runner")
    view = JobLog(job.files, record.paths).read()
    by = check_start(view, "person" if asked else "auto", asked, job=job.name, where=job.files.url)
    options = read_options(job.files, record).options
    settings = settings.over(options.limits)
    child = child_environment(options.env, options.python, where=f"job {job.name}", install=settings.install)
    unseen = None
    if process.unwatched and job_state(job.files, record.paths, view)[0] != "running":
        # A restarted pod has the same request, and knows by its nonce that this claim is its own.
        unseen = RunRequest(view.k, asked.nonce) if asked else RunRequest.behind(view.k)
    unpacked(job.files, record.bundle)
    attempt = Attempt(
        files=job.files,
        record=record,
        context=context_of(job.files, record, settings, child),
        settings=settings,
        on_progress=on_progress,
        by=by,
        asked=asked,
        pods=process.pods,
        unseen=unseen,
        is_patient=process.unwatched and "cluster_timeout" not in settings.model_fields_set,
        grace_s=simulations_grace(process.grace_s),
    )
    return attempt.run()


def changed_settings(job: Job, view: LogView, launch: Launch) -> list[str]:
    """Return a line for each setting that has changed since the job's last attempt."""
    # On a service, storage and scheduler are the service's, and their changes are left out.
    before = read_live(job.files, job.record.paths, view.attempt)
    changes = launch.settings.changes_since(before.settings) if before and before.settings else []
    return [change for change in changes if launch.service is None or change.startswith(PREFIX)]


def changed_files(job: Job, record: JobRecord) -> list[str]:
    """Return a line that names the files of the project that differ from the job's; nothing if none differs."""
    if not record.project:
        return []
    root, results = Path(record.project), job.files.url
    try:
        bundle = pack(root, None if "://" in results else Path(results), kept_functions(job.files, record))
    except BundleError:  # the project is not on this machine, or is no longer one
        return []
    if bundle.digest == record.bundle:
        return []
    differing = list(differing_files(bundle, unpacked(job.files, record.bundle)))
    listed = listed_files([f"{name} ({how})" for name, how in differing])
    return [f"the project has changed since the submit; the job runs the submitted files, which differ in: {listed}"]
