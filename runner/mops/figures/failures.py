"""Where in the parameter space simulations fail: the share of failed parameter sets in each bin of each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mops.figures.bins import Bins, bins_for, bins_of
from mops.figures.columns import Flags, Integers, nullable

MOST_CAUSES = 8


@dataclass(frozen=True)
class FailureBins:
    """The failed sets in each bin of each parameter."""

    causes: list[str]  # what people call each cause, the most frequent first
    bins: dict[str, Bins]  # of each parameter with more than one value, over all sets that have run
    # A row for each cause, parameter and bin. Cause ``0`` has the sets with any failure, cause ``i`` is
    # ``causes[i - 1]``, up to the eighth. ``failed`` and ``sets`` count the sets that have such a failure, and all
    # that have run. ``share`` is failed of sets; null without sets.
    table: pa.Table
    has_failed: Flags  # whether each group has run and has any failure
    n_sets: int  # all sets that have run

    @property
    def n_failed(self) -> int:
        """The number of sets with any failure."""
        return int(self.has_failed.sum())


def failure_bins(
    failed: Sequence[tuple[str, Integers]],  # of each cause, the most frequent first: its name, and the failed groups
    parameters: pa.Table,  # row ``i`` has the parameters of group ``i``
    has_run: Flags,
) -> FailureBins:
    """Return the failed sets in each bin of each parameter."""
    of_each = [groups for _, groups in failed]
    of_any = np.concatenate([np.empty(0, np.int64), *of_each])
    flags = [np.isin(np.arange(len(has_run)), groups) & has_run for groups in (of_any, *of_each[:MOST_CAUSES])]
    bins, tables = {}, []
    for name in parameters.column_names:
        run = parameters[name].filter(pa.array(has_run))
        of = bins_of(name, run, bins_for(len(run), 20))
        if len(of) > 1:
            bins[name] = of
            index = np.where(has_run, of.index(parameters[name]), -1)
            tables += [_of_cause(of, index, i, flag) for i, flag in enumerate(flags)]
    table = pa.concat_tables([FAILURE_BINS.empty_table(), *tables])
    return FailureBins([name for name, _ in failed], bins, table, flags[0], int(has_run.sum()))


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
    ]
)


def _of_cause(bins: Bins, index: Integers, cause: int, has_failed: Flags) -> pa.Table:
    inside = index >= 0
    sets = np.bincount(index[inside], minlength=len(bins)).astype(np.int64)
    failed = np.bincount(index[inside & has_failed], minlength=len(bins)).astype(np.int64)
    columns = [
        pa.array([cause] * len(bins), pa.int32()),
        pa.array([bins.name] * len(bins), pa.string()),
        *bins.table().columns,
        pa.array(failed),
        pa.array(sets),
        nullable(np.divide(failed, sets, out=np.full(len(bins), np.nan), where=sets > 0)),
    ]
    return pa.table(columns, schema=FAILURE_BINS)
