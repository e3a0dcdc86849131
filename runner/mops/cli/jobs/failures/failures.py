"""``mops jobs failures``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from mops.cli import job_text, terminal
from mops.cli.jobs.failures.reproduce import reproducer
from mops.cli.options import JobArgument, JsonOption, LocalOption, StorageOption
from mops.jobs.job import Job, open_job
from mops.jobs.status import Status
from mops.study.ids_and_seeds import short_id
from mops.units import counted, shortened_in_middle
from mops.verdicts import Counts

_CAUSES_SHOWN = 10
_RANGES_SHOWN = 5
_CAUSE_CHARACTERS = 240
_LINE_CHARACTERS = 400  # of a traceback
_STATES_OF_RUNNING = ("submitted", "running", "interrupted", "cancelled")


def failures(
    job: JobArgument,
    every: Annotated[bool, typer.Option("--all", help="Show every cause, not only the 10 most frequent")] = False,
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the causes of a job's failures, the most frequent first.

    For each cause, the command shows how many simulations or targets failed, in which range of which parameters, and
    the first traceback, and the command that runs the first failed simulation alone. Targets that have no losses only
    because a simulation failed are not a cause.

    Example:

        mops jobs failures waves
    """
    found = open_job(job, storage, local=local)
    status = found.status()
    causes = found.causes().to_arrow().to_pylist()
    not_run = status.counts.scores_not_run
    command = reproducer(found)
    for row in causes:
        row["command"] = command(row)
    if as_json:
        terminal.data_json({"job": job, "state": status.state, "targets_not_run": not_run, "causes": causes})
        return
    if not causes:
        terminal.data(_none(status))
    else:
        _show(found, status, causes if every else causes[:_CAUSES_SHOWN], n_causes=len(causes))
        if not_run > 0:
            terminal.data_paragraph(f"{counted(not_run, 'target')} not run because a simulation failed")


def _none(status: Status) -> str:
    counts = status.counts
    if not counts.simulations:
        return f"no failures: nothing is committed yet ({status.state})"
    good = f"{counts.simulations_good:,} of {status.n_simulations:,} simulations are good"
    return f"no failures: {good}{_so_far(status)}"


def _so_far(status: Status) -> str:
    return f" so far ({status.state})" if status.state in _STATES_OF_RUNNING else ""


def _show(job: Job, status: Status, shown: list[dict[str, Any]], *, n_causes: int) -> None:
    terminal.data_paragraph(f"{counted(n_causes, 'cause')} of {_failed(status.counts)}{_so_far(status)}")
    for number, row in enumerate(shown, 1):
        terminal.data("")
        cause = shortened_in_middle(row["cause"], _CAUSE_CHARACTERS)
        terminal.data_paragraph(f"{number}. {row['verdict']}: {cause}", indent="   ", first="")
        for line in _lines(row):
            terminal.data_paragraph(line, indent="     ", first="   ")
        for line in _texts(row):
            terminal.data(f"   | {shortened_in_middle(line, _LINE_CHARACTERS)}".rstrip())
        terminal.data(f"   run it alone: {row['command']}")
    terminal.data("")
    if n_causes > len(shown):
        more = counted(n_causes - len(shown), "other cause")
        terminal.data_paragraph(f"{more}: {job_text.command('failures', job)} --all")


def _texts(row: dict[str, Any]) -> list[str]:
    """Return the traceback, and the lines of the message that are not in it."""
    traceback = row["traceback"].rstrip().splitlines()
    _, *more = row["message"].splitlines()
    return [*traceback, *(line for line in more if line not in traceback)]


def _failed(counts: Counts) -> str:
    n_targets = sum(counts.verdicts.values()) - counts.simulations_failed
    kinds = ((counts.simulations_failed, "failed simulation"), (n_targets, "failed score"))
    return " and ".join(counted(n, kind) for n, kind in kinds if n)


def _lines(row: dict[str, Any]) -> Iterator[str]:
    """Yield what is known of a cause, the most telling first."""
    what = (
        counted(row["n"], "simulation")
        if row["stage"] == "model"
        else f"{counted(row['n'], 'score')} by {row['target']}"
    )
    at = f"at {row['place']}; " if row["place"] else ""
    yield f"{at}{what} in {counted(row['sets'], 'parameter set')}"
    yield from row["ranges"][:_RANGES_SHOWN]
    replicate = "" if row["replicate"] is None else f" replicate {row['replicate']} (seed {row['seed']})"
    params = ", ".join(f"{name}={value}" for name, value in json.loads(row["params"]).items())
    yield f"first: set {short_id(row['param_id'])}, which is group {row['group']},{replicate}".rstrip(",")
    yield f"parameters of this set: {shortened_in_middle(params, _CAUSE_CHARACTERS)}"
