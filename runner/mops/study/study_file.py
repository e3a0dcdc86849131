"""Checks study.json, and reports every problem at once (docs/reference/study.md).

Plain checks instead of a schema library give each problem its path and say what would be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import ModelError, StudyError, nearest
from mops.study.checks import (
    SEED_RIGHT,
    WRAPPED,
    Checks,
    Params,
    is_seed,
    json_path,
    json_text,
    name_fault,
    value_fault,
)
from mops.study.entry_point import EntryPoint
from mops.study.groups import SIMULATIONS_LIMIT, GroupBuilder, StudyGroups, json_column
from mops.study.parameter_file import read_sets, take_table

KEYS = (
    "model",
    "scenario",
    "parameter_sets",
    "n_replicates",
    "outputs",
    "targets",
    "limits",
    "sampling_method",
    "metadata",
    "kind",
)
SET_KEYS = ("params", "seed")
KEY_OF_OPTION = {"sets": "parameter_sets", "replicates": "n_replicates"}  # options with another name than their key
LIMIT_KEYS = ("timeout", "memory", "threads", "retries", "import_timeout", "tasks_per_child", "child_growth")
REPLICATES_LIMIT = 1_000_000

_SETS_AT_ONCE = 1024
_CELLS_AT_ONCE = 1 << 18  # in a list whose sets have different parameters, most cells are empty
_KEPT = "unknown key, kept with the job and not used"
_MISSING = object()

# Keys with one rule: the value of an absent key, whether a value is right, and what is right.
_PLAIN_KEYS: Mapping[str, tuple[Any, Callable[[Any], bool], str]] = {
    "n_replicates": (
        1,
        lambda given: isinstance(given, int) and not isinstance(given, bool) and given >= 1,
        "an integer of at least 1",
    ),
    "scenario": ("baseline", lambda given: isinstance(given, str) and given != "", "a non-empty string"),
    "limits": (
        {},
        lambda given: isinstance(given, dict),
        'an object like {"timeout": 60, "memory": "2 GiB"}',
    ),
    "metadata": (None, lambda given: given is None or isinstance(given, dict), "an object"),
    "sampling_method": (None, lambda given: given is None or isinstance(given, str), "a string"),
}


@dataclass(frozen=True)
class Study:
    """A checked study."""

    model: str
    scenario: str
    groups: StudyGroups
    outputs: tuple[str, ...] | None  # None: all
    targets: tuple[str, ...] | None  # None: the targets that the project registers
    limits: dict[str, Any]  # as written: settings.limits_of_study checks it
    metadata: dict[str, Any]
    sampling_method: str | None
    warnings: tuple[str, ...]

    @property
    def n_simulations(self) -> int:
        """Simulations of all groups."""
        return self.groups.n_simulations


def parse_study(data: object, *, where: str, folder: Path = Path()) -> Study:
    """Check decoded JSON and return the study. StudyError lists all problems."""
    # ``parameter_sets`` may also be a table for which `parameter_file.is_plain` is true.
    check = Checks()
    if not isinstance(data, dict):
        check.add("$", f"a study is a JSON object with 'model' and 'parameter_sets', not {json_text(data)}")
    elif (kind := data.get("kind")) == "CalibrationSpec" or "algorithm" in data:
        check.add(
            "$.kind" if kind == "CalibrationSpec" else "$.algorithm",
            "a calibration chooses its parameter sets while it runs, but a study lists them; write the ranges of the "
            "parameters into a space, and run: mops study calibrate space.json",
        )
    else:
        if kind not in (None, "SimulationStudy"):
            right = "leave it out or write 'SimulationStudy'"
            check.add("$.kind", f"{json_text(kind)} is not a kind that mops runs; {right}")
        fields = _fields(check, data)
        n_replicates = fields.pop("n_replicates")
        groups = _groups(check, data.get("parameter_sets", _MISSING), n_replicates, folder)
        if groups is not None:
            return Study(groups=groups, warnings=check.warnings(), **fields)
    raise StudyError("the study is not valid", check.shown(), where=where)


def _fields(check: Checks, data: dict[str, Any]) -> dict[str, Any]:
    """Check every key but the parameter sets; return the values by field."""
    _check_keys(check, data)
    found: dict[str, Any] = {}
    for key, (absent, is_right, right) in _PLAIN_KEYS.items():
        found[key] = data.get(key, absent)
        if not is_right(found[key]):
            check.add(f"$.{key}", f"{json_text(found[key])} is not {right}")
            found[key] = absent
    if (n := found["n_replicates"]) > REPLICATES_LIMIT:
        check.add("$.n_replicates", f"{n:,} is too many; a set may have {REPLICATES_LIMIT:,} replicates")
        found["n_replicates"] = 1  # so that the study does not also have too many simulations
    found["metadata"] = dict(found["metadata"] or {})
    named = found["metadata"].get("model_class")
    if named not in (None, "") and not _names_class(named):
        right = "write 'Class' or 'package.module:Class'"
        check.add("$.metadata.model_class", f"{json_text(named)} does not name a class; {right}")
    found["model"] = _entry(check, "$.model", data.get("model", _MISSING))
    found["outputs"] = _outputs(check, data.get("outputs"))
    found["targets"] = _targets(check, data.get("targets"))
    return found


def _check_keys(check: Checks, data: Mapping[str, object]) -> None:
    for key in data:
        near = _nearest(key, KEYS)
        if near and near != key:
            check.add(json_path("$", key), f"unknown key; did you mean {near!r}?")
        elif key.removeprefix("sim_") in LIMIT_KEYS:
            limit = key.removeprefix("sim_")
            check.add(json_path("$", key), f'a limit belongs in "limits"; write "limits": {{"{limit}": ...}}')
        elif not near:
            check.note(json_path("$", key), _KEPT)


def _nearest(key: str, known: tuple[str, ...]) -> str | None:
    """Return the known key that a key is, or that the user may have meant."""
    return nearest(key.replace("-", "_"), known, 0.75)


def _entry(check: Checks, path: str, value: object) -> str:
    if not isinstance(value, str):
        found = "missing" if value is _MISSING else f"{json_text(value)} is not a string"
        check.add(path, f"{found}; name the code: 'package.module', 'module:name' or 'path/file.py:name'")
        return ""
    try:
        EntryPoint.parse(value)
    except ModelError as bad:
        check.add(path, f"{bad.what}; {bad.hint}")
    return value


def _names_class(named: object) -> bool:
    if not isinstance(named, str) or named.isidentifier():
        return isinstance(named, str)
    try:
        return EntryPoint.parse(named).name is not None
    except ModelError:
        return False


def _outputs(check: Checks, value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        check.add("$.outputs", f"{json_text(value)} is not a non-empty list of names; leave it out to keep all")
        return None
    for i, name in enumerate(value):
        if not isinstance(name, str) or not name:
            check.add(f"$.outputs[{i}]", f"{json_text(name)} is not the name of an output; write a string")
    return tuple(dict.fromkeys(map(str, value)))


def _targets(check: Checks, value: object) -> tuple[str, ...] | None:
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        check.add("$.targets", f"{json_text(value)} is not a list of 'module:function'")
        return None
    found: dict[str, str] = {}
    for path, target in ((f"$.targets[{i}]", target) for i, target in enumerate(value)):
        text = _entry(check, path, target)
        if text and ":" not in text:
            check.add(path, f"{text!r} names no function; write '{text}:function'")
        if text in found:
            check.note(path, f"the same target as {found[text]}, evaluated once")
        found.setdefault(text, path)
    return tuple(found)


def _groups(check: Checks, sets: object, n_replicates: int, folder: Path) -> StudyGroups | None:
    builder = GroupBuilder(n_replicates)
    place: Callable[[int], str] = "$.parameter_sets[{}]".format
    if isinstance(sets, str):
        place = read_sets(folder, sets, check, builder)
    elif isinstance(sets, pa.Table):
        take_table(sets, builder)
    elif isinstance(sets, list) and len(sets):
        _take_list(check, sets, builder)
    else:
        found = "missing" if sets is _MISSING else f"{json_text(sets)} is not a non-empty list"
        check.add(
            "$.parameter_sets", f'{found}; give a list of objects like {{"beta": 0.3}}, or name a CSV or Parquet file'
        )
    if builder.full:
        check.add("$", f"asks for more than {SIMULATIONS_LIMIT:,} simulations, the limit for one study; split it")
    if check.n_problems:
        return None
    n_sets = len(builder.numbers)
    often = [name for name, seen in builder.values.items() if n_sets < 2 * seen.n < 2 * n_sets]  # but not in all sets
    for name, seen in builder.values.items():
        if seen.n < n_sets:  # it may be misspelled
            near = nearest(name, [other for other in often if other != name])
            meant = f"; did you mean {near!r}?" if near else ""
            check.note("$.parameter_sets", f"{name!r} is in {seen.n:,} of {n_sets:,} sets{meant}")
    groups, repeated = builder.build()
    for number in repeated:
        check.note(place(number), "the same parameters with the same seed are one simulation; mops runs it once")
    return groups


def _take_list(check: Checks, sets: Iterable[Any], builder: GroupBuilder) -> None:
    entries = enumerate(sets)
    first_text: dict[str, int] = {}
    while numbered := list(islice(entries, _SETS_AT_ONCE)):
        good = [_set(check, f"$.parameter_sets[{i}]", entry) for i, entry in numbered]
        if check.n_problems or builder.full:
            continue
        n_at_once = max(1, _CELLS_AT_ONCE // max(1, len({name for params, _ in good for name in params})))
        for at in range(0, len(good), n_at_once):
            some, start = good[at : at + n_at_once], numbered[at][0]
            names = dict.fromkeys(name for params, _ in some for name in params)
            columns = {name: json_column([params.get(name) for params, _ in some]) for name in names}
            for name, column in columns.items():
                if "str" in column.kinds and name not in first_text:
                    first_text[name] = start + pc.index(pc.starts_with(column.json, '"'), value=True).as_py()
            builder.add(columns, [seed for _, seed in some], range(start, start + len(some)))
    for name, number in sorted(first_text.items(), key=itemgetter(1)):
        if len(builder.kinds[name]) > 1:
            check.note(f"$.parameter_sets[{number}]", f"parameter {name!r} is text here, but not in other sets")


def _set(check: Checks, path: str, entry: object) -> tuple[Params, int | None]:
    if not isinstance(entry, dict):
        check.add(path, f'{json_text(entry)} is not an object of parameters like {{"beta": 0.3}}')
        return {}, None
    if isinstance(entry.get("params"), dict):
        _check_set_keys(check, path, entry)
        params, seed = _params(check, f"{path}.params", entry["params"]), entry.get("seed")
        if seed is not None and not is_seed(seed):
            check.add(f"{path}.seed", f"{json_text(seed)} is not {SEED_RIGHT}")
        return params, seed
    wrong = next((key for key in entry if isinstance(entry[key], dict) and _nearest(key, SET_KEYS) == "params"), None)
    if wrong is not None:
        check.add(json_path(path, wrong), "unknown key; did you mean 'params'?")
        return {}, None
    if "seed" in entry:
        check.note(f"{path}.seed", f"is a parameter here; a simulation's own seed goes next to 'params': {WRAPPED}")
    return _params(check, path, entry), None


def _check_set_keys(check: Checks, path: str, entry: Mapping[str, object]) -> None:
    for key in [key for key in entry if key not in SET_KEYS]:
        near = _nearest(key, SET_KEYS)
        if near:
            check.add(json_path(path, key), f"unknown key; did you mean {near!r}?")
        elif key in KEYS:
            check.add(json_path(path, key), f"belongs to the study and not to one set; write {WRAPPED}")
        else:
            check.note(json_path(path, key), _KEPT)


def _params(check: Checks, path: str, params: Mapping[str, Any]) -> Params:
    for name, value in params.items():
        fault = name_fault(name) or value_fault(value)
        if fault:
            check.add(json_path(path, name), fault)
    return dict(params)
