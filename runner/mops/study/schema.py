"""study.json: what it may say, and every problem of it at once. The contract is STUDY.md.

Reading the file is the caller's; which code ``model`` and ``targets`` mean is :mod:`mops.study.project`'s.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

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
SEED_LIMIT = 2**64
_PROBLEMS_SHOWN = 20
_WARNINGS_SHOWN = 5


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
    """Read strict JSON: no duplicate keys, no NaN or Infinity.

    Raises
    ------
    StudyError
        It is none; with line and column.
    """

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON and cannot be a parameter; write a finite number")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
            raise ValueError(f"the key {twice!r} stands twice in one object; keep one")
        return found

    try:
        return json.loads(text.removeprefix("\ufeff"), parse_constant=refuse_constant, object_pairs_hook=unique)
    except json.JSONDecodeError as bad:
        problem = Problem(f"line {bad.lineno}, column {bad.colno}", bad.msg)
    except (ValueError, RecursionError) as bad:
        problem = Problem("$", str(bad))
    raise StudyError("the study file is not JSON", [problem], where=where)


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
    raise StudyError("the study is not valid", check.shown(), where=where)


@dataclass
class _Check:
    """Collects problems and warnings."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))

    def shown(self) -> list[Problem]:
        more = len(self.problems) - _PROBLEMS_SHOWN
        last = [Problem("$", f"and {more} more problems")] if more > 0 else []
        return self.problems[:_PROBLEMS_SHOWN] + last


def _refuses_calibration(check: _Check, data: Mapping[str, object]) -> bool:
    kind = data.get("kind", "SimulationStudy")
    if kind == "CalibrationSpec" or "algorithm" in data:
        check.add(
            "$.kind" if "kind" in data else "$.algorithm",
            "this is a calibration, which proposes sets as it goes; mops runs studies whose parameter_sets are given: "
            "write the sets that you want scored into a study",
        )
        return True
    if kind != "SimulationStudy":
        check.add("$.kind", f"{kind!r} is not a kind that mops runs; leave it out or write 'SimulationStudy'")
    return False


def _study(check: _Check, data: dict[str, Any]) -> Study:
    _check_keys(check, data)
    n_replicates = _get(check, data, "n_replicates", 1, _is_count, "an integer of at least 1")
    return Study(
        model=_entry(check, "$.model", data.get("model", _MISSING)),
        scenario=_get(check, data, "scenario", "baseline", _is_name, "a non-empty string"),
        outputs=_names(check, data, "outputs"),
        targets=_targets(check, data),
        metadata=_get(check, data, "metadata", {}, lambda v: isinstance(v, dict), "an object"),
        sampling_method=_get(check, data, "sampling_method", None, lambda v: isinstance(v, str), "a string"),
        groups=_groups(check, data.get("parameter_sets", _MISSING), n_replicates),
        warnings=tuple(check.warnings),
    )


_MISSING = object()


def _check_keys(check: _Check, data: Mapping[str, object]) -> None:
    unknown = [key for key in data if key not in KEYS]
    for key in unknown:
        near = difflib.get_close_matches(key.lower().replace("-", "_"), KEYS, 1, cutoff=0.75)
        if near:
            check.add(f"$.{key}", f"unknown key; did you mean {near[0]!r}?")
    kept = [repr(key) for key in unknown if not any(p.path == f"$.{key}" for p in check.problems)]
    if kept:
        check.warnings.append(f"unknown keys are kept with the job and not used: {', '.join(kept)}")


def _get(
    check: _Check, data: Mapping[str, Any], key: str, default: Any, valid: Callable[[Any], bool], right: str
) -> Any:
    value = data.get(key, default)
    if value is None or value is default:
        return default
    if valid(value):
        return value
    check.add(f"$.{key}", f"{_called(value)} is not {right}")
    return default


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _entry(check: _Check, path: str, value: object) -> str:
    if value is _MISSING or not isinstance(value, str):
        found = "missing" if value is _MISSING else f"{_called(value)} is not a string"
        check.add(path, f"{found}; name the code: 'package.module', 'module:name' or 'path/file.py:name'")
        return ""
    try:
        EntryPoint.parse(value)
    except ModelError as bad:
        check.add(path, f"{bad.what}; {bad.hint}")
    return value


def _names(check: _Check, data: Mapping[str, object], key: str) -> tuple[str, ...] | None:
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(map(_is_name, value)):
        check.add(f"$.{key}", f"{_called(value)} is not a non-empty list of names; leave it out to keep all")
        return None
    return tuple(dict.fromkeys(value))


def _targets(check: _Check, data: Mapping[str, object]) -> tuple[str, ...] | None:
    value = data.get("targets")
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        check.add("$.targets", f"{_called(value)} is not a list of 'module:function'")
        return None
    for i, target in enumerate(value):
        path = f"$.targets[{i}]"
        if _entry(check, path, target) and ":" not in str(target):
            check.add(path, f"{target!r} names no function; write '{target}:function'")
        elif target in value[:i]:
            check.add(path, f"{target!r} stands twice; name each target once")
    return tuple(value)


def _groups(check: _Check, sets: object, n_replicates: int) -> tuple[Group, ...]:
    if isinstance(sets, str):
        check.add(
            "$.parameter_sets",
            f"{sets!r}: this version reads inline lists only, no files; put the sets here as a list of objects",
        )
        return ()
    if not isinstance(sets, list) or not sets:
        found = "missing" if sets is _MISSING else _called(sets)
        check.add("$.parameter_sets", f"{found}; give a non-empty list of objects like {{\"beta\": 0.3}}")
        return ()
    groups: dict[str, tuple[Params, dict[int, None]]] = {}
    twice: list[str] = []
    for params, seed, path in _sets(check, sets):
        identity = param_id(params)
        seeds = [seed] if seed is not None else [replicate_seed(identity, i) for i in range(n_replicates)]
        known = groups.setdefault(identity, (params, {}))[1]
        if any(seed in known for seed in seeds):
            twice.append(path)
        known |= dict.fromkeys(seeds)
    if twice:
        more = f" and {len(twice) - _WARNINGS_SHOWN} more" if len(twice) > _WARNINGS_SHOWN else ""
        shown = ", ".join(twice[:_WARNINGS_SHOWN])
        check.warnings.append(f"the same parameters with the same seed run once; given again at {shown}{more}")
    return tuple(
        Group(i, key, params, tuple(seeds)) for i, (key, (params, seeds)) in enumerate(groups.items())
    )


def _sets(check: _Check, sets: list[Any]) -> Iterator[tuple[Params, int | None, str]]:
    """Yield the parameters of each good entry, its own seed, and its path."""
    for i, entry in enumerate(sets):
        path = f"$.parameter_sets[{i}]"
        if not isinstance(entry, dict):
            check.add(path, f"{_called(entry)} is not an object of parameters like {{\"beta\": 0.3}}")
            continue
        wrapped = isinstance(entry.get("params"), dict)
        before = len(check.problems)
        seed = _seed(check, path, entry) if wrapped else None
        params = _params(check, f"{path}.params" if wrapped else path, entry["params"] if wrapped else entry)
        if len(check.problems) == before:
            yield params, seed, path


def _seed(check: _Check, path: str, entry: Mapping[str, Any]) -> int | None:
    for key in entry:
        if key not in ("params", "seed"):
            check.add(f"{path}.{key}", "unknown key beside 'params'; an entry is {\"params\": {...}, \"seed\": 7}")
    seed = entry.get("seed")
    if seed is None:
        return None
    if isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < SEED_LIMIT:
        return seed
    check.add(f"{path}.seed", f"{_called(seed)} is not an integer from 0 to 2^64 - 1")
    return None


def _params(check: _Check, path: str, params: Mapping[str, Any]) -> Params:
    if not params:
        check.add(path, "no parameters; give at least one, like {\"beta\": 0.3}")
    for name, value in params.items():
        if not name:
            check.add(path, "a parameter's name is empty")
        elif not isinstance(value, bool | int | float | str):
            check.add(f"{path}.{name}", f"{_called(value)} cannot be a parameter; use a bool, a number or a string")
        elif isinstance(value, float) and not math.isfinite(value):
            check.add(f"{path}.{name}", f"{value} is not finite; a parameter is a finite number")
        elif isinstance(value, str) and not value.isprintable() and not _encodes(value):
            check.add(f"{path}.{name}", "this string cannot be written as UTF-8")
    return dict(params)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, as "\ud800" in JSON
        return False
    return True


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
