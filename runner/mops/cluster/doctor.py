"""Checks that a cluster is set up so that its memory is bounded, and says what to set.

:func:`facts_of_scheduler` and :func:`facts_of_worker` run on the cluster and read the settings in effect.
:func:`findings` is pure. docs/reference/doctor.md has the rules and their reasons.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from mops.cluster.dask_calls import DaskCalls
from mops.system.process_memory import resident_bytes
from mops.system.resources import LEAST_SLOT_BYTES, allowed_bytes, share_bytes, slots_with_room
from mops.units import bytes_text

logger = logging.getLogger(__name__)

_SATURATION = 1.0
_GOOD_SHARE_BYTES = 256 << 20  # of one simulation, at least
_CONNECT_SECONDS = 1.0  # to a pod of the same cluster; a network policy lets the attempt go unanswered


@dataclass(frozen=True)
class Worker:
    """The settings in effect on a worker."""

    address: str
    threads: int
    limit_bytes: int  # Dask's limit of the worker's memory; 0: none
    host_bytes: int  # the memory of the worker's host or container
    own_bytes: int  # the memory of the worker's own process
    target: float | bool
    spill: float | bool
    trim_threshold: str | None  # MALLOC_TRIM_THRESHOLD_ in its environment
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConnectedWorker:
    """The facts that the scheduler knows of a worker, whatever the versions of mops on both."""

    name: str  # Dask's; on Kubernetes, the name of its pod
    address: str
    threads: int
    limit_bytes: int  # Dask's limit of the worker's memory; 0: none
    tree_bytes: int  # the memory of the worker and its simulations at its last heartbeat


@dataclass(frozen=True)
class Scheduler:
    """The settings in effect on the scheduler."""

    address: str
    saturation: float
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A setting that should be changed."""

    where: str  # the scheduler, workers or hosts that it concerns
    what: str  # the setting in effect, and why it is wrong
    fix: str  # what to set


def versions() -> dict[str, str]:
    """Return the versions that must be the same on runner, scheduler and workers."""
    python = ".".join(platform.python_version_tuple()[:2])
    packages = {name: version(name) for name in ("dask", "distributed")}
    return {"mops": version("mops-runner"), "Python": python, **packages}


def facts_of_scheduler(dask_scheduler: Any) -> Scheduler:
    """Return the settings in effect on the scheduler. Runs there."""
    return Scheduler(dask_scheduler.address, dask_scheduler.WORKER_SATURATION, versions())


def facts_of_worker(dask_worker: Any) -> Worker:
    """Return the settings in effect on a worker. Runs there."""
    manager = dask_worker.memory_manager
    return Worker(
        address=dask_worker.address,
        threads=dask_worker.state.nthreads,
        limit_bytes=manager.memory_limit or 0,
        host_bytes=allowed_bytes(),
        own_bytes=resident_bytes(),
        target=manager.memory_target_fraction,
        spill=manager.memory_spill_fraction,
        trim_threshold=os.environ.get("MALLOC_TRIM_THRESHOLD_"),
        versions=versions(),
    )


def connected(calls: DaskCalls) -> list[ConnectedWorker]:
    """Return the workers that are connected to the scheduler."""
    return [
        ConnectedWorker(
            name=str(known["name"]),
            address=address,
            threads=known["nthreads"],
            limit_bytes=known.get("memory_limit") or 0,
            tree_bytes=sum(known.get("metrics", {}).get(name, 0) for name in ("memory", "mops_children_bytes")),
        )
        for address, known in calls.known_workers().items()
    ]


def examine(calls: DaskCalls, threads: int) -> tuple[Scheduler, list[Worker], list[Finding]]:
    """Return a running cluster's scheduler, its workers that answer, and what should be changed.

    ``threads`` is the number of threads of one simulation.
    """
    scheduler = calls.on_scheduler(facts_of_scheduler)
    workers = [facts for facts in calls.on_workers(facts_of_worker).values() if isinstance(facts, Worker)]
    return scheduler, workers, list(findings(scheduler, workers, versions(), threads))


async def reaches(host: str, port: int) -> bool:
    """Return whether this process can open a TCP connection. Runs on a worker."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _CONNECT_SECONDS)
    except OSError:
        return False
    writer.close()
    return True


def open_nanny(calls: DaskCalls) -> str | None:
    """Return the address of a nanny to which a worker of another host can connect; None: none is known.

    On a service, the chart's network policies admit only the scheduler there.
    """
    nannies = {address: known["nanny"] for address, known in calls.known_workers().items() if known.get("nanny")}
    asked = next(iter(nannies), "")
    others = [nanny for nanny in nannies.values() if urlsplit(nanny).hostname != urlsplit(asked).hostname]
    if not others:
        return None
    place = urlsplit(others[0])
    answers = calls.on_workers(reaches, place.hostname, place.port, only=[asked])
    return others[0] if answers[asked] is True else None


def warn(calls: DaskCalls, job: str, threads: int) -> None:
    """Log what should be changed. If the cluster does not answer, the job will report that itself."""
    try:
        _, _, found = examine(calls, threads)
    except Exception:
        logger.debug("%s: cannot check the Dask cluster", job, exc_info=True)
        return
    for finding in found:
        logger.warning("%s: %s: %s; set %s", job, finding.where, finding.what, finding.fix)


def findings(
    scheduler: Scheduler, workers: Sequence[Worker], own: Mapping[str, str], threads: int
) -> Iterator[Finding]:
    """Yield what should be changed; ``own`` are the runner's versions, ``threads`` those of one simulation."""
    if scheduler.saturation != _SATURATION:
        yield Finding(
            "scheduler",
            f"worker-saturation is {scheduler.saturation:g}: workers queue tasks, and hold more results",
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION=1.0 in the scheduler's environment",
        )
    yield from _version_findings("scheduler", scheduler.versions, own)
    kinds: dict[tuple[object, ...], list[Worker]] = defaultdict(list)  # a hundred equal workers are one line
    for worker in workers:
        settings = (worker.threads, worker.limit_bytes, worker.target, worker.spill, worker.trim_threshold)
        kinds[(*settings, *sorted(worker.versions.items()))].append(worker)
    for alike in kinds.values():
        more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        largest = max(alike, key=lambda worker: worker.own_bytes)
        yield from _worker_findings(f"worker {alike[0].address}{more}", largest, own, threads)


def _worker_findings(where: str, worker: Worker, own: Mapping[str, str], threads: int) -> Iterator[Finding]:
    for name, fraction in (("target", worker.target), ("spill", worker.spill)):
        if fraction and worker.limit_bytes:
            yield Finding(
                where,
                f"memory.{name} is {fraction:g}: results are mapped files, and writing them to disk frees nothing",
                f"DASK_DISTRIBUTED__WORKER__MEMORY__{name.upper()}=False in its environment",
            )
    if not worker.trim_threshold:
        yield Finding(
            where, "its heap keeps freed memory", "MALLOC_TRIM_THRESHOLD_=65536 in its environment, before it starts"
        )
    slots = max(worker.threads // threads, 1)
    allowed = min(worker.limit_bytes or worker.host_bytes, worker.host_bytes)
    n_slots = slots_with_room(allowed, worker.own_bytes, slots)
    share = share_bytes(allowed, worker.own_bytes, n_slots)
    if n_slots < slots:
        yield Finding(
            where,
            f"its memory is enough for {n_slots} of {slots} slots: {bytes_text(allowed)}, less "
            f"{bytes_text(worker.own_bytes)} for the worker, and at least {bytes_text(LEAST_SLOT_BYTES)} for each slot",
            "a lower --nthreads, or a higher --memory-limit",
        )
    elif share < _GOOD_SHARE_BYTES:
        yield Finding(
            where,
            f"a simulation gets {bytes_text(share)}: {bytes_text(allowed)}, less "
            f"{bytes_text(worker.own_bytes)} for the worker, divided by {slots}, less 256 MiB of headroom",
            "a lower --nthreads, or a higher --memory-limit",
        )
    yield from _version_findings(where, worker.versions, own)


def _version_findings(where: str, found: Mapping[str, str], own: Mapping[str, str]) -> Iterator[Finding]:
    for name in own:
        if found.get(name) != own[name]:
            yield Finding(
                where, f"{name} is {found.get(name)}, and {own[name]} here", f"the same version of {name} on both"
            )
