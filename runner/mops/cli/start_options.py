"""The command line's options for the start of jobs, and where this start works."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from mops.cli import status, terminal
from mops.cli.job_progress import JobDisplay, displayed
from mops.cli.options import JsonOption, StorageOption
from mops.errors import UsageError
from mops.jobs.job import Job
from mops.jobs.launch import RunOptions
from mops.jobs.location import Location, locate
from mops.jobs.status import storage_of
from mops.options import ADVANCED, COMMON, SERVICE, Option
from mops.settings import Settings
from mops.storage.job_options import NO_OPTIONS, JobOptions


@dataclass(frozen=True)
class RunnerArguments:
    """The command line's options for the runner of one or several jobs."""

    priority: Annotated[
        Literal["low", "normal", "high"] | None,
        Option("Set the job's share of a cluster that other jobs also use", panel=ADVANCED),
    ] = None
    storage: StorageOption = None
    job: JobOptions = NO_OPTIONS  # without its limits, which are settings
    local: Annotated[bool, Option("Run on this machine even when connected to a service", panel=COMMON)] = False
    as_json: JsonOption = False

    @property
    def local_by(self) -> str | None:
        """The option of this command that makes this machine run the job; None: there is none."""
        return "--local" if self.local else None

    @functools.cached_property
    def found(self) -> Location:
        """Where the command works; its service is not asked yet."""
        settings = Settings.from_environment(priority=self.priority)
        location = locate(self.storage, local=self.local_by is not None, settings=settings)
        if location.local_by == "MODELOPS_SCHEDULER":
            terminal.say("note: MODELOPS_SCHEDULER is set: this machine runs the job, not the connected service")
        return replace(location, local_by=self.local_by or location.local_by)

    @functools.cached_property
    def location(self) -> Location:
        """Where the job runs, with the service as its chart describes it now; errors as ``Location.with_service``."""
        return self.found.with_service()


@dataclass(frozen=True)
class StartOptions(RunnerArguments):
    """The command line's options for the start of one job."""

    detach: Annotated[bool, Option("Run in the background, and keep running without a terminal", panel=COMMON)] = False
    wait: Annotated[bool, Option("Follow the job until it ends", panel=SERVICE)] = False

    @property
    def local_by(self) -> str | None:
        """The option of this command that makes this machine run the job; None: there is none."""
        return super().local_by or ("--detach" if self.detach else None)

    def opened(self, name: str) -> Job:
        """Open a job where this command works."""
        return Job(storage_of(name, self.found), name, local=self.local_by is not None)

    def run(self, begin: Callable[[JobDisplay, RunOptions], Job], *, after: int = 0) -> None:
        """Start a job, and show it as the options say; ``begin`` calls a function of ``mops.jobs``.

        With ``after``, an attempt counts only if its number is larger.
        """
        if self.detach and self.wait:
            hint = "leave out one of them"
            raise UsageError("--detach returns at once, and --wait at the end", where="the command line", hint=hint)
        service = self.location.service
        with displayed(self.location.settings, as_json=self.as_json) as shown:
            options = RunOptions(
                env=self.job.env,
                python=self.job.python,
                pod=self.job.pod,
                location=self.location,
                wait=not self.detach and service is None,
                on_progress=shown.progress,
                on_detach=shown.detached,
            )
            job = begin(shown, options)
            if not self.detach and service is None:
                shown.ended(job)
        if service is not None and self.wait:
            status.follow(job, service, as_json=self.as_json, after=after)
