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
from mops.calibration.calibrate import RoundProgress
from mops.calibration.calibrate import calibrate as calibrate_study
from mops.calibration.calibration import Calibration, Marginal
from mops.calibration.options import Plan
from mops.calibration.rounds import is_from_prior, labels_of
from mops.cli import job_text, terminal
from mops.cli.job_progress import say_limits
from mops.cli.options import STUDY, ModelArguments, ProjectOption
from mops.cli.start_options import RunnerArguments
from mops.errors import UsageError, path_refused
from mops.jobs.job import Job
from mops.jobs.table import create_folder
from mops.options import Option
from mops.settings import Settings
from mops.storage.calibration_records import Asked
from mops.study.sampling.draw import SETS_LIMIT
from mops.study.sampling.write import replace_file

FILES = ("trials.parquet", "posterior.parquet", "pareto.parquet")
NO_POSTERIOR_EXIT = 3
_CALIBRATION = b"mops.calibration"
"""The key in a file's schema under which it has the name of its calibration."""
_SHARES_SHOWN = 3
_BEST_SHOWN = 5
_PARETO_SHOWN = 20


def calibrate(
    space: Annotated[Path, typer.Argument(metavar="SPACE", help="The space file, like space.json")],
    study: Annotated[Path | None, Option("Use the model and targets of this study", "STUDY", STUDY)] = None,
    *,
    model: ModelArguments,
    name: Annotated[str | None, Option("Name the calibration, or continue it", "NAME")] = None,
    plan: Plan,
    to: Annotated[Path | None, Option("Write trials.parquet and posterior.parquet here", "FOLDER")] = None,
    draws: Annotated[int, Option("Draw this many sets for posterior.parquet", "N", least=1, most=SETS_LIMIT)] = 1000,
    overwrite: Annotated[bool, Option("Replace files that exist and are not of this calibration")] = False,
    project: ProjectOption = None,
    start: RunnerArguments,
) -> None:
    """Fit parameters to data in rounds of jobs.

    The total loss of a set counts as minus the logarithm of its likelihood, or as a distance with --method abc. Each
    set gets a posterior weight, and the command prints the 95 % interval of each parameter. The rounds end when --ess
    is reached; until then, the intervals are marked as rough (~). With abc, all --rounds run, unless --ess is reached
    and less than 5 % of the sets of a round are nearer than before. To continue after a stop or a kill, or to add
    rounds, repeat the command with the same --name. Round 1 is the job NAME-r1, and so on.

    The methods tpe, cmaes and gp are optimisers of Optuna. They run all --rounds, search for the smallest total loss,
    and print the best sets. With several --objective, they print the Pareto set.

    Example:

        mops study calibrate space.json --study study.json --name fit --to fitted

    Exit codes: 0 posterior found, or optimiser finished; 3 too few rounds for a posterior, 1 a round failed, 130
    stopped, 2 wrong input, 4 storage out of reach.
    """
    if to is not None:
        _refuse_existing(to, name, overwrite=overwrite)
    with as_command(), terminal.progress() as show:
        options: dict[str, Any] = {
            "name": name,
            "project": project,
            **vars(plan),
            **model.given,
            "env": start.job.env,
            "python": start.job.python,
            "pod": start.job.pod,
            "location": start.location,
            "on_progress": show,
        }
        jobs: list[Job] = []
        progress = RoundProgress(_starts(plan.rounds, jobs, start.location.settings), _say_round)
        try:
            found = calibrate_study(space, study, progress=progress, **options)
        except KeyboardInterrupt:
            if jobs:
                waiting = " waiting; the job on the service continues" if start.location.service else ""
                again = f"to continue, repeat the command with --name {jobs[-1].name.rpartition('-r')[0]}"
                terminal.say(f"stopped{waiting}; {again}")
            else:
                terminal.say("stopped before round 1")
            raise typer.Exit(terminal.EXIT_CODES["cancelled"]) from None
    _show(found, to, draws, as_json=start.as_json)
    _exit(found, jobs)


def _refuse_existing(folder: Path, calibration: str | None, *, overwrite: bool) -> None:
    """Raise if the folder has such files that no earlier call of the same calibration has written."""
    try:
        existing = [path for name in FILES if (path := folder / name).exists()]
        others = [str(path) for path in existing if calibration is None or _calibration_of(path) != calibration]
        create_folder(folder)
    except (OSError, ValueError) as bad:
        raise path_refused(folder, "the output folder", bad) from bad
    if others and not overwrite:
        raise UsageError("these files exist already", where=", ".join(others), hint="add --overwrite to replace them")


def _calibration_of(path: Path) -> str | None:
    """Return the calibration that wrote a file; None: no calibration did."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except pa.ArrowException:
        return None
    return metadata[_CALIBRATION].decode() if _CALIBRATION in metadata else None


def _starts(rounds: int, jobs: list[Job], given: Settings) -> Any:
    """Return the function that prints the start of a round, and adds its job to a list."""

    def say(asked: Asked, job: Job) -> None:
        jobs.append(job)
        status = job.status()
        simulations = units.counted(status.n_simulations, "simulation")
        how = f"continues, {status.groups:,} of {status.n_groups:,} sets are committed" if status.attempt else ""
        sets = units.counted(len(asked.sets), "parameter set")
        if asked.k > 1 and asked.state and is_from_prior(asked.state):  # an optimiser has no state
            sets += " from the whole space"
        terminal.say(f"round {asked.k} of {rounds}: job {job.name}, {how or f'{sets}, {simulations}'}")
        say_limits(job, given, "kept" if status.attempt else "study")
        if asked.k == 1:
            terminal.say(f"results go to {job_text.nearby(job.files.url)}")

    return say


def _say_round(now: Calibration) -> None:
    last = now.rounds[-1]
    n_failed = sum(outcome.failure is not None for outcome in last.outcomes)
    scored = f"{len(last.outcomes) - n_failed:,} sets scored, {n_failed:,} failed"
    terminal.say(f"round {last.k} ended: {scored}; {' '.join(_so_far(now))}")


def _so_far(now: Calibration) -> tuple[str, str]:
    """Return the name and the value of what a method tries to reach."""
    if now.method.gives_posterior:
        return "effective sample size", f"{now.ess:.3g}"
    if now.objectives:
        return "Pareto set of", units.counted(now.pareto().num_rows, "set")
    best = now.best(1)["loss"].to_pylist()
    return "best loss", f"{best[0]:.4g}" if best else "none"


def _show(found: Calibration, to: Path | None, draws: int, *, as_json: bool) -> None:
    """Print and write the result."""
    written = _files(found, draws)
    if to is not None:
        for name in FILES:
            if name in written:
                _write(written[name], to / name, found.name)
            elif (to / name).exists():
                (to / name).unlink()
                terminal.say(f"removed {to / name}: it was of an earlier call, and this one has no such result")
    if as_json:
        terminal.data_json(_as_json(found))
    else:
        _show_table(found)
    terminal.say_fields(_fields(found, to, list(written)))


def _exit(found: Calibration, jobs: list[Job]) -> None:
    """Say what is missing, if anything is, and exit with the code for it; ``jobs`` are those of this call's rounds."""
    if found.stopped is not None:
        status = jobs[-1].status()
        terminal.say(f"job {found.stopped}: {status.groups:,} of {status.n_groups:,} parameter sets are committed")
        terminal.say(f"stopped in job {found.stopped}; to continue, repeat the command with --name {found.name}")
        raise typer.Exit(terminal.EXIT_CODES["cancelled"])
    if not found.method.gives_posterior:
        terminal.say(f"no posterior: {found.method} is an optimiser; for intervals use --method importance")
    elif not found.has_posterior:
        few = f"the effective sample size is {found.ess:.3g}, and {found.least_ess:g} are wanted"
        why = found.why_rough or (few if found.has_weights else "no set has a loss")
        rough = "; the intervals (~) are rough, and probably too narrow" if found.is_rough else ""
        terminal.say(f"no posterior: {why}{rough}")
        again = f"--name {found.name} and a larger --rounds"
        terminal.say(f"hint: repeat the command with {again}; if losses are noisy, use more replicates")
        raise typer.Exit(NO_POSTERIOR_EXIT)


def _files(found: Calibration, draws: int) -> dict[str, pa.Table]:
    """Return the tables that a calibration has, by the names of their files."""
    tables = {FILES[0]: found.trials()}
    if found.has_posterior:
        tables[FILES[1]] = found.posterior(draws)
    if found.objectives:
        tables[FILES[2]] = found.pareto()
    return tables


def _show_table(found: Calibration) -> None:
    """Print the interval of each parameter, or the best sets."""
    if found.has_weights:
        names = ("parameter", "mean", "2.5 %", "median", "97.5 %")
        mark = "~" if found.is_rough else ""
        terminal.data_table(names, (_row(marginal, mark) for marginal in found.marginals()), right=names[1:])
    elif not found.method.gives_posterior and found.n_scored:
        columns = (*(found.objectives or ("loss",)), *found.varying)
        rows = _best(found)
        terminal.data_table(columns, ([_cell(row[name]) for name in columns] for row in rows), right=columns)
        if found.objectives and len(rows) < (n := found.pareto().num_rows):
            terminal.say(f"the Pareto set has {n:,} sets; these are the first {len(rows):,}")


def _best(found: Calibration) -> list[dict[str, Any]]:
    """Return the rows of the best sets, or of the Pareto set."""
    table = found.pareto()[:_PARETO_SHOWN] if found.objectives else found.best(_BEST_SHOWN)
    rows: list[dict[str, Any]] = table.to_pylist()
    return [row | {name: row.get(f"param.{name}", row[name]) for name in found.varying} for row in rows]


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _fields(found: Calibration, to: Path | None, written: list[str]) -> Iterator[tuple[str, str]]:
    yield "calibration", found.name
    yield "rounds", f"{len(found.rounds):,}"
    yield "sets", f"{found.n_scored:,} scored, {found.n_failed:,} failed"
    for job in [each.job for each in found.rounds if any(one.failure for one in each.outcomes)][-1:]:
        yield "causes", f"mops jobs failures {job}"
    if found.method.gives_posterior:
        yield "effective size", f"{found.ess:.3g} sets ({found.least_ess:g} wanted)"
    if not found.objectives and len(labels := labels_of(found.rounds)) > 1:
        yield "total loss", f"{found.loss.formula(labels)} (other weights: --weight)"
    if to is not None:
        yield "written to", f"{to}: {', '.join(written)}"


def _row(marginal: Marginal, mark: str) -> list[str]:
    """Return the row of a parameter; ``mark`` is in front of each number."""
    if marginal.mean is None:
        likely = list(marginal.shares.items())[:_SHARES_SHOWN]
        shares = ", ".join(f"{value} {mark}{100 * share:.0f} %" for value, share in likely)
        return [marginal.parameter, shares, "", "", ""]
    numbers = (marginal.mean, marginal.low, marginal.median, marginal.high)
    return [marginal.parameter, *(f"{mark}{number:.4g}" for number in numbers)]


def _as_json(found: Calibration) -> dict[str, Any]:
    is_posterior = found.method.gives_posterior
    return {
        "calibration": found.name,
        "storage": found.storage,
        "method": found.method,
        "rounds": len(found.rounds),
        "jobs": [each.job for each in found.rounds],
        "scored": found.n_scored,
        "failed": found.n_failed,
        "ess": found.ess if is_posterior else None,
        "least_ess": found.least_ess if is_posterior else None,
        "stopped": found.stopped,
        "posterior": [asdict(marginal) for marginal in found.marginals()] if found.has_weights else None,
        "rough": found.is_rough,
        "best": found.best(_BEST_SHOWN).to_pylist(),
        "pareto": found.pareto().to_pylist() if found.objectives else None,
    }


def _write(table: pa.Table, path: Path, calibration: str) -> None:
    table = table.replace_schema_metadata({_CALIBRATION: calibration.encode()})
    replace_file(path, lambda partial: pq.write_table(table, partial), hint="name another folder with --to")
