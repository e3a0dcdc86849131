"""A study as ``mops.submit`` takes it: the path of a file, a dict, or a model with sets, in Python."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from mops.errors import UsageError, absolute
from mops.project.function_files import FunctionFiles
from mops.project.functions import GivenCode
from mops.project.project import find_root
from mops.study.checks import SEED
from mops.study.json_file import read_json, read_text
from mops.study.parameter_file import is_plain

_GIVEN = "the study given to mops"
_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True)
class StudySource:
    """The text of a study, before it is checked."""

    text: str  # JSON, as the job keeps it
    data: object  # the decoded text
    where: str  # the place, for errors: a path, or that a program gave the study
    folder: Path  # files that the study names are relative to it
    root: Path  # of the project
    label: str | None  # what a new job's name begins with; None: the project's name
    file: str = ""  # the absolute path of the study file; empty: a program gave the study
    # for each entry point that a program gave as an object: the file that its module came from
    imported: Mapping[str, str] = field(default_factory=dict)
    # files of the bundle, with the functions that no file of the project has
    functions: FunctionFiles = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the study, for people."""
        return self.label or self.folder.absolute().name


def read_study(path: Path, root: Path | None) -> StudySource:
    """Read a study file. Without a root, the project is found from the place of the file."""
    text = read_text(path, "study")
    data = read_json(text, where=str(path))
    label = path.stem if path.stem != "study" else None
    return StudySource(text, data, str(path), path.parent, root or find_root(path), label, str(path.absolute()))


def given_study(study: Mapping[str, Any], root: Path | None) -> StudySource:
    """Return a study that a program gives as a mapping with the keys of study.json, as ``mops.submit`` describes."""
    folder = absolute()
    root = root or find_root(folder / "study.json")
    data = dict(study)
    model = data.get("model")
    code = GivenCode(root, folder)
    if "model" in data:
        data["model"] = code.model(model)
    if (targets := data.get("targets")) is not None:
        data["targets"] = code.targets(targets)
    table = None
    if "parameter_sets" in data:
        sets = _sets(data["parameter_sets"])
        if isinstance(sets, pa.Table):
            table = sets
            del data["parameter_sets"]
        else:
            data["parameter_sets"] = sets
    try:
        text = json.dumps(data, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError) as bad:
        raise UsageError(f"a value of the study is not JSON: {bad}", where=_GIVEN, hint="use numbers and text") from bad
    parsed = json.loads(text)
    if table is not None:
        parsed["parameter_sets"] = table
        filled = (batch for batch in table.to_batches(_ROWS_AT_ONCE) if len(batch))
        batches = (json.dumps(_entries(batch), ensure_ascii=False)[1:-1] for batch in filled)
        text = f'{text[:-1]}{", " if data else ""}"parameter_sets": [{", ".join(batches)}]}}'
    label = getattr(model, "__name__", None)
    return StudySource(text, parsed, _GIVEN, folder, root, label, imported=code.imported, functions=code.files())


def _sets(sets: object) -> object:
    """Return parameter sets as a plain table, as a list of mappings or as the name of a file."""
    if hasattr(sets, "__arrow_c_stream__"):
        try:
            table = pa.table(sets)
        except (pa.ArrowException, TypeError, ValueError) as bad:
            what, hint = (
                f"no table of parameter sets: Arrow cannot read it ({bad})",
                "give each column values of one type",
            )
            raise UsageError(what, where=_GIVEN, hint=hint) from bad
        if twice := sorted({name for name in table.column_names if table.column_names.count(name) > 1}):
            raise UsageError(f"the table has two columns {twice[0]!r}", where=_GIVEN, hint="keep one of them")
        return table if is_plain(table) else _entries(table)
    if isinstance(sets, str | Path):
        return str(sets)
    if isinstance(sets, Sequence):
        return list(sets)
    raise UsageError(
        f"parameter sets cannot be of type {type(sets).__name__}",
        where=_GIVEN,
        hint="pass a list of dicts, a table (pandas, polars, pyarrow), or the path of a CSV or Parquet file",
    )


def _entries(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as a list of parameter sets: a null is an absent parameter, and the column ``seed`` has the seeds."""
    columns = {name: column.to_pylist() for name, column in zip(rows.schema.names, rows.columns, strict=True)}
    seeds = columns.pop(SEED, None)
    sets = [
        {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        for row in (zip(*columns.values(), strict=True) if columns else [()] * len(rows))
    ]
    return sets if seeds is None else [{"params": p, "seed": seed} for p, seed in zip(sets, seeds, strict=True)]


def _plain(value: object) -> object:
    """Return a number of numpy as Python's, and a path as text."""
    if isinstance(value, Path):
        return str(value)
    if callable(item := getattr(value, "item", None)):
        try:
            return item()
        except (ValueError, RuntimeError):  # an array of several numbers, which the check of the study names
            if callable(to_list := getattr(value, "tolist", None)):
                return to_list()
            raise
    raise TypeError(f"{value!r} of type {type(value).__name__}")
