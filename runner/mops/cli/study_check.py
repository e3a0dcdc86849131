"""``mops study check``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from mops.cli import running, terminal
from mops.cli.jobs_submit import JsonOption
from mops.driver.cluster import embedded_slots
from mops.launch import Prepared, check_model, prepare
from mops.settings import Settings


def check(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (study.json).")],
    project: Annotated[Path | None, typer.Option(help="The folder with the model; else found from the study.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a study and its model, and print what submit would run.

    The model is imported, nothing runs, and nothing is stored.
    """
    settings = Settings.from_environment()
    prepared = prepare(study, project, settings.storage)
    check_model(prepared, settings)
    plan = _plan(prepared, settings)
    for warning in prepared.study.warnings:
        terminal.say(f"note: {warning}")
    if as_json:
        terminal.data_json(plan)
    else:
        terminal.data_fields(_fields(plan))


def _plan(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    spec, bundle = prepared.spec, prepared.bundle
    return {
        **spec.to_json(),
        "project": str(prepared.root),
        "bundle": {"digest": bundle.digest, "files": len(bundle.names), "bytes": len(bundle.data)},
        "parameter_sets": len(prepared.study.groups),
        "simulations": prepared.study.n_simulations,
        "in_flight": settings.batch_size,
        "slots": embedded_slots(settings),
        "warnings": list(prepared.study.warnings),
    }


def _fields(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    bundle = plan["bundle"]
    yield "model", plan["model"]
    yield "scenario", plan["scenario"]
    yield "outputs", "all" if plan["outputs"] is None else ", ".join(plan["outputs"])
    yield "targets", ", ".join(plan["targets"]) or "none"
    yield "project", plan["project"]
    yield "bundle", f"{running.counted(bundle['files'], 'file')}, {terminal.size(bundle['bytes'])}, {bundle['digest']}"
    yield "parameter sets", f"{plan['parameter_sets']:,}, at most {plan['in_flight']:,} of them in flight"
    yield "simulations", f"{plan['simulations']:,}, {plan['slots']} at once"
