"""Narrows a space to the surroundings of some parameter sets, such as the best of a job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mops.errors import UsageError
from mops.study.sampling.space import Choice, Range, Space

_MARGIN = 0.25  # how far a narrowed range reaches beyond the sets on each side, as a share of their spread

_LEAST_MARGIN = 0.01  # the least margin, as a share of the whole range: sets with equal values get a range around them


def narrowed(space: Space, sets: Sequence[Mapping[str, Any]], *, where: str) -> Space:
    """Return the part of a space that holds these sets, at least one, with a margin around them."""
    # A range becomes the range of their values and a margin, and never exceeds the space. A list keeps the values that
    # some set has.
    return {name: _narrowed(name, entry, [each.get(name) for each in sets], where) for name, entry in space.items()}


def _narrowed(name: str, entry: Choice | Range, values: Sequence[Any], where: str) -> Choice | Range:
    if isinstance(entry, Range):
        inside = [value for value in values if _is_number(value) and entry.low <= value <= entry.high]
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
