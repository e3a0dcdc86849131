"""Starts jobs: each new job and each attempt is a record, a place to run, and checked options (``Launch``).

A runner runs in this process, in a detached process, or in a pod of a service (service/service.py).
"""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypedDict, TypeVar

from mops.attempt.attempt import Attempt, job_context
from mops.attempt.display import displayed
from mops.errors import OptionsError, Problem, RunnerEnded, UsageError, check_type
from mops.jobs.following import wait_for
from mops.jobs.job import Job
from mops.jobs.location import Location, locate
from mops.jobs.prepare import refuse_in_import
from mops.jobs.runners import Phases
from mops.project.functions import Code
from mops.service.service import KubernetesRunner, Service
from mops.settings import PREFIX, Settings
from mops.storage.files import Files
from mops.storage.job_options import NO_OPTIONS, JobOptions, PodOptions
from mops.storage.job_records import JobRecord, load_job
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import RunRequest
from mops.storage.probe import probe
from mops.storage.progress_record import Progress
from mops.system.signals import handled
from mops.system.user_folders import state_path
from mops.task import JobContext
from mops.worker.environment import ChildEnvironment, Variables, child_environment, given_variables

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class DetachedRunner:
    """A runner in a detached process."""

    job: str
    pid: int
    log: str  # the file with its output


StartedRunner: TypeAlias = DetachedRunner | KubernetesRunner  # a runner in another process

# Called with a job that exists and does not run yet, and with lines for people. None: the lines are warnings of Python.
Started: TypeAlias = Callable[[Job, list[str]], None] | None

# Starts runners in other processes: called with the storage and the job's name. Its context yields a function that
# starts the runner, once the body has created the job. That function takes the settings as environment variables, and
# the request that the runner carries out (`RunRequest`, as text).
Launcher: TypeAlias = Callable[[Files, str], AbstractContextManager[Callable[[Mapping[str, str], str], StartedRunner]]]


F = TypeVar("F", bound=Callable[..., object])


class RunnerOptions(TypedDict, total=False):
    """Keyword arguments for the runner of a job; :func:`mops.jobs.submit.submit` describes each."""

    env: Variables | None
    python: str | Path | None
    pod: PodOptions | None
    settings: Settings | None
    local: bool
    location: Location
    on_progress: Callable[[Progress], None]


class RunOptions(RunnerOptions, total=False):
    """Keyword arguments that submit, resume and retry share."""

    wait: bool
    on_detach: Callable[[Job, StartedRunner], None]


class ModelParts(TypedDict, total=False):
    """Keyword arguments that are a model with its targets; :func:`mops.jobs.submit.submit` describes each."""

    model: Code
    targets: Sequence[Code]
    replicates: int
    scenario: str
    outputs: Sequence[str]


class StudyParts(ModelParts, total=False):
    """Keyword arguments that are a study."""

    sets: object


class SubmitOptions(RunOptions, StudyParts, total=False):
    """Keyword arguments of submit."""

    reuse: bool


def shows_options(kinds: type[Any]) -> Callable[[F], F]:
    """Show the names of options in a function's signature: for ``help``, and completion in notebooks."""

    def show(function: F) -> F:
        signature = inspect.signature(function)
        *named, _ = signature.parameters.values()
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind.__forward_arg__)
            for name, kind in kinds.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=[*named, *shared])  # type: ignore[attr-defined]
        return function

    return show


@dataclass(frozen=True)
class Launch:
    """Where a job runs, and with which checked options."""

    settings: Settings  # with the limits that the job keeps
    location: Location
    service: Service | None  # the service whose pods run the job; None: this machine runs it
    wait: bool  # False: return at once; this machine then runs the job in a detached process
    options: JobOptions  # the job's options from now on
    changes: list[str]  # a line for each option that differs from what the job had before
    child: ChildEnvironment  # the checked variables and interpreter
    on_progress: Callable[[Progress], None] | None  # None: a terminal or a notebook shows the progress
    on_detach: Callable[[Job, StartedRunner], None]

    @classmethod
    def of(
        cls,
        given: RunOptions,
        *,
        storage: str | Path | None = None,  # of a new job, as the user gave it
        job: Job | None = None,  # None: the job is new
        kept: JobOptions | None = None,  # the options kept with the job
    ) -> Launch:
        """Return how a job runs: with the options given now, and otherwise with those kept with the job."""
        refuse_in_import()
        if unknown := sorted(given.keys() - RunOptions.__annotations__.keys()):
            raise TypeError(f"unexpected keyword argument: {', '.join(unknown)}")
        before = kept or NO_OPTIONS
        location = given.get("location") or locate(
            storage, local=given.get("local") or False, settings=given.get("settings")
        )
        location = location.with_service()
        settings = location.settings.over(before.limits)
        python = None if (path := given.get("python")) is None else str(path)
        pod = given.get("pod") or PodOptions()
        check_type(pod, PodOptions, "pod", "PodOptions", "pass an object of mops.storage.job_options.PodOptions")
        named = JobOptions(given_variables(given.get("env")), python, pod)
        options = replace(before.overridden(named), limits=settings.limits)
        where = f"job {job.name}" if job else None
        service, pod = location.service, options.pod
        if service is not None:
            service = replace(service, results=job.files.url if job else None).with_options(pod)
            service.check_pool(settings.pool, "MODELOPS_JOB_POOL")
            service.check_pool(settings.memory_pool, "MODELOPS_JOB_MEMORY_POOL")
            if python is not None:
                problem = Problem("--python", f"{python} is on this machine, and pods use their image's interpreter")
                raise OptionsError([problem], where=where, hint="list the model's libraries in requirements.txt")
            # Pods take a variable without a value from the operator's Secret: only its name can be checked here. An
            # interpreter kept with the job is of one machine.
            child = child_environment(options.env, None, where=where, install=settings.install, environ=None)
            pod = replace(pod, dedicated=service.dedicated_size is not None)
        elif refused := named.pod.of_a_service:
            hints = {
                "": "connect to a service: mops connect",
                "MODELOPS_SCHEDULER": "unset MODELOPS_SCHEDULER",
                "--local": "leave out --local, in Python local=True",
            }
            raise UsageError(
                f"only a cluster service has {', '.join(refused)}, and this machine runs the job",
                where="the options of the runner's pod",
                hint=hints.get(location.local_by, f"leave out {location.local_by}"),
            )
        else:
            child = child_environment(options.env, options.python, where=where, install=settings.install)
        options = replace(options, python=child.python)
        return cls(
            settings=settings,
            location=location,
            service=service,
            wait=given.get("wait") is not False,
            options=replace(options, pod=pod),
            changes=options.changes_since(before),
            child=child,
            on_progress=given.get("on_progress"),
            on_detach=given.get("on_detach") or (lambda *_: None),
        )

    @property
    def owner(self) -> str:
        """The owner of a new job: this person, as Kubernetes knows the name; empty: no service runs the job."""
        return self.service.user if self.service else ""

    def with_limits(self, limits: Mapping[str, Any]) -> Launch:
        """Return this launch with the limits of its study in place of those that were not given."""
        settings = self.settings.over(limits)
        return replace(self, settings=settings, options=replace(self.options, limits=settings.limits))

    def start(
        self,
        files: Files,
        record: JobRecord,
        write: Callable[[], None],  # writes the job's files, or what the attempt changes, once the model is imported
        notes: list[str],  # for people
        on_start: Started,
        *,
        parameters: tuple[str, ...] = (),  # their names, if the check of the model needs them
        seen: int = 0,  # how many records of the job's log this command has read
    ) -> Job:
        """Make or continue a job: run an attempt here, or start a runner elsewhere and wait for its end if asked."""
        if files.url.startswith(("s3:", "gs:")):  # some servers ignore the condition of a create
            probe(files.brief())
        job, asked = Job(files, record.job, local=self.service is None), RunRequest.behind(seen)
        context = replace(context_of(files, record, self.settings, self.child), parameters=parameters)

        def create() -> None:
            write()
            if on_start is not None:
                on_start(job, notes)
            else:
                warn(notes)

        if self.service is None and self.wait:
            with nullcontext(self.on_progress) if self.on_progress else displayed() as on_progress:
                Attempt(files, record, context, self.settings, create, on_progress, asked=asked).run()
            return job
        attempt = Attempt(files, record, context, self.settings, create, asked=asked)
        launcher: Launcher = detached_launcher
        if self.service is not None:
            launcher = replace(self.service, owner=record.owner, study=record.study).launcher
        with launcher(files, record.job) as start_runner:
            attempt.create_only(other_packages=self.service is not None)
            before = JobLog(files, record.paths).read().attempt
            runner = start_runner(self.settings.to_environment(), str(replace(asked, job=record.id)))
        self.on_detach(job, runner)
        if self.service is not None and self.wait:
            wait_for(job, Phases(record.job, replace(self.service, results=files.url), before), self.on_progress)
        return job


def context_of(files: Files, record: JobRecord, settings: Settings, child: ChildEnvironment) -> JobContext:
    """Return what the tasks of a job share. The caller has unpacked its bundle on this machine."""
    return child.of(job_context(record.job, record.bundle, files.url, record.spec, settings, job_id=record.id))


def warn(lines: Iterable[str]) -> None:
    """Issue each line as a UserWarning at the line of the program that called mops."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "mops":
        level, frame = level + 1, frame.f_back
    for line in lines:
        warnings.warn(line, UserWarning, stacklevel=level)


# A detached runner, ``mops jobs run``, outlives the terminal.


@contextmanager
def detached_launcher(files: Files, job: str) -> Iterator[Callable[[Mapping[str, str], str], DetachedRunner]]:
    """Prepare a detached runner for a job, which the body creates; yield what starts it (a ``Launcher``)."""
    if files.url.startswith("memory:"):
        raise UsageError(
            "a detached runner cannot reach a storage in this process's memory",
            where=files.url,
            hint="use --storage with a folder or a URL",
        )
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    inherited["TTY_COMPATIBLE"] = "0"  # or rich writes control codes into the log if FORCE_COLOR is set
    path: Path | None = None
    try:  # the output of the job's runner goes to the end of this file
        path = state_path() / f"{job}.log"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = path.open("ab")
    except OSError as refused:
        raise UsageError(
            f"the detached runner's output cannot be written ({refused.strerror})",
            where=str(path or refused.filename),
            hint="make the folder writable, or set XDG_STATE_HOME to another folder",
        ) from refused
    with log:
        yield lambda environment, asked: _start_detached(files, job, log, inherited | dict(environment), asked)


def _start_detached(
    files: Files,
    job: str,
    log: BinaryIO,
    environment: Mapping[str, str],  # of the runner
    asked: str,  # the request that it carries out: `mops.storage.joblog.records.RunRequest`, as text
) -> DetachedRunner:
    """Start a job's runner in a new session; return when it has claimed the job, or raise RunnerEnded."""
    job_log, output_start = JobLog(files, load_job(files, job).paths), log.tell()
    command = ["jobs", "run", job, "--storage", files.url, "--asked", asked]
    attempt = job_log.read().attempt
    process: subprocess.Popen[bytes] | None = None
    try:
        with _interrupts_delayed():
            process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                # -P, so that no file of the working directory shadows one of our modules.
                [sys.executable, "-P", "-m", "mops.cli.start", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
            )
        while True:
            returncode = process.poll()  # before the log: a runner may claim and then end
            is_claimed = job_log.read().attempt > attempt
            if is_claimed or returncode is not None:
                break
            time.sleep(_POLL_SECONDS)
    except BaseException:  # also Ctrl-C: after an error no runner may be left
        if process is not None:
            process.terminate()
        raise
    if not is_claimed:
        assert returncode is not None
        text = Path(log.name).read_bytes()[output_start:].decode(errors="replace")
        hint = f"correct the cause, then continue the job: mops jobs resume {job}"
        raise RunnerEnded(returncode, text, where=log.name, hint=hint)
    # Without this thread, a program that keeps running would keep the ended runner as a zombie.
    threading.Thread(target=process.wait, name="mops-detached", daemon=True).start()
    return DetachedRunner(job, process.pid, log.name)


@contextmanager
def _interrupts_delayed() -> Iterator[None]:
    """Delay Ctrl-C until the end of the body, when the process that the body starts is known."""
    # This does not block the signal, because the new process would inherit that.
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C interrupts the main thread only
        return
    received: list[int] = []
    with handled([signal.SIGINT], lambda number, _: received.append(number)):
        yield
    if received:
        signal.raise_signal(signal.SIGINT)
