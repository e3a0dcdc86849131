"""Sobol indices of the parameters, by SALib, if the parameter sets are a Saltelli design.

The first-order index is that of Saltelli et al. (2010), the total index that of Jansen (1999). The intervals are
those of SALib: the bootstrap over the blocks gives a standard error, and an interval is symmetric around its index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import UsageError
from mops.figures.columns import Floats, Integers, nullable, numbers
from mops.units import counted

LEAST_BLOCKS = 8  # the fewest blocks with which mops calculates indices; with fewer, the intervals would mean nothing

_RESAMPLES = 200  # SALib holds the values of all resamples at once
_ORDERS = ("first", "total")
_EQUAL = 1e-12  # a smaller relative difference of values is a rounding error


@dataclass(frozen=True)
class SaltelliDesign:
    """Parameter sets in blocks of A, AB_1 to AB_d, and B, for ``d`` parameters."""

    # A and B are independent random parameter sets, and AB_i is A with parameter ``i`` of B. A block may also have BA_1
    # to BA_d before B: BA_i is B with parameter ``i`` of A. mops does not use BA_i for the indices.
    parameters: tuple[str, ...]  # that vary, in the order of the sets of a block
    n_blocks: int
    size: int  # the sets of a block: ``d + 2`` or ``2 d + 2``


def saltelli_design(parameters: pa.Table) -> SaltelliDesign | None:
    """Return the Saltelli design of the parameters of groups 0, 1, ...; None: they are no such design."""
    codes = {name: _codes(parameters[name]) for name in parameters.column_names}
    varying = tuple(name for name, code in codes.items() if len(code) and code.max() > 0)
    d, n = len(varying), len(parameters)
    for size in (d + 2, 2 * d + 2):
        if d > 1 and n and n % size == 0:
            blocks = np.column_stack([codes[name] for name in varying]).reshape(-1, size, d)
            if _is_saltelli(blocks):
                return SaltelliDesign(varying, n // size, size)
    return None


def _codes(column: pa.ChunkedArray) -> Integers:
    """Return a number for each value; equal values have equal numbers, from 0."""
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    found: Integers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _is_saltelli(blocks: Integers) -> bool:
    n, size, d = blocks.shape
    a, b, is_i = blocks[:, :1], blocks[:, -1:], np.eye(d, dtype=bool)
    ab, ba = blocks[:, 1 : d + 1], blocks[:, d + 1 : -1]
    if not np.array_equal(ab, np.where(is_i, b, a)):
        return False
    if size > d + 2 and not np.array_equal(ba, np.where(is_i, a, b)):
        return False
    # The sets of a grid can form these blocks too, but the values of a random design hardly repeat.
    return all(len(np.unique(blocks[:, [0, -1], i])) > n for i in range(d))


@dataclass(frozen=True)
class Sobol:
    """The Sobol indices of each parameter for each measure."""

    design: SaltelliDesign
    # Two rows for each measure and parameter. ``order`` is ``first``: the share of the variance of the measure that the
    # parameter causes alone, or ``total``: together with the other parameters. ``index`` is null if the measure does
    # not vary, or has fewer than 8 complete blocks, in which each set has a finite value. ``low`` and ``high`` are the
    # ends of the 95 % interval; null with ``index``. ``blocks`` counts the complete blocks.
    table: pa.Table

    @property
    def measures(self) -> list[str]:
        """The measures that have indices."""
        found: list[str] = self.table.filter(self.table["index"].is_valid())["measure"].unique().to_pylist()
        return found

    @property
    def notes(self) -> list[str]:
        """Which measures have no indices."""
        names = [name for name in self.table["measure"].unique().to_pylist() if name not in self.measures]
        why = "because the values do not vary, or too few blocks are complete"
        return [f"No indices, {why}: {', '.join(names)}."] if names else []

    def caption(self, measure: str) -> str:
        """Return what the figure of a measure shows."""
        n = self.table.filter(pc.equal(self.table["measure"], measure))["blocks"][0].as_py()
        every = self.design.n_blocks
        left_out = (
            f" {every - n:,} of the {every:,} blocks are left out, because a set of them has no value. If these sets "
            "are not a random choice, the indices are biased."
            if n < every
            else ""
        )
        return (
            f"First-order indices (Saltelli et al. 2010) and total indices (Jansen 1999) over {counted(n, 'block')} of "
            f"{self.design.size} parameter sets, with intervals of 95 % by bootstrap.{left_out}"
        )


def sobol(design: SaltelliDesign, sets: pa.Table, measures: Sequence[str]) -> Sobol:
    """Return the Sobol indices of each parameter for each measure: a column of ``sets``, next to ``group``."""
    groups = sets["group"].to_numpy()
    tables = [_SCHEMA.empty_table()]
    for measure in measures:
        values = np.full(design.n_blocks * design.size, np.nan)
        values[groups] = numbers(sets[measure])
        blocks = values.reshape(design.n_blocks, design.size)
        tables.append(_of_measure(design, measure, blocks[np.isfinite(blocks).all(axis=1)]))
    return Sobol(design, pa.concat_tables(tables))


_SCHEMA = pa.schema(
    [
        pa.field("measure", pa.string()),
        pa.field("parameter", pa.string()),
        pa.field("order", pa.string()),
        pa.field("index", pa.float64()),
        pa.field("low", pa.float64()),
        pa.field("high", pa.float64()),
        pa.field("blocks", pa.int64()),
    ]
)


def _of_measure(design: SaltelliDesign, measure: str, blocks: Floats) -> pa.Table:
    d = len(design.parameters)
    index, half = np.full(2 * d, np.nan), np.full(2 * d, np.nan)
    own = np.delete(blocks, slice(d + 1, -1), axis=1)  # without BA_1 to BA_d, which only second-order indices need
    scale = np.abs(own).max(initial=0.0)
    if len(own) >= LEAST_BLOCKS and scale > 0 and np.ptp(own[:, [0, -1]] / scale) > _EQUAL:
        found = _salib()(
            {"num_vars": d, "names": list(design.parameters)},
            (own / scale).ravel(),
            calc_second_order=False,
            num_resamples=_RESAMPLES,
            seed=1,
        )
        index = np.concatenate([found["S1"], found["ST"]])
        half = np.concatenate([found["S1_conf"], found["ST_conf"]])
    columns = [
        pa.array([measure] * 2 * d, pa.string()),
        pa.array(list(design.parameters) * 2, pa.string()),
        pa.array([order for order in _ORDERS for _ in design.parameters], pa.string()),
        nullable(index),
        nullable(index - half),
        nullable(index + half),
        pa.array([len(blocks)] * 2 * d, pa.int64()),
    ]
    return pa.table(columns, schema=_SCHEMA)


def _salib() -> Callable[..., Mapping[str, Floats]]:
    try:
        from SALib.analyze import sobol as salib  # noqa: PLC0415 - an optional extra, which takes a second
    except ModuleNotFoundError as missing:
        if missing.name != "SALib":
            raise
        hint = "pip install 'mops-runner[sobol]'"
        raise UsageError(
            "no Sobol indices: SALib is not installed", where="this Python environment", hint=hint
        ) from None
    analyze: Callable[..., Mapping[str, Floats]] = salib.analyze
    return analyze
