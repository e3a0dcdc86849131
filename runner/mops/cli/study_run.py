"""``mops study run``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mops.cli import terminal
from mops.cli.options import JsonOption, LocalOption, StorageOption
from mops.cli.start_options import ProjectOption, with_options
from mops.errors import TrialFailed, UsageError
from mops.jobs.foreground import Foreground, Source, of_job, of_study, run_in_foreground
from mops.jobs.job import open_job
from mops.jobs.prepare import prepare
from mops.settings import Settings
from mops.storage.job_options import ProcessOptions
from mops.study.groups import Group
from mops.study.ids_and_seeds import canonical_json, short_id
from mops.units import counted, duration, shortened_in_middle
from mops.worker.environment import child_environment

_PARAMS_SHOWN = 200  # characters


@with_options
def run(
    study: Annotated[Path | None, typer.Argument(metavar="[STUDY]", help="The study file, like study.json")] = None,
    job: Annotated[
        str | None, typer.Option(metavar="JOB", help="Use the files, parameter sets and options of this job")
    ] = None,
    with_new_code: Annotated[
        bool, typer.Option("--with-new-code", help="With --job: use the present files of the project")
    ] = False,
    param_id: Annotated[
        str | None,
        typer.Option("--set", metavar="ID", help="Run the set with this param_id, or its beginning"),
    ] = None,
    replicate: Annotated[
        int | None, typer.Option(metavar="N", help="Run this replicate (default: all, then the targets)")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Start a debugger where an exception was raised")] = False,
    project: ProjectOption = None,
    *,
    process: ProcessOptions,
    storage: StorageOption = None,
    local: LocalOption = False,
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
    _refuse(
        (study is None) == (job is None),
        "name a study file or a job, and not both",
        where="the command line",
        hint="mops study run study.json, or mops study run --job JOB",
    )
    if study is not None:
        _refuse(
            with_new_code,
            "a study file always runs the present files of its project",
            where="--with-new-code",
            hint="leave it out, or name a job: --job JOB",
        )
        child = child_environment(process.env, process.python, install=settings.install)
        source = of_study(prepare(study, project, settings.storage), settings, child)
    else:
        assert job is not None
        _refuse(
            bool(process.env or process.python or (project and not with_new_code)),
            "a job has its project, variables and interpreter",
            where="--project, --env, --python",
            hint="leave them out; to run the present files of a project, add --with-new-code",
        )
        source = of_job(open_job(job, storage, local=local), settings, with_new_code=with_new_code, project=project)
        if not with_new_code:
            terminal.say(f"the files are those of job {job}; to run the present files, add --with-new-code")
    _run(source, source.group(param_id), replicate, debug=debug, as_json=as_json)


def _refuse(is_wrong: bool, message: str, *, where: str, hint: str) -> None:
    if is_wrong:
        raise UsageError(message, where=where, hint=hint)


def _run(source: Source, group: Group, replicate: int | None, *, debug: bool, as_json: bool) -> None:
    terminal.say(f"set {short_id(group.param_id)}: {_params(group)}")
    what = f"replicate {replicate}" if replicate is not None else counted(group.n_replicates, "replicate")
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


def _params(group: Group) -> str:
    return shortened_in_middle(canonical_json(group.params), _PARAMS_SHOWN)


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
        yield f"replicate {one['replicate']}", f"seed {one['seed']}, {duration(one['seconds'])}: {'; '.join(sizes)}"
    for loss in ran.losses:
        yield loss["target"], f"{loss['name']} = {loss['loss']:g}"


def _size(output: dict[str, Any]) -> str:
    return f"{counted(output['rows'], 'row')}, {counted(len(output['columns']), 'column')}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
