"""Which parameters the losses and the outputs depend on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mops.figures.sensitivity import LEAST_SETS, Sensitivity
from mops.figures.sobol import LEAST_BLOCKS, SaltelliDesign, Sobol
from mops.jobs.figure_data import measured_of, sensitivity_of, sobol_of
from mops.report.content import Block, Figure, Gallery, Key, Section
from mops.report.drawing.axes import values
from mops.report.drawing.look import AMBER, AXIS, BLUE, INK
from mops.report.facts import Facts
from mops.units import counted, shortened

_RANKS = (
    "Spearman's rank correlation of each parameter with each loss and result. At 1, the result rises whenever the "
    "parameter rises; at -1 it falls. The correlation misses influences that rise and fall again."
)
_OTHER_DESIGN = (
    " Sobol indices find these too: the report has them if the parameter sets are a Saltelli design whose parameters "
    "are continuous, as sobol.sample of SALib makes it, with all its sets in their order."
)
_PARAMETERS_SHOWN = 15
_ROW_HEIGHT, _WIDE_ROW_HEIGHT, _AXIS_HEIGHT = 24, 34, 58


def influence(facts: Facts) -> Section | None:
    """Return the section about sensitivity; None: the job has too few sets, or nothing to compare."""
    measured = measured_of(facts.data)
    found = sensitivity_of(measured)
    if found.n_sets < LEAST_SETS:
        return None
    notes = [Block("note", text) for text in (*found.notes, *measured.notes)]
    ranks = [figure for measure in measured.measures if (figure := _rank_figure(found, measure)) is not None]
    if not ranks:
        return Section("sensitivity", "Sensitivity", notes) if measured.notes else None
    indices = sobol_of(measured)
    if indices is None:
        intro = f"{_RANKS}{_OTHER_DESIGN}{_left_out(found)}{_proposal(facts)}"
        return Section("sensitivity", "Sensitivity", [Gallery(ranks), *notes], intro)
    shares = [figure for measure in measured.measures if (figure := _share_figure(indices, measure)) is not None]
    parts: list[Gallery | Block] = [Gallery(shares)] if shares else []
    parts += [Block("note", f"{_RANKS}{_left_out(found)}"), Gallery(ranks), *notes]
    return Section("sensitivity", "Sensitivity", parts, _sobol_intro(indices.design, has_indices=bool(shares)))


def _sobol_intro(design: SaltelliDesign, *, has_indices: bool) -> str:
    sets = f"The parameter sets are a Saltelli design: {counted(design.n_blocks, 'block')} of {design.size} sets."
    if not has_indices:
        return f"{sets} Sobol indices need at least {LEAST_BLOCKS} blocks whose sets all have a value."
    return (
        "Sobol indices say which share of the variance of a loss or a result a parameter causes: the first-order index "
        f"alone, the total index also together with other parameters. {sets}"
    )


def _left_out(found: Sensitivity) -> str:
    return f" Texts have no ranks: {', '.join(found.left_out)}." if found.left_out else ""


def _proposal(facts: Facts) -> str:
    found = facts.calibration
    if found is None or facts.data.name == f"{found.name}-r1":
        return ""
    return (
        " The sets of this round were drawn near the best sets of earlier rounds, so the correlations describe this "
        "choice of sets and not the whole space."
    )


def _share_figure(found: Sobol, measure: str) -> Figure | None:
    table: pa.Table = found.table.filter(pc.equal(found.table["measure"], measure))
    rows = [row for row in table.to_pylist() if row["index"] is not None]
    total = {row["parameter"]: row["index"] for row in rows if row["order"] == "total"}
    shown = sorted(total, key=lambda name: -total[name])[:_PARAMETERS_SHOWN]
    if not shown:
        return None
    first = next(row["index"] for row in rows if (row["parameter"], row["order"]) == (shown[0], "first"))
    alt = f"{shown[0]} has the greatest total index of {measure}: {total[shown[0]]:.2f}. "
    alt += f"Its first-order index is {first:.2f}."
    keys = [Key(BLUE, "total"), Key(AMBER, "first-order")]
    keys += [Key(INK, "95 % interval")] if any(row["low"] is not None for row in rows) else []
    spec = _share_spec([row for row in rows if row["parameter"] in shown], shown)
    height = _AXIS_HEIGHT + _WIDE_ROW_HEIGHT * len(shown)
    title = f"Sobol indices of {shortened(measure, 50)}"
    return Figure(title, found.caption(measure), alt, spec, table, keys, height=height)


def _share_spec(rows: list[dict[str, Any]], shown: list[str]) -> dict[str, Any]:
    ends = [row[name] for row in rows for name in ("index", "low", "high") if row[name] is not None]
    axis = {"title": "share of the variance", "grid": True}
    domain = [min(0.0, *ends), max(1.0, *ends)]
    x = {"type": "quantitative", "scale": {"domain": domain, "nice": False}, "axis": axis}
    y = {"field": "parameter", "type": "nominal", "sort": shown, "axis": {"title": None, "labelLimit": 120}}
    offset = {"yOffset": {"field": "order", "type": "nominal", "sort": ["total", "first"]}}
    scale = {"domain": ["total", "first"], "range": [BLUE, AMBER]}
    colour = {"field": "order", "type": "nominal", "scale": scale, "legend": None}
    interval: dict[str, Any] = {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y, **offset}
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "bar"}, "encoding": {"x": x | {"field": "index"}, "y": y, "color": colour, **offset}},
        *(
            {
                "transform": [{"filter": "datum.low !== null"}],
                "mark": {"type": "rule", "color": shade, "strokeWidth": width},
                "encoding": interval,
            }
            for shade, width in (("var(--card)", 4), (INK, 1.4))  # a line with an edge is seen on each bar
        ),
        {"mark": {"type": "rule", "color": AXIS}, "encoding": {"x": {"datum": 0} | x}},
    ]
    return {**values(rows), "layer": layers}


def _rank_figure(found: Sensitivity, measure: str) -> Figure | None:
    table: pa.Table = found.table.filter(pc.equal(found.table["measure"], measure))
    rows = [row for row in table.to_pylist() if row["rho"] is not None]
    rows = sorted(rows, key=lambda row: -abs(row["rho"]))[:_PARAMETERS_SHOWN]
    if not rows:
        return None
    alt = f"{rows[0]['parameter']} has the strongest rank correlation with {measure}: {rows[0]['rho']:.2f}."
    n = max(row["n"] for row in rows)
    caption = f"Rank correlations over {counted(n, 'parameter set')}, and their 95 % intervals."
    height = _AXIS_HEIGHT + _ROW_HEIGHT * len(rows)
    title = f"Rank correlations with {shortened(measure, 50)}"
    return Figure(title, caption, alt, _rank_spec(rows), table, height=height)


def _rank_spec(rows: list[dict[str, Any]]) -> dict[str, Any]:
    x = {"type": "quantitative", "scale": {"domain": [-1, 1]}, "axis": {"title": "rank correlation", "grid": True}}
    axis = {"title": None, "labelLimit": 120}
    y = {"field": "parameter", "type": "nominal", "sort": [row["parameter"] for row in rows], "axis": axis}
    layers = [
        {"mark": {"type": "rule", "color": AXIS}, "encoding": {"x": {"datum": 0} | x}},
        {
            "transform": [{"filter": "datum.low !== null"}],
            "mark": {"type": "rule", "color": BLUE, "strokeWidth": 2, "opacity": 0.55},
            "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 60, "color": BLUE, "opacity": 1},
            "encoding": {"x": x | {"field": "rho"}, "y": y},
        },
    ]
    return {**values(rows), "layer": layers}
