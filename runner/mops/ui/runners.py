"""Asks Kubernetes for the runners of a connected service: once for all pages, at most every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mops.errors import MopsError
from mops.jobs.following import PHASE_SECONDS
from mops.jobs.location import service_with
from mops.storage.files import Files

if TYPE_CHECKING:
    from mops.k8s.job_phase import Phase
    from mops.service.service import Service

READ_SHARE = 5  # after a slow answer, wait this many times as long: pages of the storage must not wait for Kubernetes


class Runners:
    """The phases of the runners whose results go to a storage; none if jobs run on this machine (``local``)."""

    def __init__(self, files: Files, *, local: bool):
        self._files, self._local = files, local
        self._service: Service | None = None
        self._phases: Mapping[str, Phase] = {}
        self._due = 0.0
        self._n_forgotten = 0
        self._reading, self._changing = threading.Lock(), threading.Lock()
        self.error: MopsError | None = None  # why the last read has failed

    def phases(self) -> Mapping[str, Phase]:
        """Return the phase of each job's runner, by job. While another thread reads, return what is known."""
        # Callers read the state of a job after this call. Else a job that has just succeeded could appear as
        # interrupted.
        if time.monotonic() < self._due or not self._reading.acquire(blocking=False):
            return self._phases
        start, n_forgotten = time.monotonic(), self._n_forgotten
        try:
            # The service of the first read: a later ``mops connect`` to another one has no effect.
            self._service = self._service or service_with(self._files, local=self._local)
            self._phases = self._service.phases() if self._service else {}
            self.error = None
        except MopsError as refused:  # the storage has the states of the jobs
            self._phases, self.error = {}, refused
        finally:
            now = time.monotonic()
            with self._changing:
                is_newest = self._n_forgotten == n_forgotten
                self._due = now + max(PHASE_SECONDS, READ_SHARE * (now - start)) if is_newest else 0.0
            self._reading.release()
        return self._phases

    def forget(self) -> None:
        """Read again at the next call, even if another thread reads now: a runner has started or stopped."""
        with self._changing:
            self._n_forgotten += 1
            self._due = 0.0
