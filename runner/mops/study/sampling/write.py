"""Samples parameter sets from a space file, and writes a study or a file of sets."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mops.errors import Problem, StudyError, UsageError, not_written, path_refused
from mops.study.checks import json_path, shown
from mops.study.json_file import read_json, read_text
from mops.study.parameter_cells import Cell, invisible_in, read_cell
from mops.study.parameter_file import fault_of_one_column, faults_of_names
from mops.study.sampling.draw import Method, draw
from mops.study.sampling.space import Space, narrowed, parse_space, space_json
from mops.study.study_file import parse_study
from mops.system.folders import written_whole

_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class Around:
    """Parameter sets of a job, in whose surroundings mops samples."""

    job: str
    sets: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Sampled:
    """A file of sampled sets."""

    path: str
    sets: int
    parameters: tuple[str, ...]
    method: Method
    seed: int
    space: dict[str, Any]  # from which mops has drawn


def sample(
    space: str | Path,
    out: str | Path,  # ``.json``: a study. ``.parquet`` or ``.csv``: only the sets, for a study's ``parameter_sets``
    *,
    method: Method,
    n: int | None = None,  # None: a grid
    seed: int = 0,
    study: dict[str, Any] | None = None,  # the other fields of the study, only for ``.json``
    overwrite: bool = False,
    around: Around | None = None,  # None: the whole space
) -> Sampled:
    """Draw parameter sets from a space file and write them."""
    out = Path(out)
    _check_ending(out, is_study=study is not None)
    try:
        out.stat()
        is_there = True
    except (FileNotFoundError, NotADirectoryError):
        is_there = False
    except (OSError, ValueError) as bad:
        raise path_refused(out, "the output file", bad) from bad
    if is_there and not overwrite:
        raise UsageError("this file already exists", where=str(out), hint="add --overwrite to replace it")
    drawn = draw_sets(read_text(Path(space), "space"), str(space), method=method, n=n, seed=seed, around=around)
    table = drawn.table
    if study is None:
        _check_names(table, out, str(space))

    def write(path: Path) -> None:
        if study is not None:
            _write_study(study, table, drawn.about, path, out)
        elif out.suffix.lower() == ".csv":
            _write_csv(table, path)
        else:
            pq.write_table(table.replace_schema_metadata({"mops.sampling": json.dumps(drawn.about)}), path)

    replace_file(out, write, hint="name another file with --to")
    return Sampled(
        path=str(out),
        sets=table.num_rows,
        parameters=tuple(table.column_names),
        method=method,
        seed=seed,
        space=space_json(drawn.space),
    )


def _check_names(table: pa.Table, out: Path, space: str) -> None:
    """Raise StudyError if mops would not read a file with these columns."""
    problems = [
        Problem(json_path("$", table.column_names[i - 1]), fault) for i, fault in faults_of_names(table.column_names)
    ]
    if out.suffix.lower() == ".csv" and table.num_columns == 1 and not problems:
        name = table.column_names[0]
        cells = (_cell(value) for value in table.column(0).unique().to_pylist())
        if fault := fault_of_one_column(name, list(cells)):
            problems.append(Problem(json_path("$", name), f"in a CSV file with this column alone, {fault}"))
    if problems:
        hint = "rename the parameter, or write a study: --to study.json"
        raise StudyError(f"a {out.suffix} file cannot have these parameters", shown(problems), where=space, hint=hint)


@dataclass(frozen=True)
class Drawn:
    """Sampled sets."""

    table: pa.Table
    about: dict[str, Any]  # how they were drawn
    space: Space


def draw_sets(
    text: str, where: str, *, method: Method, n: int | None, seed: int, around: Around | None = None
) -> Drawn:
    """Draw parameter sets from the text of a space; the other parameters and the errors are those of :func:`sample`."""
    parsed = parse_space(read_json(text, where=where, what="space"), where=where)
    if around is not None:
        parsed = narrowed(parsed, around.sets, where=f"job {around.job}")
    if method is Method.GRID and n is not None:
        raise UsageError("a grid's size follows from the space", where="-n", hint="leave -n out; use 'points'")
    table = draw(parsed, method, n=n, seed=seed, where=where)
    about = {"method": str(method), "seed": seed, "n": table.num_rows, "space": json.loads(text)}
    if around is not None:
        about |= {"around": {"job": around.job, "sets": len(around.sets), "space": space_json(parsed)}}
    return Drawn(table, about, parsed)


def _check_ending(out: Path, *, is_study: bool) -> None:
    ending = out.suffix.lower()
    if ending not in (".json", ".parquet", ".csv"):
        what, hint = f"{out.name!r} has no known ending", "end it with .json, .parquet or .csv"
    elif ending == ".json" and not is_study:
        what, hint = "the study has no model", "add --model or --study"
    elif ending != ".json" and is_study:
        what, hint = f"a {ending} file holds only the sets", "write a .json file, or omit the study's fields"
    else:
        return
    raise UsageError(what, where=str(out), hint=hint)


def replace_file(out: Path, write: Callable[[Path], None], *, hint: str) -> None:
    """Write a file that readers see whole or not at all; ``write`` gets a path. ``hint``: if it cannot be written."""
    try:
        with written_whole(out) as partial:
            write(partial)
    except OSError as bad:
        raise not_written(out, "the file", bad, hint=hint) from bad


def _write_csv(table: pa.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        # The writer of Python 3.11 does not quote a carriage return.
        has_returns = any("\r" in name for name in table.column_names)
        writer = csv.writer(file, lineterminator="\n")
        head = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL) if has_returns else writer
        head.writerow(table.column_names)
        for batch in table.to_batches(_ROWS_AT_ONCE):
            writer.writerows(zip(*(map(_cell, column.to_pylist()) for column in batch.columns), strict=True))


def _cell(value: bool | int | float | str) -> str:
    """Return the cell that reads as exactly this value."""
    text = value if isinstance(value, str) else json.dumps(value)
    as_json = json.dumps(value, ensure_ascii=False)
    read = read_cell(text)
    is_plain = "\r" not in text and (read.look is None or (read.look == "text" and not invisible_in(text)))
    return text if is_plain and read == Cell(as_json, read.kind, look=read.look) else as_json


def _write_study(study: dict[str, Any], table: pa.Table, about: dict[str, Any], path: Path, out: Path) -> None:
    metadata = study.get("metadata")
    fields = study | {
        "parameter_sets": table.to_pylist(),
        "sampling_method": about["method"],
        "metadata": (metadata if isinstance(metadata, dict) else {}) | {"sampling": about},
    }
    parse_study(fields, where=str(out))
    with path.open("w", encoding="utf-8") as file:  # with a line for each field and each set
        file.write("{")
        for i, (key, value) in enumerate(fields.items()):
            file.write(f"{',' if i else ''}\n  {json.dumps(key)}: ")
            if key == "parameter_sets":
                lines = ",\n    ".join(json.dumps(each, ensure_ascii=False) for each in value)
                file.write(f"[\n    {lines}\n  ]")
            else:
                file.write(json.dumps(value, ensure_ascii=False))
        file.write("\n}\n")
