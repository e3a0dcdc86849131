"""The state of a cluster service: Kubernetes' view of its pods joined with Dask's view of its workers.

How Kubernetes is asked is service/service.py's, what is read of Dask cluster/doctor.py's. What one of them does not
tell, the other one may: a survey has what there is, and why the rest is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mops.cluster.connect import connect_to_look
from mops.cluster.doctor import ConnectedWorker, Finding, Scheduler, Worker, connected, examine, versions
from mops.errors import ClusterError, MopsError, ServiceError
from mops.k8s import names
from mops.k8s.pod_state import PodState
from mops.service.service import Service

T = TypeVar("T")


@dataclass(frozen=True)
class Dask:
    """What Dask says of itself.

    Parameters
    ----------
    connected
        The workers that the scheduler knows.
    workers
        What is in effect on those that answer.
    """

    scheduler: Scheduler
    connected: Sequence[ConnectedWorker]
    workers: Sequence[Worker]
    findings: Sequence[Finding]


@dataclass(frozen=True)
class WorkerView:
    """A worker.

    Parameters
    ----------
    pod
        None: Kubernetes does not say, or it is none of the chart's.
    dask
        None: it is not connected, or Dask could not be asked.
    """

    name: str
    pod: PodState | None = None
    dask: ConnectedWorker | None = None


@dataclass(frozen=True)
class ServiceOverview:
    """A service at a moment.

    Parameters
    ----------
    scheduler
        Its pods: one, or for a moment two. None, here and below: it could not be asked.
    workers
        As far as one of both tells.
    runners
        How many jobs' runners are at each word of :class:`mops.k8s.job_phase.Phase`.
    faults
        Why something is missing.
    """

    scheduler: Sequence[PodState] | None
    workers: Sequence[WorkerView] | None
    runners: Mapping[str, int] | None
    dask: Dask | None
    faults: Sequence[MopsError]

    @property
    def versions(self) -> dict[str, Mapping[str, str]]:
        """Versions by where they are: here, on the scheduler, on each kind of worker."""
        found: dict[str, Mapping[str, str]] = {"here": versions()}
        if self.dask is not None:
            found["scheduler"] = self.dask.scheduler.versions
            found |= _kinds(self.dask.workers)
        return found


def _kinds(workers: Sequence[Worker]) -> dict[str, Mapping[str, str]]:
    """Return the versions of workers by who has them: all alike, or so many like the first."""
    kinds: dict[frozenset[tuple[str, str]], list[Worker]] = {}
    for worker in workers:
        kinds.setdefault(frozenset(worker.versions.items()), []).append(worker)
    if len(kinds) == 1:
        return {"workers": workers[0].versions}
    return {f"{len(alike)} like {alike[0].address}": alike[0].versions for alike in kinds.values()}


def overview_of(service: Service, sim_threads: int) -> ServiceOverview:
    """Look at a service.

    Parameters
    ----------
    sim_threads
        Threads of a simulation.

    Raises
    ------
    UsageError, ServiceError
        Kubernetes is out of reach.
    """
    faults: list[MopsError] = []
    pods = _told(lambda: service.pods(names.WORKER), faults)
    scheduler = _told(lambda: service.pods(names.SCHEDULER), faults)
    phases = _told(service.phases, faults)
    dask = _told(lambda: dask_of(service, sim_threads), faults)
    workers = None if pods is None and dask is None else joined(pods or (), dask.connected if dask else ())
    runners = None if phases is None else Counter(phase.word for phase in phases.values())
    return ServiceOverview(scheduler, workers, runners, dask, _distinct(faults))


def dask_of(service: Service, sim_threads: int) -> Dask:
    """Look at the Dask cluster of a service.

    Raises
    ------
    ServiceError
        This person does not reach the scheduler.
    ClusterError
        The scheduler does not answer.
    """
    with service.scheduler() as address, connect_to_look(address) as client:
        there = connected(client)
        scheduler, workers, findings = examine(client, sim_threads)
    return Dask(scheduler, there, workers, findings)


def joined(pods: Sequence[PodState], workers: Sequence[ConnectedWorker]) -> list[WorkerView]:
    """Join pods and Dask's workers by their names, which are the same."""
    by_name = {worker.name: worker for worker in workers}
    members = [WorkerView(pod.name, pod, by_name.pop(pod.name, None)) for pod in pods]
    return [*members, *(WorkerView(name, None, worker) for name, worker in sorted(by_name.items()))]


def _told(ask: Callable[[], T], faults: list[MopsError]) -> T | None:
    try:
        return ask()
    except (ServiceError, ClusterError) as fault:
        faults.append(fault)
        return None


def _distinct(faults: Iterable[MopsError]) -> list[MopsError]:
    """Return what is missing, each reason once: a cluster that is out of reach is so four times."""
    return list({fault.what: fault for fault in faults}.values())
