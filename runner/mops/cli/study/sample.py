"""``mops study sample``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mops import units
from mops.cli import terminal
from mops.cli.options import JsonOption
from mops.errors import UsageError
from mops.study.json_file import read_json, read_text
from mops.study.sampling.draw import Method
from mops.study.sampling.write import sample as sample_space


def sample(
    space: Annotated[
        Path, typer.Argument(metavar="SPACE", help="The space file: a JSON file with parameters and ranges")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Write this file: .json for a study, .parquet or .csv for sets")
    ],
    method: Annotated[Method, typer.Option(help="Draw with this method; lhs is a Latin hypercube")] = Method.SOBOL,
    n: Annotated[int | None, typer.Option("-n", help="Draw this many parameter sets; not for a grid")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Set the seed; the same seed gives the same sets")] = 0,
    study: Annotated[
        Path | None, typer.Option(metavar="STUDY", help="Copy the other fields of this study, for a .json file")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Set the model, for a .json file")] = None,
    target: Annotated[list[str] | None, typer.Option(help="Add a target, for a .json file; repeatable")] = None,
    replicates: Annotated[
        int | None, typer.Option(min=1, help="Set the replicates of each set, for a .json file")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists")] = False,
    as_json: JsonOption = False,
) -> None:
    """Draw parameter sets from a space, and write a study or a file of sets.

    The space file has a range, values or a fixed value for each parameter. For a grid, ranges of floats need "points".

        {"beta": {"min": 0.1, "max": 0.5}, "n": {"min": 1, "max": 9, "type": "int"},

        "x": {"min": 1e-4, "max": 1, "scale": "log"}, "kind": {"values": ["a", "b"]}, "fixed": 3}

    Example:

        mops study sample space.json --out sets.parquet -n 1000
    """
    fields = _fields(study, {"model": model, "targets": target or None, "n_replicates": replicates})
    sampled = sample_space(space, out, method=method, n=n, seed=seed, study=fields, overwrite=overwrite)
    for note in sampled.notes:
        terminal.say(f"note: {note}")
    if as_json:
        terminal.data_json(asdict(sampled))
        return
    terminal.data(sampled.path)
    terminal.say(
        f"{units.counted(sampled.sets, 'set')} of {units.counted(len(sampled.parameters), 'parameter')} "
        f"by {sampled.method}" + ("" if method is Method.GRID else f", seed {sampled.seed}")
    )
    if fields is None:
        terminal.say(f'in a study in the same folder: "parameter_sets": "{out.name}"')


def _fields(template: Path | None, options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the study's fields without its sets; None: the file has no study."""
    fields = {key: value for key, value in options.items() if value is not None}
    if template is None:
        return fields or None
    found = read_json(read_text(template, "study"), where=str(template))
    if not isinstance(found, dict):
        raise UsageError("the study is not a JSON object", where=str(template))
    return found | fields
