"""``mops doctor``."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mops.attempt.attempt import embedded_slots
from mops.cli import terminal
from mops.cli.options import JsonOption, Place, StorageOption
from mops.cli.service import connected
from mops.cluster.dask_calls import connect_to_look
from mops.cluster.doctor import Finding, Scheduler, Worker, examine
from mops.cluster.external import check_address
from mops.errors import StorageError
from mops.options import COMMON, Option
from mops.service.overview import dask_of
from mops.service.profile import load
from mops.settings import Settings
from mops.storage.probe import PROBED, probe
from mops.system.process_memory import resident_bytes, trim_heap
from mops.system.resources import allowed_bytes, available_bytes, share_bytes, slots_with_room, usable_bytes


def doctor(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Show how the child processes of this job started")
    ] = None,
    storage: StorageOption = None,
    local: Annotated[bool, Option("Check this machine even when connected to a service", panel=COMMON)] = False,
    as_json: JsonOption = False,
) -> None:
    """Check memory limits and the storage, here or on the cluster.

    The command checks the cluster of MODELOPS_SCHEDULER. If the variable is not set, the command checks the connected
    service. Without a service, it checks this machine. In the storage, the command creates a file, reads it and removes
    it. If you name a job, the command also shows how the job's child processes started, and why.

    Example:

        mops doctor

    Exit codes: 0 no problem, 1 problems, 4 the cluster is out of reach.
    """
    settings, place = Settings.from_environment(), Place(storage, local)
    children = _children(settings, job, place)
    examined = None if local else _examine(settings)
    storage_state, found = _storage(place)
    lacks_workers = False
    if examined is None:
        _show_machine(settings, children, storage_state, found, as_json=as_json)
    else:
        scheduler, workers, problems = examined
        found, lacks_workers = [*problems, *found], not workers
        _show_cluster(scheduler, workers, children, storage_state, found, as_json=as_json)
    if found and not as_json:
        terminal.data_table(("where", "problem", "change"), [(one.where, one.what, one.fix) for one in found])
    if found or lacks_workers:
        raise typer.Exit(1)


def _examine(settings: Settings) -> tuple[Scheduler, list[Worker], list[Finding]] | None:
    """Examine the cluster that would run jobs; None: this machine would run them."""
    if settings.scheduler is not None:
        check_address(settings.scheduler)
        with connect_to_look(settings.scheduler) as calls:
            return examine(calls, settings.sim_threads)
    if load() is None:
        return None
    service = connected()
    terminal.say(f"checking the connected service: {service.kubernetes.where}")
    dask = dask_of(service, settings.sim_threads)
    return dask.scheduler, list(dask.workers), list(dask.findings)


def _storage(place: Place) -> tuple[str, list[Finding]]:
    """Write to the storage of jobs and read from it; return its URL with the answer, and the problem."""
    files = place.locate().open()
    if files.folder is not None and _can_be_made(files.folder):
        return f"{files.url}, which the first job makes", []
    try:
        probe(files.brief())
    except StorageError as refused:
        return "does not work", [Finding(f"storage {refused.where}", refused.what, refused.hint or "")]
    return f"{files.url}, where {PROBED}", []


def _can_be_made(folder: str) -> bool:
    """Tell whether a folder does not exist, and this account may make it."""
    # os.path.exists answers also where Path.exists raises, because the account may not look.
    nearest = next(str(one) for one in (Path(folder), *Path(folder).parents) if os.path.exists(one))  # noqa: PTH110
    return nearest != folder and os.access(nearest, os.W_OK | os.X_OK)


def _show_cluster(
    scheduler: Scheduler, workers: list[Worker], children: str, storage: str, found: list[Finding], *, as_json: bool
) -> None:
    if as_json:
        parts = {"scheduler": asdict(scheduler), "workers": [asdict(worker) for worker in workers]}
        facts = {"children": children, "storage": storage, "findings": [asdict(finding) for finding in found]}
        terminal.data_json(parts | facts)
        return
    terminal.say(f"child processes: {children}")
    terminal.say(f"storage: {storage}")
    n_threads = sum(worker.threads for worker in workers)
    terminal.say(f"{scheduler.address}: {len(workers)} workers, {n_threads} threads")
    if not workers:
        terminal.say("no worker answers: no job can run")
    elif not found:
        terminal.say("no problems")


def _show_machine(settings: Settings, children: str, storage: str, found: list[Finding], *, as_json: bool) -> None:
    slots, allowed, available = embedded_slots(settings), allowed_bytes(), available_bytes()
    own = resident_bytes()
    usable = usable_bytes(None, own)
    if settings.sim_memory is None:
        slots = slots_with_room(usable, own, slots)
    share = settings.sim_memory or share_bytes(usable, own, slots)
    if as_json:
        memory = {"memory_bytes": allowed, "available_bytes": available, "simulation_bytes": share}
        texts = {"children": children, "storage": storage, "trims": trim_heap()}
        terminal.data_json({"slots": slots, **memory, **texts, "findings": [asdict(finding) for finding in found]})
        return
    terminal.data_fields(
        [
            ("simulations at once", str(slots)),
            ("memory", f"{terminal.size(allowed)}, {terminal.size(available)} available now"),
            ("simulation memory", terminal.size(share)),
            ("child processes", children),
            ("storage", storage),
            ("freed memory", "returned to the system" if trim_heap() else "kept: this libc has no malloc_trim"),
        ]
    )
    terminal.say("checked this machine; to check a cluster, set MODELOPS_SCHEDULER or run 'mops connect'")


def _children(settings: Settings, job: str | None, place: Place) -> str:
    """Return how child processes start: those of a job, or of any job."""
    if job is not None:
        return place.open(job).status().children or "the job has started no child process yet"
    if settings.start == "spawn":
        return "each child process imports the model"
    return "forked if the model allows it; for a job, see: mops doctor JOB"
