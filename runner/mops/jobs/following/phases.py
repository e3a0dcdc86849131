"""What Kubernetes says of the runners of a service, and what it means for the states of their jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from mops.jobs.location import service_with
from mops.jobs.status import Status
from mops.storage.files import Files

if TYPE_CHECKING:
    from mops.k8s.job_phase import Phase
    from mops.service.service import Service

PHASE_SECONDS = 3.0  # the pause between two questions to Kubernetes about runners
OPEN_STATES = ("submitted", "running", "interrupted")  # the states of a job that a runner may still change


class SeenJob(Protocol):
    """A dataclass with the state of a job, as ``Status`` and the lines of a list."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def state(self) -> str:
        """The state."""

    @property
    def host(self) -> str:
        """The host of the runner's last sign of life; empty: no runner is expected."""


Seen = TypeVar("Seen", bound=SeenJob)


class Phases:
    """The phase of a job's runner in Kubernetes, read every few seconds while the runner gives no sign of life."""

    def __init__(self, job: str, service: Service | None, after: int = 0):
        self._job, self._service, self._after = job, service, after
        self._due = 0.0
        self._last: Phase | None = None

    @property
    def text(self) -> str:
        """The phase as text; empty: unknown, or not needed."""
        return str(self._last) if self._last else ""

    def may_continue(self, now: Status) -> bool:
        """Tell whether the job may continue by itself."""
        if now.state == "running" and now.live is not None:
            self._last = None
            return True
        waits_for_attempt = now.attempt == self._after > 0  # the state is still that of the attempt before
        if self._service is None or (now.state not in OPEN_STATES and not waits_for_attempt):
            return now.state in ("submitted", "running")
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + PHASE_SECONDS
            self._last = self._service.phase(self._job)
        return self._last is None or not self._last.over


def phases_of(files: Files, *, local: bool) -> Callable[[], Mapping[str, Phase]]:
    """Return a function that returns the phase of each job's runner. Only its first call asks Kubernetes."""

    @cache
    def phases() -> Mapping[str, Phase]:
        service = service_with(files, local=local)
        return service.phases() if service else {}

    return phases


def with_runner(now: Seen, phase: Phase | None) -> Seen:
    """Return the job, whose state is ``interrupted`` if the pod with the last sign of life has ended."""
    # The sign of life alone would tell this only after 45 s. Read the job after the phase; else use `with_later_phase`.
    has_ended = phase is not None and phase.over and phase.is_of(now.host)
    return replace(now, state="interrupted") if now.state == "running" and has_ended else now


def with_later_phase(
    now: Seen,
    phase: Phase | None,
    again: Callable[[], Seen],  # reads the job again: the runner may have finished it before Kubernetes answered
) -> Seen:
    """Return the job as ``with_runner`` does, if it was read before Kubernetes told the phase."""
    return now if with_runner(now, phase) is now else with_runner(again(), phase)


def phase_text(now: SeenJob, phase: Phase | None) -> str:
    """Return what Kubernetes says of the runner; empty: nothing that the state does not say."""
    if phase is None or now.state not in OPEN_STATES:
        return ""
    continues_elsewhere = phase.over and not phase.is_of(now.host)
    return "" if now.state == "running" and (phase.word == "running" or continues_elsewhere) else str(phase)
