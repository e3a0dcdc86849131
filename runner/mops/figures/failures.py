"""Where in the parameter space simulations fail: the share of failed parameter sets in each bin of each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from mops.figures.bins import Bins, bins_for, bins_of, cells, pair_bins_for
from mops.figures.columns import Flags, Floats, Integers, nullable

MOST_CAUSES = 8
_Z95 = 1.959964


@dataclass(frozen=True)
class FailedSets:
    """The parameter sets with failures of one cause."""

    cause: str  # the first line of the message
    verdict: str
    n: int  # the failures: simulations, or scores of a target
    groups: Integers = field(repr=False)  # that have one


@dataclass(frozen=True)
class FailureBins:
    """The failed sets in each bin of each parameter."""

    # All causes, the most frequent first. Cause ``0`` of the table has the sets with any failure, cause ``i`` is
    # ``causes[i - 1]``. The table has the first 8 causes.
    causes: tuple[FailedSets, ...]
    bins: dict[str, Bins]  # of each parameter with more than one value, over all sets that have run
    # A row for each cause, parameter and bin. ``failed`` and ``sets`` count the sets that have such a failure, and all
    # that have run. ``share`` is failed of sets, and ``share_low`` and ``share_high`` are the ends of its interval of
    # 95 % (Wilson); null without sets.
    table: pa.Table
    n_failed: int  # the sets with any failure
    n_sets: int  # all sets that have run


def failure_bins(
    failed: Sequence[FailedSets], parameters: pa.Table, has_run: Flags, most: int | None = None
) -> FailureBins:
    """Return the failed sets in each bin of each parameter."""
    # ``failed``: The most frequent first. All count for the sets with any failure, and the first 8 by themselves.
    # ``parameters``: row ``i`` has the parameters of group ``i``
    # ``most``: the most bins of a parameter; None: by the number of sets that have run, at most 20
    flags = _flags(failed, failed[:MOST_CAUSES], len(parameters))
    bins, tables = {}, []
    for name in parameters.column_names:
        run = parameters[name].filter(pa.array(has_run))
        of = bins_of(name, run, most or bins_for(len(run), 20))
        if len(of) > 1:
            bins[name] = of
            tables.append(_of_parameter(of, of.index(parameters[name]), flags, has_run))
    table = pa.concat_tables(tables) if tables else FAILURE_BINS.empty_table()
    return FailureBins(tuple(failed), bins, table, int((flags[0] & has_run).sum()), int(has_run.sum()))


FAILURE_BINS = pa.schema(
    [
        pa.field("cause", pa.int32()),
        pa.field("parameter", pa.string()),
        pa.field("bin", pa.int32()),
        pa.field("label", pa.string()),
        pa.field("low", pa.float64()),
        pa.field("high", pa.float64()),
        pa.field("failed", pa.int64()),
        pa.field("sets", pa.int64()),
        pa.field("share", pa.float64()),
        pa.field("share_low", pa.float64()),
        pa.field("share_high", pa.float64()),
    ]
)


def wilson(failed: Integers, sets: Integers) -> tuple[Floats, Floats]:
    """Return the ends of the interval of 95 % of shares, by Wilson's score; NaN without sets."""
    n = np.where(sets > 0, sets, np.nan)
    share = failed / n
    middle = share + _Z95**2 / (2 * n)
    half = _Z95 * np.sqrt(share * (1 - share) / n + _Z95**2 / (4 * n**2))
    whole = 1 + _Z95**2 / n
    low, high = (middle - half) / whole, (middle + half) / whole
    return np.where(failed == 0, low * 0, low), np.where(failed == sets, high * 0 + 1, high)


@dataclass(frozen=True)
class FailureMap:
    """The failed sets in each cell of two parameters."""

    x: Bins
    y: Bins
    table: pa.Table  # a row for each cell, also without sets, whose ``share`` is null


def failure_map(found: FailureBins, parameters: pa.Table, has_run: Flags, x: str, y: str, cause: int = 0) -> FailureMap:
    """Return the failed sets in each cell of two parameters, for a number of a cause, or 0 for any failure."""
    of_any = found.causes if cause == 0 else [found.causes[cause - 1]]
    is_failed = _flags(of_any, (), len(parameters))[0]
    # Wider bins than those of one parameter, as for pairs of losses, so that most cells have some sets.
    most = pair_bins_for(int(has_run.sum()))
    x_bins, y_bins = (bins_of(name, parameters[name].filter(pa.array(has_run)), most) for name in (x, y))
    nx, ny = len(x_bins), len(y_bins)
    rows, cell = cells(x_bins.index(parameters[x]), y_bins.index(parameters[y]), nx, ny)
    run = has_run[rows]
    sets = np.bincount(cell[run], minlength=nx * ny).astype(np.int64)
    failed = np.bincount(cell[run & is_failed[rows]], minlength=nx * ny).astype(np.int64)
    x_labels, y_labels = x_bins.labels(), y_bins.labels()
    columns = {
        "x_bin": pa.array(np.arange(nx * ny) % nx, pa.int32()),
        "y_bin": pa.array(np.arange(nx * ny) // nx, pa.int32()),
        "x_label": pa.array(x_labels * ny),
        "y_label": pa.array([label for label in y_labels for _ in range(nx)]),
        "failed": pa.array(failed),
        "sets": pa.array(sets),
        "share": nullable(np.divide(failed, sets, out=np.full(nx * ny, np.nan), where=sets > 0)),
    }
    return FailureMap(x_bins, y_bins, pa.table(columns))


def _flags(failed: Sequence[FailedSets], causes: Sequence[FailedSets], n: int) -> list[Flags]:
    """Return which groups have any failure, then those of each cause."""
    every = np.zeros(n, bool)
    for one in failed:
        every[one.groups] = True
    found = [every]
    for cause in causes:
        mask = np.zeros(n, bool)
        mask[cause.groups] = True
        found.append(mask)
    return found


def _of_parameter(bins: Bins, index: Integers, flags: Sequence[Flags], has_run: Flags) -> pa.Table:
    inside = has_run & (index >= 0)
    sets = np.bincount(index[inside], minlength=len(bins)).astype(np.int64)
    tables = []
    for cause, mask in enumerate(flags):
        failed = np.bincount(index[inside & mask], minlength=len(bins)).astype(np.int64)
        share = np.divide(failed, sets, out=np.full(len(bins), np.nan), where=sets > 0)
        of = bins.table()
        columns = [
            pa.array([cause] * len(bins), pa.int32()),
            pa.array([bins.name] * len(bins), pa.string()),
            *of.columns,
            pa.array(failed),
            pa.array(sets),
            nullable(share),
            *map(nullable, wilson(failed, sets)),
        ]
        tables.append(pa.table(columns, schema=FAILURE_BINS))
    return pa.concat_tables(tables)
