"""``mops study sample``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mops import units
from mops.cli import terminal
from mops.cli.options import AROUND, HERE, STUDY, JsonOption, ModelArguments, Place, WeightOption, read_weights
from mops.errors import JobError, UsageError
from mops.jobs.job import Job
from mops.jobs.ranking import require_total, scored_sets
from mops.options import Option
from mops.study.json_file import read_json, read_text
from mops.study.sampling.draw import Method
from mops.study.sampling.write import Around
from mops.study.sampling.write import sample as sample_space
from mops.study.study_file import KEY_OF_OPTION

_BEST_SETS = 8


def sample(
    space: Annotated[Path, typer.Argument(metavar="SPACE", help="The space file, like space.json")],
    to: Annotated[Path, Option("Write this file: .json for a study, .parquet or .csv for sets", "FILE")],
    method: Annotated[Method, Option("Draw with this method; lhs is a Latin hypercube")] = Method.SOBOL,
    n: Annotated[int | None, Option("Draw this many parameter sets; not for a grid", "N", flags="-n")] = None,
    seed: Annotated[int, Option("Set the seed; the same seed gives the same sets", "N", least=0)] = 0,
    study: Annotated[Path | None, Option("Copy the other fields of this study", "STUDY", STUDY)] = None,
    *,
    model: ModelArguments,
    around: Annotated[str | None, Option("Draw near the best sets of this job", "JOB", AROUND)] = None,
    best: Annotated[int | None, Option("Draw near this many best sets (default: 8)", "N", AROUND, least=1)] = None,
    weight: WeightOption = None,
    place: Place = HERE,
    overwrite: Annotated[bool, Option("Replace a file that exists")] = False,
    as_json: JsonOption = False,
) -> None:
    """Draw parameter sets from a space, and write them to a file.

    The space file has a range, values or a fixed value for each parameter. For a grid, ranges of floats need "points".

        {"beta": {"min": 0.1, "max": 0.5}, "kind": {"values": ["a", "b"]},

        "n": {"min": 1, "max": 9, "type": "int"}, "fixed": 3,

        "x": {"min": 1e-4, "max": 1, "scale": "log"}}

    With --around, mops draws from the part of the space that holds the best sets of a job, and a margin.

    Example:

        mops study sample space.json --to sets.parquet -n 1000

        mops study sample space.json --around waves --best 8 -n 256 --to next.parquet
    """
    weights, near = read_weights(weight), None
    if around is not None:
        near = _best_of(place.open(around), best or _BEST_SETS, weights)
    elif best is not None or weights:
        what = f"only a sample near the best sets has {'--weight' if best is None else '--best'}"
        raise UsageError(what, where="the command line", hint="name their job: --around JOB")
    fields = _fields(study, {KEY_OF_OPTION.get(name, name): value for name, value in model.given.items()})
    sampled = sample_space(space, to, method=method, n=n, seed=seed, study=fields, overwrite=overwrite, around=near)
    if as_json:
        terminal.data_json(asdict(sampled))
        return
    terminal.data(sampled.path)
    terminal.say(
        f"{units.counted(sampled.sets, 'set')} of {units.counted(len(sampled.parameters), 'parameter')} "
        f"by {sampled.method}" + ("" if method is Method.GRID else f", seed {sampled.seed}")
    )
    if near is not None:
        best_sets = units.counted(len(near.sets), "set")
        terminal.say(f"near the best {best_sets} of job {near.job}: {json.dumps(sampled.space)}")
    if fields is None:
        terminal.say(f'in a study in the same folder: "parameter_sets": "{to.name}"')


def _best_of(job: Job, n: int, weights: dict[str, float] | None) -> Around:
    """Return the best sets of a job. JobError: no set of the job has losses."""
    require_total(scored_sets(job.losses().to_arrow(), weights=weights), f"job {job.name}")
    best = job.best(n, weights=weights).to_arrow()["param_id"].to_pylist()
    if not best:
        what = f"job {job.name!r} has no parameter set with losses"
        raise JobError(what, where=job.files.url, hint=f"look at the job: mops jobs status {job.name}")
    params = job.params(columns=["param_id", "params"]).to_arrow().to_pylist()
    sets = {row["param_id"]: json.loads(row["params"]) for row in params if row["param_id"] in set(best)}
    return Around(job.name, tuple(sets[each] for each in best))


def _fields(template: Path | None, fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return the study's fields without its sets; None: the file has no study."""
    if template is None:
        return fields or None
    found = read_json(read_text(template, "study"), where=str(template))
    if not isinstance(found, dict):
        raise UsageError("the study is not a JSON object", where=str(template))
    return found | fields
