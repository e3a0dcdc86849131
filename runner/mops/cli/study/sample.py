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
    space: Annotated[Path, typer.Argument(metavar="SPACE", help="The space file: parameters and their ranges (JSON).")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="What to write: a study.json, or sets.parquet or .csv.")],
    method: Annotated[Method, typer.Option(help="How sets are drawn; lhs is a Latin hypercube.")] = Method.SOBOL,
    n: Annotated[int | None, typer.Option("-n", help="How many sets; a grid's follow from the space.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same sets.")] = 0,
    study: Annotated[
        Path | None, typer.Option(metavar="STUDY", help="For a study.json: a study whose other fields are kept.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="For a study.json: its model.")] = None,
    target: Annotated[list[str] | None, typer.Option(help="For a study.json: a target; may be repeated.")] = None,
    replicates: Annotated[int | None, typer.Option(min=1, help="For a study.json: replicates of each set.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Draw parameter sets from a space, and write them as a study or as a file of sets.

    A space is JSON: {"beta": {"min": 0.1, "max": 0.5}, "n": {"min": 1, "max": 9, "type": "int"}, "x": {"min": 1e-4,
    "max": 1, "scale": "log"}, "kind": {"values": ["a", "b"]}, "fixed": 3}; a grid wants "points" in ranges of floats.
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
        terminal.say(f'a study beside it names it: "parameter_sets": "{out.name}"')


def _fields(template: Path | None, given: dict[str, Any]) -> dict[str, Any] | None:
    """Return the study's fields without its sets; None: no study is meant."""
    given = {key: value for key, value in given.items() if value is not None}
    if template is None:
        return given or None
    found = read_json(read_text(template, "study"), where=str(template))
    if not isinstance(found, dict):
        raise UsageError("this is no study: it is not a JSON object", where=str(template))
    return found | given
