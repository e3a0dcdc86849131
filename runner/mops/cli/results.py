"""``mops jobs results``, ``report``, ``failures`` and ``compare``: what a job has found."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

from mops.cli import job_text, terminal
from mops.cli.options import HERE, JobArgument, JsonOption, OneTargetOption, Place, WeightOption, read_weights
from mops.errors import UsageError
from mops.jobs.compare import compare as compare_jobs
from mops.jobs.data import JobData
from mops.jobs.job import Job
from mops.jobs.ranking import RANKED_BY
from mops.jobs.status import Status
from mops.jobs.summary import so_far
from mops.jobs.table import Format
from mops.options import Option
from mops.study.ids_and_seeds import short_id
from mops.units import counted, shortened_in_middle


def results(
    job: JobArgument,
    to: Annotated[Path | None, Option("Export one file for each output and table into this folder", "FOLDER")] = None,
    file_format: Annotated[
        Format | None, Option("Set the format of exported files (default: parquet)", flags="--format")
    ] = None,
    overwrite: Annotated[bool, Option("Replace exported files that exist")] = False,
    best: Annotated[int | None, Option("Show the N parameter sets with the smallest losses", "N", least=1)] = None,
    weight: WeightOption = None,
    target: OneTargetOption = None,
    place: Place = HERE,
    as_json: JsonOption = False,
) -> None:
    """List the committed results of a job, or export them.

    Parts are Parquet files, and you can read them while the job runs. A folder may also hold files that a killed
    runner left and that are not results. --json lists the parts that count.

    Example:

        mops jobs results waves --to exported --format csv

        mops jobs results waves --best 10

        mops jobs results waves --best 10 --weight peak=1 --weight deaths=0.1

    With several losses and no weights, --best ranks the sets by each loss.
    """
    of_export = {"--to": to, "--format": file_format, "--overwrite": overwrite}
    export = ", ".join(option for option, value in of_export.items() if value)
    of_ranking = {"--weight": weight, "--target": target is not None}
    ranking = ", ".join(option for option, value in of_ranking.items() if value)
    if best is not None and export:
        what = f"--best shows parameter sets and exports nothing, but {export} is given"
        raise UsageError(what, where="the command line", hint="export and rank in two commands")
    if to is None and export:
        raise UsageError(f"only an export has {export}", where="the command line", hint="name a folder: --to FOLDER")
    if best is None and ranking:
        raise UsageError(f"only a ranking has {ranking}", where="the command line", hint="show one: --best 10")
    found = place.open(job)
    if best is not None:
        _show_best(found.best(best, target=target, weights=read_weights(weight)).to_arrow(), as_json=as_json)
        return
    if to is not None:
        files = found.export(to, (file_format or Format.PARQUET).value, overwrite=overwrite)
        if as_json:
            terminal.data_json([asdict(file) for file in files])
        else:
            rows = [(file.name, f"{file.rows:,}", file.path) for file in files]
            terminal.data_table(("name", "rows", "file"), rows, right=("rows",))
        return
    tables = found.tables()
    if as_json:
        terminal.data_json([asdict(table) for table in tables])
        return
    shown = []
    for table in tables:
        n_parts = len(table.paths) + len(table.filtered)
        shown.append((table.name, f"{table.rows:,}", f"{n_parts:,}", terminal.size(table.bytes), table.folder))
    terminal.data_table(("name", "rows", "parts", "size", "folder"), shown, right=("rows", "parts", "size"))
    if found.record.sources:
        terminal.say("some rows are in parts of the job's parents: --json lists all parts")
    as_files = f"{job_text.command('results', found)} --to FOLDER"
    terminal.say(f"export: {as_files}; in Python: {job_text.in_python(found)}")


def _show_best(best: pa.Table, *, as_json: bool) -> None:
    if as_json:
        terminal.data_json(best.to_pylist())
        return
    if RANKED_BY not in best.column_names:
        _show_ranked(best)
        return
    labels = best[RANKED_BY].unique().to_pylist()
    for label in labels:
        terminal.data_paragraph(f"ranked by {label}")
        _show_ranked(best.filter(pc.equal(best[RANKED_BY], label)).drop_columns([RANKED_BY, "loss"]))
        terminal.data("")
    weights = " ".join(f"--weight {label}=1" for label in labels)
    terminal.say(f"each of {len(labels)} losses ranks the sets; to rank them by a weighted sum: {weights}")


def _show_ranked(table: pa.Table) -> None:
    rows = table.to_pylist()
    names = ["param_id", *(name for name in table.column_names if name not in ("group", "param_id"))]
    shown = [[short_id(row["param_id"]), *(_cell(row[name]) for name in names[1:])] for row in rows]
    terminal.data_table(names, shown, right=names[1:])


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def report(
    job: JobArgument,
    out: Annotated[Path | None, Option("Write to this file, not to report-JOB.html", "FILE", flags="--to")] = None,
    weight: WeightOption = None,
    target: OneTargetOption = None,
    place: Place = HERE,
    as_json: JsonOption = False,
) -> None:
    """Write a report of a job with figures, as one HTML file.

    The report shows what ran, what failed and what to do, and figures of progress, memory, failures, losses and
    outputs. It needs no network and no other file. A running job has a report too; the command replaces the file.

    Example:

        mops jobs report waves --to waves.html

    With several losses and no weights, the report ranks the sets by each loss.
    """
    weights = read_weights(weight)
    found = place.open(job).report(target=target, weights=weights)
    written = found.save(out or Path(f"report-{job}.html"))
    n_bytes = written.stat().st_size
    if as_json:
        terminal.data_json({"job": job, "file": str(written), "bytes": n_bytes})
    else:
        terminal.data(str(written))
        terminal.say(f"{terminal.size(n_bytes)}; open it in a browser")


def reproducer(job: Job) -> Callable[[dict[str, Any]], str]:
    """Return a function that returns the command for a row of :meth:`mops.jobs.job.Job.causes`.

    If this machine has the project, the command runs its present files, so that a person can repair the model and type
    the command again. If not, the command runs the files that the job keeps.
    """
    project = job.record.project
    code = ["--with-new-code"] if project and Path(project).is_dir() else []

    def command(row: dict[str, Any]) -> str:
        replicate = [] if row["replicate"] is None else ["--replicate", str(row["replicate"])]
        chosen = ["--job", job.name, "--set", short_id(row["param_id"]), *replicate, *code]
        return shlex.join(["mops", "study", "run", *chosen, *job_text.options(job)])

    return command


_CAUSES_SHOWN = 10
_RANGES_SHOWN = 5
_CAUSE_CHARACTERS = 240
_LINE_CHARACTERS = 400  # of a traceback


def failures(
    job: JobArgument,
    every: Annotated[bool, Option("Show every cause, not only the 10 most frequent", flags="--all")] = False,
    place: Place = HERE,
    as_json: JsonOption = False,
) -> None:
    """Show the causes of a job's failures, the most frequent first.

    For each cause, the command shows how many simulations or targets failed, in which range of which parameters, and
    the first traceback, and the command that runs the first failed simulation alone. Targets that have no losses only
    because a simulation failed are not a cause.

    Example:

        mops jobs failures waves
    """
    found = place.open(job)
    data = JobData.read(found.files, found.name)  # state and causes of one moment
    status, causes = data.status, data.cause_table.to_pylist()
    not_run = status.counts.scores_not_run
    command = reproducer(found)
    for row in causes:
        row["command"] = command(row)
    if as_json:
        terminal.data_json({"job": job, "state": status.state, "targets_not_run": not_run, "causes": causes})
        return
    counts = status.counts
    if causes:
        _show_causes(found, status, causes if every else causes[:_CAUSES_SHOWN], n_causes=len(causes))
        if not_run > 0:
            terminal.data_paragraph(f"{counted(not_run, 'target')} not run because a simulation failed")
    elif counts.simulations:
        good = f"{counts.simulations_good:,} of {status.n_simulations:,} simulations are good"
        terminal.data(f"no failures: {good}{so_far(status)}")
    else:
        terminal.data(f"no failures: nothing is committed yet ({status.state})")


def _show_causes(job: Job, status: Status, shown: list[dict[str, Any]], *, n_causes: int) -> None:
    n_failed = status.counts.simulations_failed
    n_of_kind = {"failed simulation": n_failed, "failed score": sum(status.counts.verdicts.values()) - n_failed}
    failed = " and ".join(counted(n, kind) for kind, n in n_of_kind.items() if n)
    terminal.data_paragraph(f"{counted(n_causes, 'cause')} of {failed}{so_far(status)}")
    for number, row in enumerate(shown, 1):
        terminal.data("")
        cause = shortened_in_middle(row["cause"], _CAUSE_CHARACTERS)
        terminal.data_paragraph(f"{number}. {row['verdict']}: {cause}", indent="   ", first="")
        for line in _lines(row):
            terminal.data_paragraph(line, indent="     ", first="   ")
        traceback = row["traceback"].rstrip().splitlines()
        _, *more_of_message = row["message"].splitlines()
        for line in (*traceback, *(line for line in more_of_message if line not in traceback)):
            terminal.data(f"   | {shortened_in_middle(line, _LINE_CHARACTERS)}".rstrip())
        terminal.data(f"   run it alone: {row['command']}")
    terminal.data("")
    if n_causes > len(shown):
        more = counted(n_causes - len(shown), "other cause")
        terminal.data_paragraph(f"{more}: {job_text.command('failures', job)} --all")


def _lines(row: dict[str, Any]) -> Iterator[str]:
    """Yield what is known of a cause, the most telling first."""
    is_model = row["stage"] == "model"
    what = counted(row["n"], "simulation") if is_model else f"{counted(row['n'], 'score')} by {row['target']}"
    at = f"at {row['place']}; " if row["place"] else ""
    yield f"{at}{what} in {counted(row['sets'], 'parameter set')}"
    yield from row["ranges"][:_RANGES_SHOWN]
    replicate = "" if row["replicate"] is None else f" replicate {row['replicate']} (seed {row['seed']})"
    params = ", ".join(f"{name}={value}" for name, value in json.loads(row["params"]).items())
    yield f"first: set {short_id(row['param_id'])}, which is group {row['group']},{replicate}".rstrip(",")
    yield f"parameters of this set: {shortened_in_middle(params, _CAUSE_CHARACTERS)}"


def compare(
    first: Annotated[str, typer.Argument(metavar="JOB", help="The name of a job")],
    second: Annotated[str, typer.Argument(metavar="OTHER", help="The name of the other job")],
    place: Place = HERE,
    as_json: JsonOption = False,
) -> None:
    """Count what differs between the results of two jobs.

    It compares parameter sets, seeds, rows and losses. Simulations with the same parameters and seed belong together.
    Exit code 0: the results are equal; 1: they differ.

    Example:

        mops jobs compare waves waves-mended
    """
    found = compare_jobs(place.open(first), place.open(second))
    if as_json:
        terminal.data_json([asdict(one) for one in found])
    else:
        rows = [(one.what, *map("{:,}".format, (one.same, one.different, one.only_a, one.only_b))) for one in found]
        numbers = ("equal", "different", f"only {first}", f"only {second}")
        terminal.data_table(("", *numbers), rows, right=numbers)
        for one in found:
            for example in one.examples:
                terminal.say(f"{one.what}: {example}")
    if not all(one.is_equal for one in found):
        raise typer.Exit(1)
