"""``mops jobs list``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mops import units
from mops.cli import terminal
from mops.cli.options import JsonOption, LocalOption, StorageOption
from mops.jobs.following import OPEN_STATES, phases_of
from mops.jobs.listing import Listed, list_jobs
from mops.jobs.location import locate

if TYPE_CHECKING:
    from mops.k8s.job_phase import Phase


def list_(
    state: Annotated[list[str] | None, typer.Option(metavar="STATES", help="Show only jobs in these states")] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", metavar="N", min=1, help="Show only this many of the newest jobs")
    ] = None,
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the jobs of a storage, newest first.

    'sets' counts the committed parameter sets. 'finished' and 'durable' count simulations: those that have run, and
    those that are committed. 'reused' counts simulations that come from other jobs.

    States: submitted, running, interrupted, succeeded, partial, failed, cancelled, unreadable.

    Example:

        mops jobs list --state running,interrupted
    """
    files = locate(storage, local=local).open()
    states = [name.strip() for names in state or [] for name in names.split(",")]
    runners = phases_of(files, local=local)
    found = list_jobs(files.brief(), states, limit, phases=runners)
    open_ones = {job.job for job in found if job.state in OPEN_STATES}
    phases = {job: phase for job, phase in runners().items() if job in open_ones} if open_ones else {}
    if as_json:
        kubernetes = {job: {"kubernetes": asdict(phase)} for job, phase in phases.items()}
        terminal.data_json([asdict(job) | kubernetes.get(job.job, {}) for job in found])
        return
    if found:
        with_reused = any(job.simulations_reused for job in found)
        columns = (
            "job",
            "state",
            "sets",
            "finished",
            "durable",
            "failed",
            *(("reused",) if with_reused else ()),
            "submitted",
            *(("Kubernetes",) if phases else ()),
        )
        rows = [_row(job, phases, with_reused=with_reused) for job in found]
        terminal.data_table(columns, rows, right=("sets", "finished", "durable", "failed", "reused"))
    else:
        terminal.say(f"no {' or '.join(states) + ' ' if states else ''}jobs in {files.url}")
    for job in found:
        if job.error is not None:
            terminal.say(f"warning: job {job.job} cannot be read: {job.error}")


def _row(job: Listed, phases: Mapping[str, Phase], *, with_reused: bool) -> tuple[str, ...]:
    submitted = units.moment(job.created) if job.created else "-"
    kubernetes = (str(phases.get(job.job, "")),) if phases else ()
    if job.groups is None or job.n_groups is None:
        return job.job, job.state, "-", "-", "-", "-", *(("-",) if with_reused else ()), submitted, *kubernetes
    simulations = (f"{job.simulations_finished:,}/{job.n_simulations:,}", f"{job.simulations_durable:,}")
    counts = (f"{job.groups:,}/{job.n_groups:,}", *simulations, f"{job.simulations_failed:,}")
    reused = (f"{job.simulations_reused:,}",) if with_reused else ()
    return job.job, job.state, *counts, *reused, submitted, *kubernetes
