"""``mops doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from mops.cli import connected_service, terminal
from mops.cli.options import JsonOption, StorageOption
from mops.cluster.doctor import Finding, Scheduler, Worker, examine
from mops.cluster.embedded import embedded_slots
from mops.cluster.external import connect_external
from mops.jobs.job import open_job
from mops.service.overview import dask_of
from mops.service.profile import load
from mops.settings import Settings
from mops.system.heap import resident_bytes, trim_heap
from mops.system.lifeline import can_watch
from mops.system.memory_limits import allowed_bytes, available_bytes, share_bytes, usable_bytes

OptionalJob = Annotated[str | None, typer.Argument(metavar="JOB", help="A job, to see how its children started.")]


def doctor(
    job: OptionalJob = None,
    storage: StorageOption = None,
    local: Annotated[bool, typer.Option("--local", help="Look at this machine in any case.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look whether memory is bounded on this machine, or the cluster.

    The cluster is that of MODELOPS_SCHEDULER, else that of the connected service; without them, this machine is looked
    at. Of a job it says how its child processes were started, and why.

    Exit codes: 0 nothing is off, 1 something is, 4 the cluster is out of reach.
    """
    settings = Settings.from_environment()
    children = _children(settings, job, storage, local=local)
    looked = None if local else _look(settings)
    if looked is None:
        _show_machine(settings, children, as_json=as_json)
        return
    scheduler, workers, found = looked
    if as_json:
        parts = {"scheduler": asdict(scheduler), "workers": [asdict(worker) for worker in workers]}
        terminal.data_json(parts | {"children": children, "findings": [asdict(finding) for finding in found]})
    else:
        terminal.say(f"children: {children}")
        _show_cluster(scheduler, workers, found)
    if found or not workers:
        raise typer.Exit(1)


def _look(settings: Settings) -> tuple[Scheduler, list[Worker], list[Finding]] | None:
    """Look at the cluster that jobs would run on; None: they would run on this machine."""
    if settings.scheduler is not None:
        with connect_external(settings.scheduler, "doctor", settings) as cluster:
            return examine(cluster.client, settings.sim_threads)
    if load() is None:
        return None
    service = connected_service.connected()
    terminal.say(f"looking at the connected service: {service.kubernetes.where}; --local looks at this machine")
    dask = dask_of(service, settings.sim_threads)
    return dask.scheduler, list(dask.workers), list(dask.findings)


def _show_cluster(scheduler: Scheduler, workers: list[Worker], found: list[Finding]) -> None:
    n_threads = sum(worker.threads for worker in workers)
    terminal.say(f"{scheduler.address}: {len(workers)} workers, {n_threads} threads")
    if not found:
        terminal.say("nothing is off" if workers else "no worker answers: nothing runs until one does")
        return
    terminal.data_table(("where", "what is off", "set"), [(one.where, one.what, one.fix) for one in found])


def _show_machine(settings: Settings, children: str, *, as_json: bool) -> None:
    slots, allowed, available = embedded_slots(settings), allowed_bytes(), available_bytes()
    own = resident_bytes()
    share = settings.sim_memory or share_bytes(usable_bytes(None, own), own, slots)
    if as_json:
        memory = {"memory_bytes": allowed, "available_bytes": available, "simulation_bytes": share}
        facts = {"slots": slots, **memory}
        terminal.data_json(facts | {"children": children, "trims": trim_heap(), "findings": []})
        return
    terminal.data_fields(_machine(slots, (allowed, available), share, children))
    terminal.say("this machine; set MODELOPS_SCHEDULER, or run mops connect, to look at a cluster")


def _children(settings: Settings, job: str | None, storage: str | None, *, local: bool) -> str:
    """Say how children start: those of a job, or what would be tried."""
    if job is not None:
        return open_job(job, storage, local=local).status().children or "the job has started none yet"
    if settings.start == "spawn" or not can_watch():
        return "each imports the model by itself"
    return "forked where the model allows it; mops doctor JOB says how those of a job were, and why"


def _machine(slots: int, memory: tuple[int, int], share: int, children: str) -> Iterator[tuple[str, str]]:
    yield "simulations at once", str(slots)
    yield "memory", "{}, of which {} are available now".format(*map(terminal.size, memory))
    yield "for one simulation", terminal.size(share)
    yield "children", children
    yield "freed memory", "given back" if trim_heap() else "kept: this libc has no malloc_trim"
