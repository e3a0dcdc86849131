"""study.json: what it may say, and every problem of it at once. The contract is STUDY.md.

Plain checks and no schema library: children of the workers import this module, and are to stay small. Reading the
file is the caller's; which code ``model`` and ``targets`` mean is :mod:`mops.study.project`'s.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mops.errors import ModelError, Problem, StudyError
from mops.study.entry import EntryPoint
from mops.study.ids import param_id, replicate_seed

Value = bool | int | float | str
Params = dict[str, Value]

KEYS = (
    "model",
    "scenario",
    "parameter_sets",
    "n_replicates",
    "outputs",
    "targets",
    "sampling_method",
    "metadata",
    "kind",
)
SET_KEYS = ("params", "seed")
SEED_LIMIT = 2**64

_PROBLEMS_SHOWN = 20
_PATHS_SHOWN = 5
_WRAPPED = '{"params": {...}, "seed": 7}'
_KEPT = "unknown key, kept with the job and not used"
_MAYBE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Group:
    """A parameter set with all its replicates: replicate ``i`` has seed ``seeds[i]``."""

    index: int
    param_id: str
    params: Params
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Study:
    """A checked study. ``outputs`` None: all; ``targets`` None: those that the project registers."""

    model: str
    scenario: str
    groups: tuple[Group, ...]
    outputs: tuple[str, ...] | None
    targets: tuple[str, ...] | None
    metadata: dict[str, Any]
    sampling_method: str | None
    warnings: tuple[str, ...]

    @property
    def n_simulations(self) -> int:
        """Simulations of all groups."""
        return sum(len(group.seeds) for group in self.groups)


def read_json(text: str, *, where: str) -> object:
    """Read strict JSON: no duplicate keys, no NaN or Infinity, no half characters.

    Parameters
    ----------
    text
        The content of the file.
    where
        Names the file in errors.

    Raises
    ------
    StudyError
        It is none: every problem with its JSON path, or the line and column of the first that ends the reading.
    """
    marks: list[_Mark] = []
    problems: list[Problem] = []
    found: object = None
    try:
        found = _decoded(text.removeprefix("\ufeff"), marks)
        if marks or _MAYBE_SURROGATE.search(text):
            problems = list(_marked(found, "$"))
    except json.JSONDecodeError as bad:
        problems = [Problem(f"line {bad.lineno}, column {bad.colno}", bad.msg)]
    except ValueError as bad:  # the one other that it raises: an integer beyond Python's limit of digits
        problems = [Problem("$", f"a number in it is too long: {bad}")]
    except RecursionError:
        problems = [Problem("$", "its lists and objects are nested too deeply")]
    if problems:
        raise StudyError("the study file is not JSON", _shown(problems), where=where)
    return found


@dataclass(frozen=True)
class _Mark:
    """Stands in decoded JSON where the text was not strict: only the whole knows its path."""

    message: str
    inside: object = None


def _decoded(text: str, marks: list[_Mark]) -> object:
    def mark(message: str, inside: object = None) -> _Mark:
        marks.append(_Mark(message, inside))
        return marks[-1]

    def constant(name: str) -> _Mark:
        return mark(f"{name} is not JSON; write a finite number")

    def unique(pairs: list[tuple[str, object]]) -> object:
        found = dict(pairs)
        return found if len(found) == len(pairs) else mark(f"the key {_twice(pairs)!r} stands twice; keep one", found)

    return json.loads(text, parse_constant=constant, object_pairs_hook=unique)


def _twice(pairs: list[tuple[str, object]]) -> str:
    return Counter(key for key, _ in pairs).most_common(1)[0][0]


def _marked(value: object, path: str) -> Iterator[Problem]:
    match value:
        case _Mark():
            yield Problem(path, value.message)
            yield from _marked(value.inside, path)
        case dict():
            for key, inner in value.items():
                yield from _marked(key, path)
                yield from _marked(inner, _at(path, key))
        case list():
            for i, inner in enumerate(value):
                yield from _marked(inner, f"{path}[{i}]")
        case str() if fault := _text_fault(value):
            yield Problem(path, fault)


def parse_study(data: object, *, where: str) -> Study:
    """Check a study and return it.

    Parameters
    ----------
    data
        The decoded JSON.
    where
        Names the file in errors.

    Raises
    ------
    StudyError
        Every problem, each with its JSON path and what would be right.
    """
    check = _Check()
    if not isinstance(data, dict):
        check.add("$", f"a study is a JSON object with 'model' and 'parameter_sets', not {_called(data)}")
    elif not _refuses_calibration(check, data):
        study = _study(check, data)
        if not check.problems:
            return study
    raise StudyError("the study is not valid", _shown(check.problems), where=where)


@dataclass
class _Check:
    """Collects problems, and notes on what is right but may not be meant."""

    problems: list[Problem] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def add(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))

    def note(self, path: str, message: str) -> None:
        self.notes.setdefault(message, []).append(path)

    def warnings(self) -> tuple[str, ...]:
        return tuple(f"{_listed(paths)}: {message}" for message, paths in self.notes.items())


def _listed(paths: list[str]) -> str:
    more = len(paths) - _PATHS_SHOWN
    return ", ".join(paths[:_PATHS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _shown(problems: list[Problem]) -> list[Problem]:
    more = len(problems) - _PROBLEMS_SHOWN
    return problems[:_PROBLEMS_SHOWN] + ([Problem("$", f"and {more:,} more problems")] if more > 0 else [])


def _refuses_calibration(check: _Check, data: Mapping[str, object]) -> bool:
    kind = data.get("kind")
    if kind == "CalibrationSpec" or "algorithm" in data:
        check.add(
            "$.kind" if kind == "CalibrationSpec" else "$.algorithm",
            "this is a calibration, which proposes sets as it goes; mops runs studies whose parameter_sets are given: "
            "write the sets that you want scored into a study",
        )
        return True
    if kind not in (None, "SimulationStudy"):
        check.add("$.kind", f"{_called(kind)} is not a kind that mops runs; leave it out or write 'SimulationStudy'")
    return False


def _study(check: _Check, data: dict[str, Any]) -> Study:
    _check_keys(check, data)
    n_replicates = _get(check, data, "n_replicates", 1, _is_count, "an integer of at least 1")
    return Study(
        model=_entry(check, "$.model", data.get("model", _MISSING)),
        scenario=_get(check, data, "scenario", "baseline", _is_name, "a non-empty string"),
        outputs=_outputs(check, data.get("outputs")),
        targets=_targets(check, data.get("targets")),
        metadata=_metadata(check, data),
        sampling_method=_get(check, data, "sampling_method", None, _is_optional_text, "a string"),
        groups=_groups(check, _list_of_sets(check, data.get("parameter_sets", _MISSING)), n_replicates),
        warnings=check.warnings(),
    )


def _check_keys(check: _Check, data: Mapping[str, object]) -> None:
    for key in data:
        near = _nearest(key, KEYS)
        if near and near != key:
            check.add(_at("$", key), f"unknown key; did you mean {near!r}?")
        elif not near:
            check.note(_at("$", key), _KEPT)


def _nearest(key: str, known: tuple[str, ...]) -> str | None:
    """Return the known key that this one is or may have been meant to be."""
    near = difflib.get_close_matches(key.lower().replace("-", "_"), known, 1, cutoff=0.75)
    return key if key in known else next(iter(near), None)


def _get(
    check: _Check, data: Mapping[str, Any], key: str, default: Any, valid: Callable[[Any], bool], right: str
) -> Any:
    value = data.get(key, default)
    if valid(value):
        return value
    check.add(f"$.{key}", f"{_called(value)} is not {right}")
    return default


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_optional_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _entry(check: _Check, path: str, value: object) -> str:
    if not isinstance(value, str):
        found = "missing" if value is _MISSING else f"{_called(value)} is not a string"
        check.add(path, f"{found}; name the code: 'package.module', 'module:name' or 'path/file.py:name'")
        return ""
    try:
        EntryPoint.parse(value)
    except ModelError as bad:
        check.add(path, f"{bad.what}; {bad.hint}")
    return value


def _metadata(check: _Check, data: Mapping[str, Any]) -> dict[str, Any]:
    metadata = _get(check, data, "metadata", None, lambda v: v is None or isinstance(v, dict), "an object") or {}
    named = metadata.get("model_class")
    if named not in (None, "") and not _names_class(named):
        check.add(
            "$.metadata.model_class", f"{_called(named)} does not name a class; write 'Class' or 'package.module:Class'"
        )
    return dict(metadata)


def _names_class(named: object) -> bool:
    if not isinstance(named, str) or named.isidentifier():
        return isinstance(named, str)
    try:
        return EntryPoint.parse(named).name is not None
    except ModelError:
        return False


def _outputs(check: _Check, value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        check.add("$.outputs", f"{_called(value)} is not a non-empty list of names; leave it out to keep all")
        return None
    for i, name in enumerate(value):
        if not _is_name(name):
            check.add(f"$.outputs[{i}]", f"{_called(name)} is not the name of an output; write a string")
    return tuple(dict.fromkeys(map(str, value)))


def _targets(check: _Check, value: object) -> tuple[str, ...] | None:
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        check.add("$.targets", f"{_called(value)} is not a list of 'module:function'")
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


def _list_of_sets(check: _Check, sets: object) -> list[Any]:
    if isinstance(sets, list) and sets:
        return sets
    if isinstance(sets, str):
        message = (
            f"{_called(sets)} names a file, and this version reads inline lists only; "
            "write the sets here as a list of objects (CSV and Parquet files come with the next release)"
        )
    else:
        found = "missing" if sets is _MISSING else f"{_called(sets)} is not a non-empty list"
        message = f'{found}; give a list of objects like {{"beta": 0.3}}'
    check.add("$.parameter_sets", message)
    return []


def _groups(check: _Check, sets: list[Any], n_replicates: int) -> tuple[Group, ...]:
    groups: dict[str, tuple[Params, dict[int, None]]] = {}
    for path, params, seed in _good_sets(check, sets):
        identity = param_id(params)
        seeds = [replicate_seed(identity, i) for i in range(n_replicates)] if seed is None else [seed]
        _, known = groups.setdefault(identity, (params, {}))
        n_before = len(known)
        known.update(dict.fromkeys(seeds))
        if len(known) < n_before + len(seeds):
            check.note(path, "the same parameters with the same seed are one simulation, and run once")
    return tuple(
        Group(index, identity, params, tuple(seeds)) for index, (identity, (params, seeds)) in enumerate(groups.items())
    )


def _good_sets(check: _Check, sets: list[Any]) -> Iterator[tuple[str, Params, int | None]]:
    """Yield the path, the parameters and the own seed of each entry without a problem."""
    for i, entry in enumerate(sets):
        path = f"$.parameter_sets[{i}]"
        n_before = len(check.problems)
        params, seed = _set(check, path, entry)
        if len(check.problems) == n_before:
            yield path, params, seed


def _set(check: _Check, path: str, entry: object) -> tuple[Params, int | None]:
    if not isinstance(entry, dict):
        check.add(path, f'{_called(entry)} is not an object of parameters like {{"beta": 0.3}}')
        return {}, None
    if isinstance(entry.get("params"), dict):
        _check_set_keys(check, path, entry)
        return _params(check, f"{path}.params", entry["params"]), _seed(check, f"{path}.seed", entry.get("seed"))
    if "seed" in entry:
        check.note(f"{path}.seed", f"is a parameter here; a simulation's own seed stands beside 'params': {_WRAPPED}")
    return _params(check, path, entry), None


def _check_set_keys(check: _Check, path: str, entry: Mapping[str, object]) -> None:
    for key in [key for key in entry if key not in SET_KEYS]:
        near = _nearest(key, SET_KEYS)
        if near:
            check.add(_at(path, key), f"unknown key; did you mean {near!r}?")
        elif key in KEYS:
            check.add(_at(path, key), f"belongs to the study and not to one set; write {_WRAPPED}")
        else:
            check.note(_at(path, key), _KEPT)


def _seed(check: _Check, path: str, seed: object) -> int | None:
    if seed is None:
        return None
    if isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < SEED_LIMIT:
        return seed
    check.add(path, f"{_called(seed)} is not an integer from 0 to 2^64 - 1")
    return None


def _params(check: _Check, path: str, params: Mapping[str, Any]) -> Params:
    for name, value in params.items():
        fault = _name_fault(name) or _value_fault(value)
        if fault:
            check.add(_at(path, name), fault)
    return dict(params)


def _name_fault(name: str) -> str | None:
    if not name:
        return "a parameter's name is empty; give it one"
    return _text_fault(name)


def _value_fault(value: object) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{_called(value)} is not a finite number; write one"
    if isinstance(value, str):
        return _text_fault(value)
    if isinstance(value, int):
        return None
    if value is None:
        return "null is no value; leave the parameter out"
    nested = f"; a set with a seed of its own is {_WRAPPED}" if isinstance(value, dict) else ""
    return f"{_called(value)} cannot be a parameter; write a boolean, a number or a string{nested}"


def _text_fault(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, as "\ud800" in JSON: it has no UTF-8, and so no param_id
        return f"{text!a} holds half a character, which is no text; write it whole"
    return None


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{json.dumps(key)}]"


def _called(value: object) -> str:
    """Name a JSON value as its writer would."""
    match value:
        case None:
            return "null"
        case bool() | int() | float():
            return json.dumps(value)
        case str():
            return repr(value) if len(value) <= 40 else repr(value[:37] + "...")
        case list():
            return "an empty list" if not value else "a list"
        case dict():
            return "an object"
    return type(value).__name__
