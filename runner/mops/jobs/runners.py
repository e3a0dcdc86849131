"""What Kubernetes says of the runners of jobs. The storage has the states of jobs, so no answer is no error here."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from mops.errors import MopsError
from mops.jobs.location import service_with
from mops.jobs.status import OPEN_STATES, Status
from mops.storage.files import Files

if TYPE_CHECKING:
    from mops.k8s.job_phase import Phase
    from mops.service.service import Service

PHASE_SECONDS = 3.0  # the pause between two questions to Kubernetes about runners


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

    @classmethod
    def of(cls, files: Files, job: str, *, local: bool) -> Self:
        """Return the phases of a job's runner on the connected service, if there is one and it can be reached."""
        try:
            return cls(job, service_with(files, local=local))
        except MopsError:  # the storage alone tells the state
            return cls(job, None)

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
            self._last = phase_or_unknown(self._service, self._job)
        return self._last is None or not self._last.over


def phase_or_unknown(service: Service, job: str) -> Phase:
    """Return the phase of a job's runner, and what it waits for; ``unknown`` if Kubernetes does not answer."""
    try:
        phase = service.phase(job)
        return replace(phase, reason=service.lacks(job)) if phase.word == "running" else phase
    except MopsError as refused:
        return _unknown(refused)


def service_and_phase(files: Files, job: str, *, local: bool) -> tuple[Service | None, Phase | None]:
    """Return the connected service that may run a job, and the phase of its runner; None: there is no service."""
    try:
        service = service_with(files, local=local)
    except MopsError as refused:
        return None, _unknown(refused)
    return service, phase_or_unknown(service, job) if service else None


def _unknown(refused: MopsError) -> Phase:
    from mops.k8s.job_phase import Phase  # noqa: PLC0415 - most jobs need no Kubernetes

    return Phase("unknown", refused.what, refused.hint or "")


def with_runner(now: Seen, phase: Phase | None) -> Seen:
    """Return the job, whose state is ``interrupted`` if the pod with the last sign of life has ended."""
    # The sign of life alone would tell this only after 45 s. Read the job after the phase: the runner may have finished
    # it before Kubernetes answered.
    has_ended = phase is not None and phase.over and phase.is_of(now.host)
    return replace(now, state="interrupted") if now.state == "running" and has_ended else now


def phase_text(now: SeenJob, phase: Phase | None) -> str:
    """Return what Kubernetes says of the runner; empty: nothing that the state does not say."""
    if phase is None or now.state not in OPEN_STATES:
        return ""
    continues_elsewhere = phase.over and not phase.is_of(now.host)
    return "" if now.state == "running" and (phase.word == "running" or continues_elsewhere) else str(phase)


_READ_SHARE = 5  # after a slow answer, wait this many times as long: pages of the storage must not wait for Kubernetes


class Runners:
    """The phases of the runners whose results go to a storage; none if jobs run on this machine (``local``)."""

    def __init__(self, files: Files, *, local: bool):
        self._files, self._local = files, local
        self._service: Service | None = None
        self._phases: Mapping[str, Phase] = {}
        self._due = 0.0
        self._n_changes = 0
        self._reading = threading.Lock()
        self.error: MopsError | None = None  # why the last read has failed

    def phases(self) -> Mapping[str, Phase]:
        """Return the phase of each job's runner, by job. While another thread reads, return what is known."""
        # Callers read the state of a job after this call. Else a job that has just succeeded could appear as
        # interrupted.
        if time.monotonic() < self._due or not self._reading.acquire(blocking=False):
            return self._phases
        start, n_changes = time.monotonic(), self._n_changes
        try:
            # The service of the first read: a later ``mops connect`` to another one has no effect.
            self._service = self._service or service_with(self._files, local=self._local)
            self._phases = self._service.phases() if self._service else {}
            self.error = None
        except MopsError as refused:  # the storage has the states of the jobs
            self._phases, self.error = {}, refused
        finally:
            now = time.monotonic()
            if n_changes == self._n_changes:
                self._due = now + max(PHASE_SECONDS, _READ_SHARE * (now - start))
            self._reading.release()
        return self._phases

    def forget(self) -> None:
        """Let the next call of :meth:`phases` read again: this process has changed a runner."""
        self._n_changes += 1  # also if another thread reads now
        self._due = 0.0

    @property
    def warning(self) -> str:
        """What a person must know if the last read has failed."""
        return f"Kubernetes does not say which runners are alive, so states are those of the storage: {self.error}"
