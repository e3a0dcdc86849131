"""The prior of a parameter: with which probability a set of the space has a value. draw.py draws from it."""

from __future__ import annotations

import numpy as np

from mops.study.sampling.draw import Floats
from mops.study.sampling.space import Choice, Range


def prior_mass_below(entry: Range, values: Floats) -> Floats:
    """Return the prior probability of a number that is less than each of these values."""
    # An integer is the floor of a number below max + 1.
    low, high = float(entry.low), float(entry.high) + entry.is_int
    at = np.clip(np.ceil(values) if entry.is_int else values, low, high)
    found: Floats = np.log(at / low) / np.log(high / low) if entry.is_log else (at - low) / (high - low)
    return found


def prior_mass_between(entry: Range, low: float, high: float) -> float:
    """Return the prior probability of a number from ``low`` to ``high``, both included."""
    at_most, below = prior_mass_below(entry, np.array([np.nextafter(high, np.inf), low]))
    return float(at_most - below)


def prior_text(entry: Choice | Range) -> str:
    """Return the prior in words."""
    if isinstance(entry, Choice):
        return f"the same for each of its {len(entry.values):,} values"
    kind = "log-uniform" if entry.is_log else "uniform"
    return f"{kind}{' over the integers' if entry.is_int else ''} from {entry.low:,g} to {entry.high:,g}"
