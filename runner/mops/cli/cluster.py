"""``mops cluster status``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import typer

from mops.cli import terminal
from mops.cli.options import JsonOption
from mops.cli.service import connected
from mops.cluster.doctor import Finding
from mops.k8s.pod_state import PodState
from mops.service.overview import ServiceOverview, WorkerView, overview_of
from mops.service.service import Service
from mops.settings import Settings

UNKNOWN = "unknown: see the error below"


def status(as_json: JsonOption = False) -> None:
    """Show the workers, memory and versions of the connected service.

    Kubernetes reports the state of each pod and its restarts. Dask reports the memory of each worker with its
    simulations. The command also lists settings that do not bound memory.

    Example:

        mops cluster status

    Exit codes: 0, or 4 if Kubernetes or Dask does not answer.
    """
    service = connected()
    now = overview_of(service, Settings.from_environment().sim_threads)
    if as_json:
        terminal.data_json(_as_json(service, now))
    else:
        _show(service, now)
    for fault in now.faults:
        terminal.error(fault)
    if now.faults:
        raise typer.Exit(4)


def _as_json(service: Service, now: ServiceOverview) -> dict[str, object]:
    about = service.profile.service
    return {
        "service": {"release": about.release, "namespace": service.profile.namespace, "version": about.version},
        "server": service.kubernetes.where,
        "image": about.runner.image,
        "scheduler": {"pods": _dicts(now.scheduler), "dask": asdict(now.dask.scheduler) if now.dask else None},
        "workers": _dicts(now.workers),
        "runners": now.runners,
        "versions": now.versions,
        "findings": _dicts(now.dask.findings) if now.dask else None,
        "faults": [{"what": fault.what, "where": fault.where, "hint": fault.hint} for fault in now.faults],
    }


def _dicts(found: Sequence[PodState | WorkerView | Finding] | None) -> list[dict[str, Any]] | None:
    return None if found is None else [asdict(one) for one in found]


def _show(service: Service, now: ServiceOverview) -> None:
    terminal.data_fields(_fields(service, now))
    if now.workers:
        rows = [_row(member, dask_answers=now.dask is not None) for member in now.workers]
        columns = ("worker", "state", "restarts", "threads", "memory", "why")
        terminal.data("")
        terminal.data_table(columns, rows, right=("restarts", "threads"))
    terminal.data("")
    packages = list(now.versions["here"])
    rows = [(where, *(found.get(name, "-") for name in packages)) for where, found in now.versions.items()]
    terminal.data_table(("versions", *packages), rows)
    _advise(service, now)


def _fields(service: Service, now: ServiceOverview) -> Iterator[tuple[str, str]]:
    about = service.profile.service
    yield "service", f"{about.release} in namespace {service.profile.namespace}, mops {about.version}"
    yield "server", service.kubernetes.where
    yield "image", about.runner.image
    yield "scheduler", UNKNOWN if now.scheduler is None else "; ".join(map(_pod, now.scheduler)) or "no pod"
    if now.dask is not None:
        threads = sum(worker.threads for worker in now.dask.connected)
        yield "", f"{now.dask.scheduler.address}, {len(now.dask.connected)} workers connected, {threads} threads"
    states = [member.pod.word if member.pod else "connected" for member in now.workers or ()]
    yield "workers", UNKNOWN if now.workers is None else _counted(Counter(states))
    yield "runners", UNKNOWN if now.runners is None else _counted(now.runners)


def _pod(pod: PodState) -> str:
    restarts = f", restarted {pod.restarts} times" if pod.restarts else ""
    end = f", last ended with {pod.last_end}" if pod.last_end else ""
    return f"{pod.name} {pod}{restarts}{end}"


def _counted(words: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {word}" for word, n in sorted(words.items())) or "none"


def _row(member: WorkerView, *, dask_answers: bool) -> tuple[str, ...]:
    pod, dask = member.pod, member.dask
    if pod is None:
        state, restarts, why = "connected", "-", "not a pod of the chart"
    else:
        lost = dask_answers and dask is None and pod.word == "running"
        state, restarts = "not connected" if lost else pod.word, str(pod.restarts)
        why = "; ".join(filter(None, (pod.reason, f"last ended with {pod.last_end}" if pod.last_end else "")))
    threads, memory = "-", "-"
    if dask is not None:
        limit = terminal.size(dask.limit_bytes) if dask.limit_bytes else "no limit"
        threads, memory = str(dask.threads), f"{terminal.size(dask.tree_bytes)} of {limit}"
    return member.name, state, restarts, threads, memory, why


def _advise(service: Service, now: ServiceOverview) -> None:
    pods = [member.pod for member in now.workers or () if member.pod] + [*(now.scheduler or ())]
    for hint in sorted({pod.hint for pod in pods} - {""}):
        terminal.say(f"hint: {hint}")
    for finding in now.dask.findings if now.dask else ():
        terminal.say(f"warning: {finding.where}: {finding.what}; set {finding.fix}")
    if now.workers == []:
        about = service.profile.service.release, service.profile.namespace
        scale = "kubectl scale deployment {}-worker --namespace {} --replicas 2".format(*about)
        terminal.say("warning: the service has no workers, so no job can run")
        terminal.say(f"hint: {scale}")
