"""``mops study check``, which tries a study out, and ``mops study run``, which runs one simulation at the terminal."""

from __future__ import annotations

import json
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
from mops.cli.options import HERE, JsonOption, Place, ProjectOption, StudyArgument
from mops.errors import TrialFailed, UsageError
from mops.jobs.foreground import Foreground, Source, of_job, of_study, run_in_foreground
from mops.jobs.prepare import PreparedStudy, prepare
from mops.jobs.trial import Trial, check_model, raise_failure, try_model, why
from mops.options import Option
from mops.settings import Settings
from mops.storage.job_options import ProcessOptions
from mops.study.groups import Group
from mops.study.ids_and_seeds import canonical_json, short_id
from mops.worker.environment import child_environment

_DIFFERENCES_SHOWN = 5
_PARAMS_SHOWN = 200  # characters
_ADVICE = {
    "unseeded": "fresh processes differ too, so something is not seeded: seed each generator with the model's seed, "
    "like numpy.random.default_rng(seed)",
    "kept": "fresh processes agree, so the process keeps an object of an earlier simulation: create it in each "
    "simulation",
}
_FRESH_ADVICE = ", or set MODELOPS_JOB_TASKS_PER_CHILD=1"
_SEED_ADVICE = (
    "pass the seed to the model's generator, numpy.random.default_rng(seed); "
    "if the model draws no random numbers, one replicate is enough"
)
_READS_ADVICE = (
    "in a job each simulation starts in a folder with the project's files only: return what you need as an output"
)
_TARGET_ADVICE = "draw from random or numpy.random, which mops seeds, or from a generator with a fixed seed"


def to_json(trial: Trial) -> dict[str, Any]:
    """Return a trial as JSON values."""
    varying = trial.varying
    return {
        "param_id": trial.group.param_id,
        "seed": trial.group.seeds[0],
        "import_seconds": trial.import_seconds,
        "first_seconds": trial.first_seconds,
        "warm_seconds": trial.warm_seconds,
        "outputs": [asdict(output) for output in trial.outputs],
        "losses": [{"target": target, "name": name, "loss": loss} for (target, name), loss in trial.losses.items()],
        "failures": [failure._asdict() for failure in trial.failures],
        "other_failure": trial.other._asdict() if trial.other else None,
        "reproducible": None if trial.warm_seconds is None else varying is None,
        "varying": asdict(varying) if varying else None,
        "varying_losses": [asdict(difference) for difference in trial.varying_losses],
        "reads_written": list(trial.reads_written),
        "equal_replicates": trial.equal_replicates,
        "prints": trial.prints,
    }


def fields_of(trial: Trial) -> Iterator[tuple[str, str]]:
    """Yield the results of a trial."""
    yield "tried", f"seed {trial.group.seeds[0]} of the first parameter set ({short_id(trial.group.param_id)})"
    yield "import", units.duration(trial.import_seconds)
    warm = "" if trial.warm_seconds is None else f", {_seconds(trial.warm_seconds)} again in the same process"
    yield "one simulation", f"{_seconds(trial.first_seconds)} in a fresh process{warm}"
    for output in trial.outputs:
        yield f"output {output.name}", f"{units.counted(output.rows, 'row')}, {terminal.size(output.bytes)} as Arrow"
    for (target, name), loss in trial.losses.items():
        yield f"target {target}", f"{name} = {loss:g}"
    if trial.warm_seconds is not None:
        yield "reproducible", "no" if trial.varying or trial.varying_losses else "yes"


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else units.duration(seconds)


def say_warnings(trial: Trial) -> None:
    """Print what differs between runs, and what to do."""
    if trial.varying is not None:
        terminal.say(
            f"warning: the model is not reproducible: the same simulation differs when it runs {trial.varying.when}"
        )
        _say_differences(list(map(str, trial.varying.differences)))
        # If replicates are equal in fresh processes, a fresh process for each simulation makes all of them equal.
        fresh = _FRESH_ADVICE if trial.varying.cause == "kept" and not trial.equal_replicates else ""
        terminal.say(f"hint: {_ADVICE[trial.varying.cause]}{fresh}")
    if trial.equal_replicates:
        equal = (
            f"the first {trial.equal_replicates} replicates are equal in fresh processes although their seeds differ"
        )
        terminal.say(f"warning: {equal}: the outputs of this set do not depend on the seed")
        terminal.say(f"hint: {_SEED_ADVICE}")
    if trial.reads_written:
        shown, more = trial.reads_written[:_DIFFERENCES_SHOWN], len(trial.reads_written) - _DIFFERENCES_SHOWN
        others = f" and {units.counted(more, 'other file')}" if more > 0 else ""
        terminal.say(f"warning: the model reads files that it wrote before: {', '.join(shown)}{others}")
        terminal.say(f"hint: {_READS_ADVICE}")
    if trial.varying_losses:
        terminal.say("warning: a target is not reproducible: it scores the same tables differently")
        _say_differences(list(map(str, trial.varying_losses)))
        terminal.say(f"hint: {_TARGET_ADVICE}")
    if trial.other is not None:
        terminal.say(f"warning: the other simulation of the trial failed: {why(trial.other)}")


def _say_differences(lines: list[str]) -> None:
    for line in lines[:_DIFFERENCES_SHOWN]:
        terminal.say(f"  {line}")
    if len(lines) > _DIFFERENCES_SHOWN:
        terminal.say(f"  and {units.counted(len(lines) - _DIFFERENCES_SHOWN, 'other difference')}")


def check(
    study: StudyArgument,
    project: ProjectOption = None,
    *,
    process: ProcessOptions,
    run: Annotated[bool, Option("Run a simulation, or only import the model", flags="--run/--no-run")] = True,
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
    child = child_environment(process.env, process.python, install=settings.install)
    prepared = prepare(study, project, settings.storage)
    for warning in prepared.study.warnings:
        terminal.say(f"note: {warning}")
    trial = try_model(prepared, settings, child, _say_what_runs) if run else None
    if trial is None:
        check_model(prepared, settings, child)
    plan = _plan(prepared, settings.over(prepared.limits)) | {"env": process.env, "python": child.python}
    if as_json:
        terminal.data_json(plan | {"trial": None if trial is None else to_json(trial)})
    else:
        terminal.data_fields([*_plan_fields(plan), *([] if trial is None else fields_of(trial))])
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


def _plan_fields(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
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


def run(
    study: Annotated[Path | None, typer.Argument(metavar="[STUDY]", help="The study file, like study.json")] = None,
    job: Annotated[str | None, Option("Use the files, parameter sets and options of this job", "JOB")] = None,
    with_new_code: Annotated[bool, Option("With --job: use the present files of the project")] = False,
    param_id: Annotated[
        str | None, Option("Run the set with this param_id, or its beginning", "ID", flags="--set")
    ] = None,
    replicate: Annotated[int | None, Option("Run this replicate (default: all, then the targets)", "N")] = None,
    debug: Annotated[bool, Option("Start a debugger where an exception was raised")] = False,
    project: ProjectOption = None,
    *,
    process: ProcessOptions,
    place: Place = HERE,
    as_json: JsonOption = False,
) -> None:
    """Run one simulation in the foreground, as a job would run it.

    Parameters, seed, variables and working folder are those of a job. The output of the model appears at once. Without
    --replicate, all replicates of the set run, and then the targets. Limits of time and memory do not apply, and the
    command stores nothing.

    With --job, the parameter sets, the seeds and the options are those of the job, and so are the files, unless you add
    --with-new-code: then you can repair the model and run the failed simulation again. The columns of the outputs must
    still be those of the job.

    Example:

        mops study run study.json --set 761edf35ca16 --replicate 2 --debug

        mops study run --job waves --set 761edf35ca16 --with-new-code

    Exit codes: 0 all that ran is good, 1 a simulation or a target failed, 2 wrong input.
    """
    settings = Settings.from_environment()
    if (study is None) == (job is None):
        hint = "mops study run study.json, or mops study run --job JOB"
        raise UsageError("name a study file or a job, and not both", where="the command line", hint=hint)
    if study is not None:
        if with_new_code:
            what = "a study file always runs the present files of its project"
            raise UsageError(what, where="--with-new-code", hint="leave it out, or name a job: --job JOB")
        child = child_environment(process.env, process.python, install=settings.install)
        source = of_study(prepare(study, project, settings.storage), settings, child)
    else:
        assert job is not None
        if process.env or process.python or (project and not with_new_code):
            what = "a job has its project, variables and interpreter"
            hint = "leave them out; to run the present files of a project, add --with-new-code"
            raise UsageError(what, where="--project, --env, --python", hint=hint)
        source = of_job(place.open(job), settings, with_new_code=with_new_code, project=project)
        if not with_new_code:
            terminal.say(f"the files are those of job {job}; to run the present files, add --with-new-code")
    _run(source, source.group(param_id), replicate, debug=debug, as_json=as_json)


def _run(source: Source, group: Group, replicate: int | None, *, debug: bool, as_json: bool) -> None:
    params = units.shortened_in_middle(canonical_json(group.params), _PARAMS_SHOWN)
    terminal.say(f"set {short_id(group.param_id)}: {params}")
    what = f"replicate {replicate}" if replicate is not None else units.counted(group.n_replicates, "replicate")
    terminal.say(f"running {what} of this set")
    ran = run_in_foreground(source, group, replicate, debug=debug, prints_to_stderr=as_json)
    if as_json:
        told = {name: value for name, value in asdict(ran).items() if name != "group"}
        terminal.data_json({"param_id": group.param_id, "params": group.params, **told})
    else:
        _show(ran)
    if ran.failed:
        trace = f"\n{ran.traceback.rstrip()}" if ran.traceback and not debug else ""
        raise TrialFailed(f"{ran.failed}: {ran.message}{trace}", where=f"set {short_id(group.param_id)}")


def _show(ran: Foreground) -> None:
    terminal.data_fields(_fields(ran))
    for output in ran.replicates[0]["outputs"] if ran.replicates else ():
        terminal.data("")
        terminal.data(f"output {output['name']} of replicate {ran.replicates[0]['replicate']}, first rows")
        names = [column["name"] for column in output["columns"]]
        rows = [[_cell(row[name]) for name in names] for row in output["head"]]
        terminal.data_table(names, rows, right=names)


def _fields(ran: Foreground) -> Iterator[tuple[str, str]]:
    for one in ran.replicates:
        sizes = (f"{output['name']} {_size(output)}" for output in one["outputs"])
        yield (
            f"replicate {one['replicate']}",
            f"seed {one['seed']}, {units.duration(one['seconds'])}: {'; '.join(sizes)}",
        )
    for loss in ran.losses:
        yield loss["target"], f"{loss['name']} = {loss['loss']:g}"


def _size(output: dict[str, Any]) -> str:
    return f"{units.counted(output['rows'], 'row')}, {units.counted(len(output['columns']), 'column')}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
