"""``mops study calibrate``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from mops import units
from mops.attempt.attempt import as_command
from mops.calibration.calibrate import Progress
from mops.calibration.calibrate import calibrate as calibrate_study
from mops.calibration.calibration import Calibration, Marginal
from mops.calibration.options import CalibrateOptions, Method
from mops.cli import job_text, terminal
from mops.cli.options import (
    ADVANCED,
    STUDY,
    EnvOption,
    JsonOption,
    ModelOption,
    PriorityOption,
    PythonOption,
    RunLocallyOption,
    StorageOption,
    TargetOption,
    WeightOption,
    read_weights,
)
from mops.errors import UsageError, path_refused
from mops.jobs.export import list_exported
from mops.jobs.job import Job
from mops.settings import Settings
from mops.storage.calibration_records import Asked
from mops.study.sampling.write import replace_file
from mops.worker.environment.variables import read_variables

FILES = ("trials.parquet", "posterior.parquet")
NO_POSTERIOR_EXIT = 3
_SHARES_SHOWN = 3


def calibrate(
    space: Annotated[Path, typer.Argument(metavar="SPACE", help="The space file, like space.json")],
    study: Annotated[
        Path | None,
        typer.Option(metavar="STUDY", help="Use the model and targets of this study", rich_help_panel=STUDY),
    ] = None,
    model: ModelOption = None,
    target: TargetOption = None,
    replicates: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Set the number of replicates of each set", rich_help_panel=STUDY),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name the calibration, or continue it")] = None,
    method: Annotated[Method, typer.Option(help="Choose the sets with this method")] = Method.IMPORTANCE,
    n: Annotated[int, typer.Option("-n", metavar="N", min=1, help="Run this many parameter sets in each round")] = 256,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Run at most this many rounds in all")] = 8,
    ess: Annotated[
        float | None, typer.Option(metavar="N", help="Require this effective sample size (200; with abc 50)")
    ] = None,
    temperature: Annotated[
        float, typer.Option(metavar="T", help="Divide the total loss by T: likelihood = exp(-loss/T)")
    ] = 1,
    weight: WeightOption = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Set the seed; the same seed gives the same sets")] = 0,
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write trials.parquet and posterior.parquet here")
    ] = None,
    draws: Annotated[int, typer.Option(metavar="N", min=1, help="Draw this many sets for posterior.parquet")] = 1000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist")] = False,
    project: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Use the model in this folder")] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Replace a runner that runs the round's job", rich_help_panel=ADVANCED)
    ] = False,
    storage: StorageOption = None,
    env: EnvOption = None,
    python: PythonOption = None,
    local: RunLocallyOption = False,
    priority: PriorityOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit parameters to data in rounds of jobs.

    The total loss of a set counts as minus the logarithm of its likelihood, or as a distance with --method abc. Each
    set gets a posterior weight, and the command prints the 95 % interval of each parameter. To continue after a stop or
    a kill, or to add rounds, repeat the command with the same --name. Round 1 is the job NAME-r1, and so on.

    Example:

        mops study calibrate space.json --study study.json --name fit --to fitted

    Exit codes: 0 posterior found, 3 too few rounds for a posterior, 1 a round failed, 130 stopped, 2 wrong input, 4
    storage out of reach.
    """
    if to is not None:
        _refuse_existing(to, overwrite=overwrite)
    with as_command(), terminal.progress() as show:
        options = CalibrateOptions(
            method=method,
            n=n,
            rounds=rounds,
            seed=seed,
            weights=read_weights(weight),
            temperature=temperature,
            take_over=take_over,
            env=read_variables(env or []),
            python=python,
            settings=Settings.from_environment(priority=priority),
            local=local,
            on_progress=show,
        )
        for key, value in {"model": model, "targets": target, "replicates": replicates, "ess": ess}.items():
            if value is not None:
                options[key] = value  # type: ignore[literal-required]
        progress = Progress(_starts(rounds), _say_round)
        found = calibrate_study(space, study, name=name, project=project, storage=storage, progress=progress, **options)
    _show(found, to, draws, as_json=as_json)


def _refuse_existing(folder: Path, *, overwrite: bool) -> None:
    try:
        existing = [str(folder / name) for name in FILES if (folder / name).exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as bad:
        raise path_refused(folder, "the output folder", bad) from bad
    if existing and not overwrite:
        raise UsageError("these files exist already", where=", ".join(existing), hint="add --overwrite to replace them")


def _starts(rounds: int) -> Any:
    """Return the function that prints the start of a round."""

    def say(asked: Asked, job: Job) -> None:
        status = job.status()
        simulations = units.counted(status.n_simulations, "simulation")
        how = f"continues, {status.groups:,} of {status.n_groups:,} sets are committed" if status.attempt else ""
        sets = units.counted(len(asked.sets), "parameter set")
        terminal.say(f"round {asked.k} of {rounds}: job {job.name}, {how or f'{sets}, {simulations}'}")
        if asked.k == 1:
            terminal.say(f"results go to {job_text.nearby(job.files.url)}")

    return say


def _say_round(now: Calibration) -> None:
    last = now.rounds[-1].told
    n_failed = sum(outcome.failure is not None for outcome in last.outcomes)
    scored = f"{len(last.outcomes) - n_failed:,} sets scored, {n_failed:,} failed"
    terminal.say(f"round {last.k} ended: {scored}; effective sample size {now.ess:.3g}")


def _show(found: Calibration, to: Path | None, draws: int, *, as_json: bool) -> None:
    """Print and write the result, and exit."""
    has_posterior = found.has_posterior
    if to is not None:
        list_exported(to, list(FILES))
        _write(found.trials(), to / FILES[0])
        (to / FILES[1]).unlink(missing_ok=True)  # of an earlier call, with other weights
        if has_posterior:
            _write(found.posterior(draws), to / FILES[1])
    marginals = found.marginals() if has_posterior else []
    if as_json:
        terminal.data_json(_as_json(found, marginals))
    elif marginals:
        names = ("parameter", "mean", "2.5 %", "median", "97.5 %")
        terminal.data_table(names, map(_row, marginals), right=names[1:])
    terminal.say_fields(_fields(found, to))
    if found.stopped is not None:
        terminal.say(f"stopped in job {found.stopped}; to continue, repeat the command with --name {found.name}")
        raise typer.Exit(terminal.EXIT_CODES["cancelled"])
    if not has_posterior:
        terminal.say("no posterior: a few sets carry all weight, so an interval would be too narrow")
        again = "a larger --rounds" + (" and --overwrite" if to is not None else "")
        terminal.say(f"hint: repeat the command with {again}; if losses are noisy, use more replicates")
        raise typer.Exit(NO_POSTERIOR_EXIT)


def _fields(found: Calibration, to: Path | None) -> Iterator[tuple[str, str]]:
    yield "calibration", found.name
    yield "rounds", f"{len(found.rounds):,}"
    yield "sets", f"{found.n_scored:,} scored, {found.n_failed:,} failed"
    yield "effective size", f"{found.ess:.3g} sets ({found.least_ess:g} wanted)"
    if to is not None:
        yield "written to", str(to) if found.has_posterior else f"{to}, only {FILES[0]}"


def _row(marginal: Marginal) -> list[str]:
    if marginal.mean is None:
        likely = list(marginal.shares.items())[:_SHARES_SHOWN]
        return [marginal.parameter, *[", ".join(f"{value} {100 * share:.0f} %" for value, share in likely), "", "", ""]]
    numbers = (marginal.mean, marginal.low, marginal.median, marginal.high)
    return [marginal.parameter, *(f"{number:.4g}" for number in numbers)]


def _as_json(found: Calibration, marginals: list[Marginal]) -> dict[str, Any]:
    return {
        "calibration": found.name,
        "storage": found.storage,
        "rounds": len(found.rounds),
        "jobs": [each.asked.job for each in found.rounds],
        "scored": found.n_scored,
        "failed": found.n_failed,
        "ess": found.ess,
        "least_ess": found.least_ess,
        "stopped": found.stopped,
        "posterior": [asdict(marginal) for marginal in marginals] or None,
    }


def _write(table: pa.Table, path: Path) -> None:
    replace_file(path, lambda partial: pq.write_table(table, partial), hint="name another folder with --to")
