"""``mops study check``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from mops.cli import terminal
from mops.cli.jobs_submit import JsonOption
from mops.settings import Settings
from mops.launch import Prepared, check_model, prepare


def check(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (study.json).")],
    project: Annotated[Path | None, typer.Option(help="The folder with the model; else found from the study.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a study and its model, and print what submit would run. Nothing runs and nothing is stored."""
    settings = Settings.from_environment()
    prepared = prepare(study, project)
    check_model(prepared, settings)
    plan = _plan(prepared, settings)
    for warning in prepared.study.warnings:
        terminal.say(f"note: {warning}")
    if as_json:
        terminal.data_json(plan)
        return
    for name, value in plan.items():
        terminal.data(f"{name:<20}{', '.join(value) or '-' if isinstance(value, list) else value}")


def _plan(prepared: Prepared, settings: Settings) -> dict[str, object]:
    n_groups = len(prepared.study.groups)
    batch, slots = settings.batch_size, settings.effective_slots
    return {
        "model": prepared.spec.model,
        "scenario": prepared.spec.scenario,
        "targets": list(prepared.spec.targets),
        "project": str(prepared.root),
        "bundle": f"{prepared.bundle.digest} ({len(prepared.bundle.names)} files, {len(prepared.bundle.data):,} bytes)",
        "parameter sets": n_groups,
        "simulations": prepared.study.n_simulations,
        "tasks": f"at most {n_groups:,}; short parameter sets are fused up to about {settings.task_seconds:g} s",
        "batches": f"{math.ceil(n_groups / batch)} of at most {batch} parameter sets in flight",
        "slots": f"{slots} simulations at once",
    }
