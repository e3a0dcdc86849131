"""The Pareto set of a calibration with several objectives: a figure for each pair of them, and a table."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pyarrow as pa

from mops.calibration.calibration import Calibration
from mops.report.content import Block, Figure, Gallery, Key
from mops.report.drawing.axes import values
from mops.report.drawing.look import PALE, VERMILION
from mops.report.numbers import cell
from mops.units import counted, shortened

_OBJECTIVES_SHOWN = 4
_SETS_SHOWN = 20
_MARGIN = {"zero": False, "padding": 6}


def pareto(found: Calibration) -> list[Gallery | Block]:
    """Return the figures and the table; empty: no set has losses."""
    places = found.pareto_places()
    if not places:
        return []
    table = found.trials()
    shown = found.objectives[:_OBJECTIVES_SHOWN]
    figures = [_figure(table, places, x, y) for x, y in combinations(shown, 2)]
    return [Gallery(figures), Block("table", _sets(found, table.take(pa.array(places, pa.int64()))))]


def _figure(table: pa.Table, places: list[int], x: str, y: str) -> Figure:
    is_best = set(places)
    rows = [
        {"x": at_x, "y": at_y, "pareto": place in is_best}
        for place, (at_x, at_y) in enumerate(zip(table[x].to_pylist(), table[y].to_pylist(), strict=True))
        if at_x is not None and at_y is not None
    ]
    best = sorted(
        ({"x": row["x"], "y": row["y"]} for row in rows if row["pareto"]), key=lambda row: (row["x"], row["y"])
    )
    encoding = {
        "x": {"field": "x", "type": "quantitative", "title": shortened(x, 40), "scale": _MARGIN},
        "y": {"field": "y", "type": "quantitative", "title": shortened(y, 40), "scale": _MARGIN},
    }
    layers: list[dict[str, Any]] = [
        {**values(rows), "mark": {"type": "circle", "color": PALE, "size": 18, "opacity": 0.8}, "encoding": encoding},
        {
            **values(best),
            "mark": {"type": "circle", "color": VERMILION, "size": 36, "opacity": 1},
            "encoding": encoding,
        },
    ]
    only_two = all(one["y"] >= other["y"] for one, other in pairwise(best))
    others = "" if only_two else " A set of the Pareto set that looks beaten here is better in another objective."
    caption = (
        f"The losses {shortened(x, 60)} and {shortened(y, 60)} of each trial. No other set beats a set of the Pareto "
        f"set, which means that none of its losses is larger and one is smaller.{others}"
    )
    alt = f"{counted(len(best), 'set')} of {counted(len(rows), 'trial')} are in the Pareto set."
    data = pa.Table.from_pylist(rows).rename_columns([x, y, "pareto"])
    keys = [Key(PALE, "a trial"), Key(VERMILION, "Pareto set")]
    title = f"Pareto set: {shortened(x, 24)} and {shortened(y, 24)}"
    return Figure(title, caption, alt, {"layer": layers}, data, keys, height=240)


def _sets(found: Calibration, best: pa.Table) -> dict[str, Any]:
    rows = best[:_SETS_SHOWN].to_pylist()
    columns = {name: f"param.{name}" if f"param.{name}" in best.column_names else name for name in found.varying}
    more = f" These are the first {_SETS_SHOWN} of {len(best):,}." if len(best) > _SETS_SHOWN else ""
    return {
        "caption": f"The Pareto set, in the order of {shortened(found.objectives[0], 60)}.{more}",
        "head": [*found.objectives, *found.varying],
        "rows": [
            [*(cell(row[name]) for name in found.objectives), *(cell(row[column]) for column in columns.values())]
            for row in rows
        ],
    }
