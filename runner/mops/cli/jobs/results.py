"""``mops jobs results``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer

from mops.cli import job_text, terminal
from mops.cli.options import (
    JobArgument,
    JsonOption,
    LocalOption,
    OneTargetOption,
    StorageOption,
    WeightOption,
    read_weights,
)
from mops.errors import UsageError
from mops.jobs.data import TableSummary
from mops.jobs.export import Format
from mops.jobs.job import open_job
from mops.jobs.ranking import RANKED_BY
from mops.study.ids_and_seeds import short_id


def results(
    job: JobArgument,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Export one file for each output and table into this folder"),
    ] = None,
    file_format: Annotated[
        Format | None, typer.Option("--format", help="Set the format of exported files (default: parquet)")
    ] = None,
    params: Annotated[
        bool, typer.Option("--params/--no-params", help="Add a column for each parameter to exported tables")
    ] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace exported files that exist")] = False,
    best: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Show the N parameter sets with the smallest losses")
    ] = None,
    weight: WeightOption = None,
    target: OneTargetOption = None,
    storage: StorageOption = None,
    local: LocalOption = False,
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
    of_export = {"--format": file_format is not None, "--no-params": not params, "--overwrite": overwrite}
    of_best = {"--weight": bool(weight), "--target": target is not None}
    _refuse_unused(to, [option for option, is_given in of_export.items() if is_given], best)
    if best is None and any(of_best.values()):
        options = ", ".join(option for option, is_given in of_best.items() if is_given)
        raise UsageError(f"only a ranking has {options}", where="the command line", hint="show one: --best 10")
    found = open_job(job, storage, local=local)
    if best is not None:
        _show_best(found.best(best, target=target, weights=read_weights(weight)).to_arrow(), as_json=as_json)
        return
    if to is not None:
        files = found.export(to, (file_format or Format.PARQUET).value, params=params, overwrite=overwrite)
        if as_json:
            terminal.data_json([asdict(file) for file in files])
        else:
            rows = [(file.name, f"{file.rows:,}", file.path) for file in files]
            terminal.data_table(("name", "rows", "file"), rows, right=("rows",))
        return
    tables = found.tables()
    _show_tables(tables, as_json=as_json)
    if not as_json:
        if found.record.sources:
            terminal.say("some rows are in parts of the job's parents: --json lists all parts")
        as_files = f"{job_text.command('results', found)} --to FOLDER"
        terminal.say(f"export: {as_files}; in Python: {job_text.in_python(found)}")


def _refuse_unused(to: Path | None, of_export: list[str], best: int | None) -> None:
    """Raise if an option would have no effect."""
    if best is not None and (to is not None or of_export):
        options = ", ".join([*(["--to"] if to is not None else []), *of_export])
        raise UsageError(
            f"--best shows parameter sets and exports nothing, but {options} is given",
            where="the command line",
            hint="export and rank in two commands",
        )
    if to is None and of_export:
        raise UsageError(
            f"only an export has {', '.join(of_export)}", where="the command line", hint="name a folder: --to FOLDER"
        )


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
    names = [name for name in table.column_names if name != "group"]
    shown = [[short_id(row["param_id"]), *(_cell(row[name]) for name in names[1:])] for row in rows]
    terminal.data_table(names, shown, right=names[1:])


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _show_tables(tables: list[TableSummary], *, as_json: bool) -> None:
    if as_json:
        terminal.data_json([asdict(table) for table in tables])
        return
    rows = [
        (
            table.name,
            f"{table.rows:,}",
            f"{len(table.paths) + len(table.filtered):,}",
            terminal.size(table.bytes),
            table.folder,
        )
        for table in tables
    ]
    terminal.data_table(("name", "rows", "parts", "size", "folder"), rows, right=("rows", "parts", "size"))
