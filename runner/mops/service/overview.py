"""The state of a cluster service: Kubernetes' view of its pods joined with Dask's view of its workers.

service/service.py asks Kubernetes, and cluster/doctor.py asks Dask. If one of them does not answer, the overview shows
the other view, and why the rest is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mops.cluster.dask_calls import connect_to_look
from mops.cluster.doctor import ConnectedWorker, Finding, Scheduler, Worker, connected, examine, open_nanny, versions
from mops.errors import ClusterError, MopsError, ServiceError
from mops.k8s import names
from mops.k8s.pod_state import PodState
from mops.service.service import Service

T = TypeVar("T")


@dataclass(frozen=True)
class Dask:
    """Dask's view of a service."""

    scheduler: Scheduler
    connected: Sequence[ConnectedWorker]  # that the scheduler knows
    workers: Sequence[Worker]  # the effective configuration of the workers that answer
    findings: Sequence[Finding]


@dataclass(frozen=True)
class WorkerView:
    """A worker, as Kubernetes and Dask see it."""

    name: str
    pod: PodState | None = None  # None: Kubernetes does not answer, or the worker runs in no pod of the chart
    dask: ConnectedWorker | None = None  # None: the worker is not connected, or Dask does not answer


@dataclass(frozen=True)
class ServiceOverview:
    """The state of a service. None: Kubernetes or Dask did not answer."""

    scheduler: Sequence[PodState] | None  # one pod, or two while a pod replaces the other
    workers: Sequence[WorkerView] | None  # that Kubernetes or Dask knows
    runners: Mapping[str, int] | None  # in each phase (job_phase.Phase)
    dask: Dask | None
    autoscaler: Sequence[PodState] | None  # none if the service has no autoscaler
    faults: Sequence[MopsError]  # why parts are missing
    refused: Mapping[str, str]  # the pools of which Kubernetes makes no more workers, and why, by events

    @property
    def versions(self) -> dict[str, Mapping[str, str]]:
        """Versions of packages: here, on the scheduler, and on workers, in groups of workers with equal versions."""
        found: dict[str, Mapping[str, str]] = {"here": versions()}
        if self.dask is None:
            return found
        found["scheduler"] = self.dask.scheduler.versions
        groups: dict[frozenset[tuple[str, str]], list[Worker]] = {}
        for worker in self.dask.workers:
            groups.setdefault(frozenset(worker.versions.items()), []).append(worker)
        if len(groups) == 1:
            return found | {"workers": self.dask.workers[0].versions}
        return found | {f"{len(equal)} like {equal[0].address}": equal[0].versions for equal in groups.values()}


def overview_of(service: Service, sim_threads: int) -> ServiceOverview:
    """Return the state of a service, for simulations with this number of threads."""
    faults: list[MopsError] = []
    pods = _answer(lambda: service.pods(names.WORKER), faults)
    scheduler = _answer(lambda: service.pods(names.SCHEDULER), faults)
    autoscaler = _answer(lambda: service.pods(names.AUTOSCALER), faults) if service.profile.service.autoscaler else []
    phases = _answer(service.phases, faults)
    dask = _answer(lambda: dask_of(service, sim_threads), faults)
    workers = None if pods is None and dask is None else joined(pods or (), dask.connected if dask else ())
    runners = None if phases is None else Counter(phase.word for phase in phases.values())
    refused = {} if pods is None else _answer(service.refused, faults)
    # A cluster out of reach fails each question with the same error.
    distinct = list({fault.what: fault for fault in faults}.values())
    return ServiceOverview(scheduler, workers, runners, dask, autoscaler, distinct, refused or {})


def dask_of(service: Service, sim_threads: int) -> Dask:
    """Return Dask's view of a service."""
    service = service.renewed()  # an upgrade may have switched encryption on
    certificate = service.certificate()
    has_policies = service.profile.service.network_policy
    with service.scheduler() as address, connect_to_look(address, certificate=certificate) as calls:
        there = connected(calls)
        scheduler, workers, findings = examine(calls, sim_threads)
        nanny = open_nanny(calls) if has_policies else None
    found = [*([] if certificate else [_NOT_ENCRYPTED]), *([] if has_policies else [_NO_POLICIES])]
    return Dask(scheduler, there, workers, [*found, *([_not_enforced(nanny)] if nanny else []), *findings])


_NOT_ENCRYPTED = Finding(
    "scheduler",
    "its connections are not encrypted: each pod that reaches its port can run code on scheduler, workers and runners",
    "tls.enabled=true in the chart's values",
)
_NO_POLICIES = Finding(
    "scheduler",
    "it has no network policy: each pod of the cluster can connect to its ports, and to those of workers and runners",
    "networkPolicy.enabled=true in the chart's values",
)


def _not_enforced(nanny: str) -> Finding:
    return Finding(
        f"nanny {nanny}",
        "another worker can connect to it, which the chart's network policies forbid: the cluster does not enforce "
        "them, or another policy admits the worker",
        "a network plugin that enforces network policies",
    )


def joined(pods: Sequence[PodState], workers: Sequence[ConnectedWorker]) -> list[WorkerView]:
    """Join pods and Dask's workers by their names, which are equal."""
    by_name = {worker.name: worker for worker in workers}
    members = [WorkerView(pod.name, pod, by_name.pop(pod.name, None)) for pod in pods]
    return [*members, *(WorkerView(name, None, worker) for name, worker in sorted(by_name.items()))]


def _answer(ask: Callable[[], T], faults: list[MopsError]) -> T | None:
    try:
        return ask()
    except (ServiceError, ClusterError) as fault:
        faults.append(fault)
        return None
