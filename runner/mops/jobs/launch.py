"""Decides where a job runs and with which options, and starts its runner there.

A runner runs in this process, in a detached process (jobs/detached.py), or in a pod of a service (service/service.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, TypeVar

from mops.attempt.attempt import Attempt
from mops.attempt.display import displayed
from mops.errors import OptionsError, Problem, UsageError
from mops.jobs import detached
from mops.jobs.detached import DetachedRunner
from mops.jobs.following import Phases, wait_for
from mops.jobs.job import Job
from mops.jobs.location import Location, locate
from mops.project.functions import Code
from mops.service.service import KubernetesRunner, Service
from mops.settings import Settings
from mops.storage.files import Files
from mops.storage.job_options import NO_OPTIONS, JobOptions, PodOptions
from mops.storage.job_records import JobRecord
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import RunRequest
from mops.storage.progress_record import Progress
from mops.task import JobContext
from mops.worker.environment import ChildEnvironment, Variables, child_environment

StartedRunner: TypeAlias = DetachedRunner | KubernetesRunner  # a runner in another process

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
        if unknown := sorted(given.keys() - RunOptions.__annotations__.keys()):
            raise TypeError(f"unexpected keyword argument: {', '.join(unknown)}")
        before = kept or NO_OPTIONS
        location = given.get("location") or locate(
            storage, local=given.get("local") or False, settings=given.get("settings")
        )
        location = location.with_service()
        settings = location.settings.over(before.limits)
        python = None if (path := given.get("python")) is None else str(path)
        named = JobOptions(dict(given.get("env") or {}), python, given.get("pod") or PodOptions())
        options = replace(before.overridden(named), limits=settings.limits)
        where = f"job {job.name}" if job else None
        if location.service is not None:
            service = replace(location.service, results=job.files.url if job else None).with_options(options.pod)
        elif refused := named.pod.of_a_service:
            raise UsageError(
                f"only a cluster service has {', '.join(refused)}, and this machine runs the job",
                where="the options of the runner's pod",
                hint="connect to a service: mops connect",
            )
        else:
            service = None
        if service is None:
            child = child_environment(options.env, options.python, where=where, install=settings.install)
        elif python is not None:
            problem = Problem("--python", f"{python} is on this machine, and pods use their image's interpreter")
            raise OptionsError([problem], where=where, hint="list the model's libraries in requirements.txt")
        else:
            # Pods take a variable without a value from the operator's Secret: only its name can be checked here. An
            # interpreter kept with the job is of one machine.
            child = child_environment(options.env, None, where=where, install=settings.install, environ=None)
        options = replace(options, python=child.python)
        pod = replace(options.pod, dedicated=service.dedicated_size is not None) if service else options.pod
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

    def with_limits(self, limits: Mapping[str, Any]) -> Launch:
        """Return this launch with the limits of its study in place of those that were not given."""
        settings = self.settings.over(limits)
        return replace(self, settings=settings, options=replace(self.options, limits=settings.limits))

    def start(
        self,
        files: Files,
        record: JobRecord,
        context: JobContext,
        create: Callable[[], None],  # writes what the attempt needs, once the model is imported
        asked: RunRequest,  # the request that the attempt carries out
    ) -> None:
        """Run an attempt in this process, or start a runner for it elsewhere and wait for its end if asked."""
        if self.service is None and self.wait:
            with nullcontext(self.on_progress) if self.on_progress else displayed() as on_progress:
                Attempt(files, record, context, self.settings, create, on_progress, asked=asked).run()
            return
        attempt = Attempt(files, record, context, self.settings, create, asked=asked)
        launcher: Launcher = replace(self.service, study=record.study).launcher if self.service else detached.launcher
        with launcher(files, record.job) as start_runner:
            attempt.create_only(other_packages=self.service is not None)
            before = JobLog(files, record.paths).read().attempt
            runner = start_runner(self.settings.to_environment(), str(replace(asked, job=record.id)))
        job = Job(files, record.job, local=self.service is None)
        self.on_detach(job, runner)
        if self.service is not None and self.wait:
            wait_for(job, Phases(record.job, replace(self.service, results=files.url), before), self.on_progress)
