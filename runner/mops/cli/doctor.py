"""``mops doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import typer

from mops.cli import terminal
from mops.cli.jobs_submit import JsonOption
from mops.driver.cluster import embedded_slots, external
from mops.driver.doctor import Finding, Scheduler, Worker, examine
from mops.settings import Settings
from mops.worker.heap import resident_bytes, trim_heap
from mops.worker.memory import allowed_bytes, share_bytes
from mops.worker.process import can_fork


def doctor(as_json: JsonOption = False) -> None:
    """Look whether memory is bounded on this machine, or the cluster.

    The cluster is that of MODELOPS_SCHEDULER; without it, this machine is looked at.

    Exit codes: 0 nothing is off, 1 something is, 4 the cluster is out of reach.
    """
    settings = Settings.from_environment()
    if settings.scheduler is None:
        _show_machine(settings, as_json=as_json)
        return
    with external(settings.scheduler, "doctor", settings) as cluster:
        scheduler, workers, found = examine(cluster.client, settings.sim_threads)
    if as_json:
        parts = {"scheduler": asdict(scheduler), "workers": [asdict(worker) for worker in workers]}
        terminal.data_json(parts | {"findings": [asdict(finding) for finding in found]})
    else:
        _show_cluster(scheduler, workers, found)
    if found:
        raise typer.Exit(1)


def _show_cluster(scheduler: Scheduler, workers: list[Worker], found: list[Finding]) -> None:
    n_threads = sum(worker.threads for worker in workers)
    terminal.say(f"{scheduler.address}: {len(workers)} workers, {n_threads} threads")
    if not found:
        terminal.say("nothing is off")
        return
    terminal.data_table(("where", "what is off", "set"), [(one.where, one.what, one.fix) for one in found])


def _show_machine(settings: Settings, *, as_json: bool) -> None:
    slots, allowed = embedded_slots(settings), allowed_bytes()
    share = settings.sim_memory or share_bytes(allowed, resident_bytes(), slots)
    if as_json:
        facts = {"slots": slots, "memory_bytes": allowed, "simulation_bytes": share}
        terminal.data_json(facts | {"forks": _forks(settings), "trims": trim_heap(), "findings": []})
        return
    terminal.data_fields(_machine(slots, allowed, share, forks=_forks(settings)))
    terminal.say("this machine; set MODELOPS_SCHEDULER to look at a cluster")


def _forks(settings: Settings) -> bool:
    return settings.start != "spawn" and can_fork()


def _machine(slots: int, allowed: int, share: int, *, forks: bool) -> Iterator[tuple[str, str]]:
    yield "simulations at once", str(slots)
    yield "memory", terminal.size(allowed)
    yield "for one simulation", terminal.size(share)
    yield "children", "forked where the model allows it" if forks else "each imports the model by itself"
    yield "freed memory", "given back" if trim_heap() else "kept: this libc has no malloc_trim"
