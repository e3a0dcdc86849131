"""Checks the space from which mops samples parameter sets, reports every problem at once, and narrows spaces.

A space is a JSON object: each parameter has a value (``3``), a list of values (``{"values": [1, 2]}``) or a range
(``{"min": 0.1, "max": 0.5}``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mops.errors import StudyError, UsageError, known_name
from mops.study.checks import SEED, Checks, Value, json_path, json_text, name_fault, value_fault

VALUES_KEYS = ("values",)
RANGE_KEYS = ("min", "max", "type", "scale", "points")
TYPES = ("float", "int")
SCALES = ("linear", "log")

_KEYS = (*VALUES_KEYS, *RANGE_KEYS)
_INT_LIMIT = 2**53
_MARGIN = 0.25  # how far a narrowed range reaches beyond the sets on each side, as a share of their spread
_LEAST_MARGIN = 0.01  # the least margin, as a share of the whole range: sets with equal values get a range around them
_SEED_NAME = (
    "is the column of seeds in files of parameter sets, and the model gets a seed for each replicate; give the "
    "parameter another name"
)
_FORMS = 'write a value, {"values": [...]} or {"min": ..., "max": ...}'


@dataclass(frozen=True)
class Choice:
    """One of these values, which have the same type. A fixed parameter has one value."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included."""

    low: float
    high: float
    is_int: bool = False
    is_log: bool = False  # whether the logarithms are evenly spread
    points: int | None = None  # the number of values in a grid; None: not given, or every integer


Space = dict[str, Choice | Range]


def n_different_sets(space: Space) -> int | None:
    """Return how many different sets a space has; None: a range of floats has no end of them."""
    if any(isinstance(entry, Range) and not entry.is_int for entry in space.values()):
        return None
    return math.prod(
        len(entry.values) if isinstance(entry, Choice) else int(entry.high) - int(entry.low) + 1
        for entry in space.values()
    )


def parse_space(data: object, *, where: str) -> Space:
    """Check decoded JSON and return the space, in the file's order. StudyError lists all problems."""
    check = Checks()
    space: Space = {}
    if not isinstance(data, dict) or not data:
        check.add("$", f'a space is a JSON object like {{"beta": {{"min": 0.1, "max": 0.5}}}}, not {json_text(data)}')
    else:
        for name, entry in data.items():
            path = json_path("$", name)
            if fault := name_fault(name):
                check.add(path, fault)
            if name == SEED:
                check.add(path, _SEED_NAME)
            found = _parameter(check, path, entry)
            if found is not None:
                space[name] = found
    if check.n_problems:
        raise StudyError("the space is not valid", check.shown(), where=where)
    return space


def _parameter(check: Checks, path: str, entry: object) -> Choice | Range | None:
    if not isinstance(entry, dict):
        fault = (
            f"{json_text(entry)} is not a parameter; {_FORMS}" if isinstance(entry, list | None) else value_fault(entry)
        )
        if not fault and isinstance(entry, int) and not _fits_a_column(entry, entry):
            fault = "is an integer beyond 64 bits; write it as a string"
        if fault:
            check.add(path, fault)
        return None if fault else Choice((entry,))  # type: ignore[arg-type]
    before = check.n_problems
    _check_keys(check, path, entry)
    if check.n_problems > before:
        return None
    return _choice(check, path, entry) if "values" in entry else _range(check, path, entry)


def _check_keys(check: Checks, path: str, entry: Mapping[str, Any]) -> None:
    for key in entry:
        if key not in _KEYS:
            meant = known_name(key, _KEYS, f"a parameter has {', '.join(map(repr, _KEYS))}")
            check.add(json_path(path, key), f"unknown key; {meant}")
    ours = [key for key in RANGE_KEYS if key in entry]
    if "values" in entry and ours:
        check.add(json_path(path, ours[0]), "belongs to a range and not to a list of values; keep one of the two")
    missing = [key for key in ("min", "max") if key not in entry]
    if "values" not in entry and missing:
        check.add(path, f"{' and '.join(map(repr, missing))} missing; {_FORMS}")


def _choice(check: Checks, path: str, entry: Mapping[str, Any]) -> Choice | None:
    values = entry["values"]
    if not isinstance(values, list) or not values:
        check.add(f"{path}.values", f"{json_text(values)} is not a non-empty list of values")
        return None
    before = check.n_problems
    for i, value in enumerate(values):
        if fault := value_fault(value):
            check.add(f"{path}.values[{i}]", fault)
    if check.n_problems > before:
        return None
    if {type(value) for value in values} == {int, float}:
        if too_large := [i for i, value in enumerate(values) if abs(value) > sys.float_info.max]:
            check.add(f"{path}.values[{too_large[0]}]", "is too large for a float, and the list has floats")
            return None
        values = [float(value) for value in values]  # so that the parameter has the same type in every set
    if len({type(value) for value in values}) > 1:
        check.add(f"{path}.values", "are of several types; write only booleans, only numbers or only strings")
    elif len(set(values)) < len(values):
        twice = next(value for i, value in enumerate(values) if value in values[:i])
        check.add(f"{path}.values", f"{json_text(twice)} appears twice; keep one")
    elif isinstance(values[0], int) and not _fits_a_column(min(values), max(values)):
        check.add(f"{path}.values", "hold an integer beyond 64 bits; write it as a string")
    return Choice(tuple(values))


def _fits_a_column(low: int, high: int) -> bool:
    """Tell whether all integers between two fit into a column of 64 bits, with or without a sign."""
    return (low >= 0 and high < 2**64) or (low >= -(2**63) and high < 2**63)


def _range(check: Checks, path: str, entry: Mapping[str, Any]) -> Range | None:
    before = check.n_problems
    is_int = _one_of(check, path, entry, "type", TYPES) == "int"
    is_log = _one_of(check, path, entry, "scale", SCALES) == "log"
    for key in ("min", "max"):
        if fault := _bound_fault(entry[key], is_int=is_int):
            check.add(f"{path}.{key}", fault)
    points = entry.get("points")
    if points is not None and (not isinstance(points, int) or isinstance(points, bool) or points < 2):
        check.add(f"{path}.points", f"{json_text(points)} is not an integer of at least 2")
    if check.n_problems > before:
        return None
    low, high = entry["min"], entry["max"]
    if not low < high:
        check.add(
            path,
            f"'min' is {json_text(low)} and 'max' {json_text(high)}; 'min' must be less (or write one value)",
        )
    elif is_log and low <= 0:
        check.add(f"{path}.min", f"{json_text(low)} has no logarithm; 'min' must be above 0 when 'scale' is 'log'")
    elif not math.isfinite(high - low):
        check.add(path, "'max' - 'min' is more than a float can hold")
    return Range(low, high, is_int, is_log, points)


def _one_of(check: Checks, path: str, entry: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    value = entry.get(key, known[0])
    if value not in known:
        check.add(f"{path}.{key}", f"{json_text(value)} is not {' or '.join(map(repr, known))}")
    return str(value)


def _bound_fault(value: object, *, is_int: bool) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{json_text(value)} is not a number"
    if is_int and not (isinstance(value, int) and abs(value) <= _INT_LIMIT):
        return f"{json_text(value)} is not an integer of at most 2^53, and 'type' is 'int'"
    return value_fault(float(value)) if abs(value) < 1e308 else f"{json_text(value)} is too large"


def narrowed(space: Space, sets: Sequence[Mapping[str, Any]], *, where: str) -> Space:
    """Return the part of a space that holds these sets, at least one, with a margin around them."""
    # A range becomes the range of their values and a margin, and never exceeds the space. A list keeps the values that
    # some set has.
    return {name: _narrowed(name, entry, [each.get(name) for each in sets], where) for name, entry in space.items()}


def _narrowed(name: str, entry: Choice | Range, values: Sequence[Any], where: str) -> Choice | Range:
    if isinstance(entry, Range):
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        inside = [value for value in numbers if entry.low <= value <= entry.high]
    else:
        inside = [value for value in values if value in entry.values]
    if len(inside) < len(values):
        raise UsageError(
            f"{len(values) - len(inside)} of the {len(values)} sets have a value of {name!r} that the space lacks",
            where=where,
            hint="use a space that holds the sets of the job",
        )
    if isinstance(entry, Choice):
        return Choice(tuple(value for value in entry.values if value in inside))
    return _surroundings(entry, min(inside), max(inside))


def _surroundings(entry: Range, low: float, high: float) -> Range:
    scaled, unscaled = (math.log, math.exp) if entry.is_log else (float, float)
    whole = scaled(entry.high) - scaled(entry.low)
    margin = max(_MARGIN * (scaled(high) - scaled(low)), _LEAST_MARGIN * whole)
    lowest = max(unscaled(scaled(low) - margin), entry.low)
    highest = min(unscaled(scaled(high) + margin), entry.high)
    if entry.is_int:
        lowest, highest = max(math.floor(lowest), int(entry.low)), min(math.ceil(highest), int(entry.high))
    return replace(entry, low=lowest, high=highest)


def space_json(space: Space) -> dict[str, Any]:
    """Return a space as it would be written in space.json."""
    return {name: _json(entry) for name, entry in space.items()}


def _json(entry: Choice | Range) -> Any:
    if isinstance(entry, Choice):
        return entry.values[0] if len(entry.values) == 1 else {"values": list(entry.values)}
    found: dict[str, Any] = {"min": entry.low, "max": entry.high}
    found |= {"type": "int"} if entry.is_int else {}
    found |= {"scale": "log"} if entry.is_log else {}
    return found | ({"points": entry.points} if entry.points else {})
