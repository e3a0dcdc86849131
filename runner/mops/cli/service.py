"""The service: ``mops connect``, ``disconnect``, ``dashboard``, ``settings``, ``cluster status``."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mops.cli import terminal
from mops.cli.options import JsonOption, LocalOption
from mops.errors import MopsError, UsageError
from mops.jobs.location import described, locate
from mops.k8s import names
from mops.options import Option
from mops.service import profile as saved
from mops.service.connect import connect as connect_service
from mops.service.service import Service, another_version
from mops.settings import Settings

if TYPE_CHECKING:
    from mops.cluster.doctor import Finding
    from mops.k8s.pod_state import PodState
    from mops.service.overview import ServiceOverview, WorkerView

UNKNOWN = "unknown: see the error below"


def connected() -> Service:
    """Return the connected service. UsageError: none is connected. ServiceError: it is out of reach."""
    profile = saved.load()
    if profile is None:
        hint = "connect to a service: mops connect --namespace NAME"
        raise UsageError("no cluster service is connected", where=str(saved.path()), hint=hint)
    return Service.of(profile)


def connect(
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n", "--namespace", metavar="NAMESPACE", help="Use this namespace; default: that of the kubectl context"
        ),
    ] = None,
    context: Annotated[str | None, Option("Use this kubectl context", "CONTEXT")] = None,
    kubeconfig: Annotated[Path | None, Option("Use this kubeconfig file", "FILE")] = None,
    release: Annotated[str | None, Option("Use this release of the chart; default: mops", "RELEASE")] = None,
    dedicated: Annotated[bool, Option("Run jobs on dedicated Dask clusters by default")] = False,
    profile: Annotated[
        str | None, Option("Save this profile, or use it if it exists; default: default", "NAME")
    ] = None,
) -> None:
    """Connect to a cluster service, so that jobs run there.

    The command finds the service in your kubectl context, checks your permissions, and saves a profile. With the
    --profile of a saved profile and nothing else, it connects to that service again. To run one job on this machine,
    use 'mops jobs submit --local'.

    Example:

        mops connect --namespace studies --profile prod
    """
    found, file = connect_service(profile, namespace, context, kubeconfig, release, dedicated)
    service = found.service
    terminal.data_fields(
        [
            ("service", f"{service.release} in namespace {found.namespace}, mops {service.version}"),
            ("storage", service.storage),
            ("scheduler", "dedicated for each job" if found.dedicated else service.scheduler),
            ("image", service.runner.image),
            ("saved in", str(file)),
        ]
    )
    if warning := another_version(service):
        terminal.say(f"warning: {warning}")


def disconnect() -> None:
    """Run jobs on this machine again.

    The profiles of services stay: 'mops connect --profile NAME' connects again. Jobs on a service continue.

    Example:

        mops disconnect
    """
    terminal.say("jobs run on this machine again" if saved.disconnect() else "no service was connected")


def dashboard(
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Use this port of this machine; 0: any free port")
    ] = 8787,
    open_: Annotated[bool, Option("Open the dashboard in a browser", flags="--open")] = False,
) -> None:
    """Forward the Dask dashboard of the connected service.

    The command prints the URL to open in a browser, and ends with Ctrl-C. If the scheduler restarts, reload the page.

    Example:

        mops dashboard --open
    """
    last = ""

    def warn(fault: MopsError) -> None:
        nonlocal last
        if fault.what != last:  # a page asks ten times a second
            terminal.say(f"warning: {fault.what}")
        last = fault.what

    with connected().dashboard(port, warn) as url:
        terminal.data_text(f"{url}\n")
        terminal.say(f"the dashboard is available until Ctrl-C{'' if open_ else '; open the URL in a browser'}")
        if open_:
            typer.launch(url)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            terminal.say("stopped")


def settings(local: LocalOption = False, as_json: JsonOption = False) -> None:
    """List every setting, its value, its source and its meaning.

    The first line is the service that commands use.

    Example:

        mops settings
    """
    lines = described(locate(local=local))
    if as_json:
        terminal.data_json([asdict(line) for line in lines])
        return
    rows = [(line.name, line.text, line.source, line.meaning) for line in lines]
    terminal.data_table(("variable", "value", "from", "meaning"), rows)


def cluster_status(as_json: JsonOption = False) -> None:
    """Show the workers, memory and versions of the connected service.

    Kubernetes reports the state of each pod and its restarts. Dask reports the memory of each worker with its
    simulations. The command also lists settings that do not bound memory.

    Example:

        mops cluster status

    Exit codes: 0, or 4 if Kubernetes or Dask does not answer.
    """
    from mops.service.overview import overview_of  # noqa: PLC0415 - it imports Dask, which other commands do not need

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
        "autoscaler": None
        if about.autoscaler is None
        else {**about.autoscaler.model_dump(), "pods": _dicts(now.autoscaler)},
        "runners": now.runners,
        "versions": now.versions,
        "findings": _dicts(now.dask.findings) if now.dask else None,
        "refused": now.refused,
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
    if (allowed := about.autoscaler) is not None:
        pods = UNKNOWN if now.autoscaler is None else "; ".join(map(_pod, now.autoscaler)) or "no pod"
        yield "autoscaler", f"{pods}; from {allowed.least} to {allowed.most} workers, as jobs need them"
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
    for pool, why in now.refused.items():
        where = "" if pool == names.DEFAULT_POOL else f"pool {pool}: "
        terminal.say(f"warning: {where}Kubernetes refuses pods of workers: {why}")
    # After a fault, such as a service that no longer exists, its own hint is enough.
    if now.refused:
        terminal.say(f"hint: {_start_workers(service, now)}")
    elif now.workers == [] and not now.faults and service.profile.service.autoscaler is None:
        terminal.say("warning: the service has no workers, so no job can run")
        terminal.say(f"hint: {_start_workers(service, now)}")


def _start_workers(service: Service, now: ServiceOverview) -> str:
    release, namespace = service.profile.service.release, service.profile.namespace
    if not service.kubernetes.may("patch", "deployments/scale", "apps"):
        return "ask the cluster's operator to start workers"
    if now.refused:
        return f"raise the quota, or lower worker.cpu and worker.memory: kubectl describe quota --namespace {namespace}"
    return f"kubectl scale deployment {release}-worker --namespace {namespace} --replicas 2"
