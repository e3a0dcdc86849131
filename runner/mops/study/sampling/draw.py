"""Draws parameter sets from a space: Sobol, Latin hypercube, or the full grid. Also has the prior of a parameter.

The same seed gives the same sets. Only this module imports scipy, at its first use: the import takes half a second, and
the cluster's image has no scipy.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Iterator, Sequence
from decimal import Decimal, localcontext
from enum import StrEnum
from fractions import Fraction
from itertools import accumulate, repeat
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mops.errors import Problem, StudyError, UsageError
from mops.study.checks import json_path, shown
from mops.study.sampling.space import Choice, Range, Space

SETS_LIMIT = 10_000_000

Floats = npt.NDArray[np.float64]


class Method(StrEnum):
    """How mops draws sets."""

    SOBOL = "sobol"
    LHS = "lhs"
    GRID = "grid"


def draw(space: Space, method: Method, *, n: int | None, seed: int, where: str) -> pa.Table:
    """Return parameter sets: a column for each parameter, a row for each set. StudyError lists all problems."""
    # The size of a grid follows from the space. A grid ignores the seed.
    if method is Method.GRID:
        return _grid(space, where)
    if n is None:
        raise UsageError(f"'{method}' needs the number of sets", where="-n", hint="add -n, like -n 1024")
    check_n_sets(n, "-n")
    return sets_at(space, unit_points(space, method, n=n, seed=seed, where=where))


def check_n_sets(n: int, where: str) -> None:
    """Raise UsageError if a sample cannot have this many sets."""
    if not 1 <= n <= SETS_LIMIT:
        raise UsageError(f"{n:,} is not a possible number of sets", where=where, hint=f"choose 1 to {SETS_LIMIT:,}")


def varying(space: Space) -> list[str]:
    """Return the names of the parameters that have more than one value: the axes of the unit cube."""
    return [name for name, entry in space.items() if isinstance(entry, Range) or len(entry.values) > 1]


def unit_points(space: Space, method: Method, *, n: int, seed: int, where: str) -> Floats:
    """Return points of the unit cube, a row for each set and a column for each parameter that varies."""
    n_axes = len(varying(space))
    message = ""
    if not n_axes:
        message = "nothing varies"
    elif n_axes > (most := _qmc().Sobol.MAXDIM):
        message = f"{n_axes:,} parameters vary; the limit is {most:,}"
    if message:
        raise _unfit([Problem("$", f"{message}; give ranges, or lists of values")], method, where)
    rng = np.random.default_rng(seed)
    if method is Method.LHS:
        return np.asarray(_qmc().LatinHypercube(n_axes, rng=rng).random(n), dtype=np.float64)
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # n is no power of two: the user's choice
        return np.asarray(_qmc().Sobol(n_axes, scramble=True, rng=rng).random(n), dtype=np.float64)


def sets_at(space: Space, points: Floats) -> pa.Table:
    """Return the sets at points of the unit cube, in which every set of the space is equally likely."""
    unit = dict(zip(varying(space), points.T, strict=True))
    zeros = np.zeros(len(points))
    columns = [_column(entry, unit.get(name, zeros)) for name, entry in space.items()]
    return pa.table(columns, names=list(space))


def _qmc() -> Any:
    try:
        return importlib.import_module("scipy.stats.qmc")
    except ImportError as missing:
        raise UsageError(
            f"drawing parameter sets needs scipy ({missing})",
            hint="pip install scipy; the cluster's image has no scipy, so draw sets on your own machine",
        ) from missing


def _column(entry: Choice | Range, unit: Floats) -> pa.Array:
    if isinstance(entry, Choice):
        at_value = np.minimum((unit * len(entry.values)).astype(np.int64), len(entry.values) - 1)
        return column_of(entry.values).take(pa.array(at_value))
    # Integers are the floors of numbers below max + 1, so that each has a share of the same width.
    low, high = float(entry.low), float(entry.high) + entry.is_int
    if entry.is_log:
        values = np.exp(math.log(low) + unit * (math.log(high) - math.log(low)))
    else:
        values = low + unit * (high - low)
    if entry.is_int:
        return pa.array(np.clip(np.floor(values).astype(np.int64), int(entry.low), int(entry.high)))
    return pa.array(np.clip(values, low, high))


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


def column_of(values: Sequence[Any]) -> pa.Array:
    """Return values of a parameter as a column."""
    is_unsigned = any(isinstance(value, int) and value >= 2**63 for value in values)
    return pa.array(values, pa.uint64() if is_unsigned else None)


def _grid(space: Space, where: str) -> pa.Table:
    """Return every combination. The last parameter varies fastest."""
    lacking = [name for name, entry in space.items() if isinstance(entry, Range) and not _n_points(entry)]
    if lacking:
        problems = [
            Problem(json_path("$", name), "has no 'points': give the number of values for a grid") for name in lacking
        ]
        raise _unfit(problems, Method.GRID, where)
    sizes = [_n_points(entry) if isinstance(entry, Range) else len(entry.values) for entry in space.values()]
    n = math.prod(sizes)
    if n > SETS_LIMIT:
        message = f"the grid has {' x '.join(map(str, sizes))} = {n:,} sets; {SETS_LIMIT:,} is the most"
        raise _unfit([Problem("$", message)], Method.GRID, where)
    axes = [_axis(entry) for entry in space.values()]
    n = math.prod(map(len, axes))
    columns, inner = [], n
    for axis in axes:
        inner //= len(axis)
        columns.append(axis.take(pa.array(np.arange(n) // inner % len(axis))))
    return pa.table(columns, names=list(space))


def _n_points(entry: Range) -> int:
    """Return the greatest number of values that a grid has of a range; 0: the range does not say."""
    if entry.is_int:
        whole = int(entry.high) - int(entry.low) + 1
        return min(entry.points or whole, whole)
    return entry.points or 0


def _axis(entry: Choice | Range) -> pa.Array:
    if isinstance(entry, Choice):
        return column_of(entry.values)
    n = _n_points(entry)
    values = np.array(list(_decades(entry, n) if entry.is_log else _steps(entry, n)))
    return pa.array(np.unique(np.rint(values).astype(np.int64))) if entry.is_int else pa.array(values)


def _steps(entry: Range, n: int) -> Iterator[float]:
    """Yield evenly spread values: the floats nearest to the exact ones between the bounds as they are written."""
    low, high = (Fraction(repr(bound)) for bound in (entry.low, entry.high))
    whole = math.lcm(low.denominator, high.denominator)
    first, last = int(low * whole), int(high * whole)
    return ((first * (n - 1 - i) + last * i) / (whole * (n - 1)) for i in range(n))


def _decades(entry: Range, n: int) -> Iterator[float]:
    """Yield values of equal ratios, as :func:`_steps` does; the first and the last are the bounds."""
    with localcontext(prec=50):
        low, high = (Decimal(repr(bound)) for bound in (entry.low, entry.high))
        ratio = (high / low) ** (Decimal(1) / (n - 1))
        inner = list(accumulate(repeat(ratio, n - 2), mul, initial=low))
    return map(float, (*inner, high))


def _unfit(problems: list[Problem], method: Method, where: str) -> StudyError:
    return StudyError(f"the space cannot be sampled by '{method}'", shown(problems), where=where)
