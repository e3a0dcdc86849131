"""``mops study check``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mops import units
from mops.attempt.attempt import embedded_slots
from mops.attempt.sizing import first_groups
from mops.cli import job_text, terminal
from mops.cli.options import EnvOption, JsonOption, PythonOption
from mops.cli.study.trial_report import fields_of, say_warnings, to_json
from mops.jobs.prepare import PreparedStudy, prepare
from mops.jobs.trial import check_model, raise_failure, try_model
from mops.settings import Settings
from mops.study.ids_and_seeds import short_id
from mops.worker.install import child_environment
from mops.worker.variables import read_variables


def check(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file, like study.json")],
    project: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Use the model in this folder")] = None,
    env: EnvOption = None,
    python: PythonOption = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run a simulation, or only import the model")] = True,
    as_json: JsonOption = False,
) -> None:
    """Check a study and its model, and print what submit would run.

    mops runs the first simulation three times: in a fresh process, again in that process, and in a second process after
    another simulation. Each target scores the first parameter set twice. If the set has replicates, a third process
    runs the second one, whose rows should differ. The command shows whether the model is reproducible, how long a
    simulation takes and how large its outputs are. The command stores nothing.

    Example:

        mops study check study.json

    Exit codes: 0 no error (a model that is not reproducible gets a warning), 1 the simulation or a target failed, 2
    wrong input.
    """
    settings = Settings.from_environment()
    variables = read_variables(env or [])
    child = child_environment(variables, python, install=settings.install)
    prepared = prepare(study, project, settings.storage)
    for warning in prepared.study.warnings:
        terminal.say(f"note: {warning}")
    trial = try_model(prepared, settings, child, _say_what_runs) if run else None
    if trial is None:
        check_model(prepared, settings, child)
    plan = _plan(prepared, settings.over(prepared.limits)) | {"env": variables, "python": child.python}
    if as_json:
        terminal.data_json(plan | {"trial": None if trial is None else to_json(trial)})
    else:
        terminal.data_fields([*_fields(plan), *([] if trial is None else fields_of(trial))])
    if trial is not None:
        say_warnings(trial)
        raise_failure(trial)


def _say_what_runs() -> None:
    # The trial reports a crash itself; the worker's log line would announce a retry, which a trial does not do.
    logging.getLogger("mops.worker").setLevel(logging.ERROR)
    terminal.say("running one simulation three times, and another one in between; --no-run skips this")


def _plan(prepared: PreparedStudy, settings: Settings) -> dict[str, Any]:
    spec, bundle = prepared.spec, prepared.bundle
    return {
        **asdict(spec),
        "project": str(prepared.root),
        "bundle": {"digest": bundle.digest, "files": len(bundle.names), "bytes": len(bundle.data)},
        "parameter_sets": len(prepared.study.groups),
        "constants": prepared.study.groups.constants,
        "simulations": prepared.study.n_simulations,
        "limits": settings.limits,
        "in_flight": settings.batch_size or first_groups(embedded_slots(settings), is_auto=False),
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
    if len(plan["import_folders"]) > 1:
        yield "imports from", ", ".join(plan["import_folders"])
    size = f"{units.counted(bundle['files'], 'file')}, {terminal.size(bundle['bytes'])}"
    yield "bundle", f"{size}, {short_id(bundle['digest'])}"
    if plan["python"]:
        yield "python", plan["python"]
    if plan["env"]:
        yield "env", ", ".join(name if value is None else f"{name}={value}" for name, value in plan["env"].items())
    in_flight = plan["in_flight"]
    most = "as many in flight as memory allows" if in_flight == "auto" else f"at most {in_flight:,} in flight"
    yield "parameter sets", f"{plan['parameter_sets']:,}, {most}"
    if constants := [f"{name} = {value}" for name, value in plan["constants"].items()]:
        yield "the same in all sets", ", ".join(constants)
    yield "simulations", f"{plan['simulations']:,}, {plan['slots']} at once"
    if plan["limits"]:
        yield "limits", job_text.limits_of(plan["limits"])
