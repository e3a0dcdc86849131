"""Tells whether a job may still continue by itself, for which a service asks Kubernetes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mops.jobs.status import Status

if TYPE_CHECKING:
    from mops.k8s.job_phase import Phase
    from mops.service.service import Service

PHASE_SECONDS = 5.0


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
        if self._service is None or (
            now.state not in ("submitted", "running", "interrupted") and not waits_for_attempt
        ):
            return now.state in ("submitted", "running")
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + PHASE_SECONDS
            self._last = self._service.phase(self._job)
        return self._last is None or not self._last.over
