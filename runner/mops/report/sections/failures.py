"""Why simulations failed, and where in the parameter space."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from mops.errors import CorruptRecord
from mops.figures.bins import Bins
from mops.figures.failures import FailureBins, failure_map
from mops.jobs.figure_data import failure_bins_of
from mops.jobs.summary import shown_cause
from mops.report.content import Block, Figure, Gallery, Key, Section
from mops.report.drawing.axes import bin_axis, bin_rows, point_axis, values
from mops.report.drawing.look import BLUE, CROSS, INK, MUTED, PALE, PURPLE, SERIES, SHARES, VERMILION
from mops.report.facts import Facts
from mops.units import counted, shortened

_CAUSES_SHOWN = 10
_PARAMETERS_SHOWN = 6
_CAUSE_CHARACTERS = 34
_CAUSE_COLOURS = (BLUE, PURPLE, SERIES[2])


def failures(facts: Facts) -> Section | None:
    """Return the section about failures; None: there are none."""
    causes = facts.causes
    if isinstance(causes, CorruptRecord):
        raise causes
    if not causes:
        return None
    found = failure_bins_of(facts.data)
    intro = f"{counted(len(causes), 'cause')}. {found.n_failed:,} of {counted(found.n_sets, 'parameter set')} "
    intro += f"that {'has' if found.n_sets == 1 else 'have'} run {'has' if found.n_failed == 1 else 'have'} a failure."
    rows = [shown_cause(row) for row in causes[:_CAUSES_SHOWN]]
    shown = {"rows": rows, "more": len(causes) - len(rows), "command": facts.command("failures", "--all")}
    parts: list[Gallery | Block] = [Block("causes", shown)]
    figures = _figures(facts, found) if found.n_failed < found.n_sets else []  # else each share is 100 %
    if figures:
        parts.append(Gallery(figures))
    return Section("failures", "Failures", parts, intro)


def _figures(facts: Facts, found: FailureBins) -> list[Figure]:
    order = _by_spread(found)[:_PARAMETERS_SHOWN]
    figures = [_shares(found, name) for name in order]
    for x, y in list(combinations(order[:2], 2)):
        figures.append(_map(facts, found, x, y))
    return figures


def _by_spread(found: FailureBins) -> list[str]:
    """Return the parameters, first those over which the share of failures differs most."""
    spread = {}
    for name in found.bins:
        rows = [row for row in found.table.to_pylist() if row["parameter"] == name and row["share"] is not None]
        spread[name] = max((row["share"] for row in rows), default=0) - min((row["share"] for row in rows), default=0)
    return sorted(found.bins, key=lambda name: -spread[name])


def _shares(found: FailureBins, name: str) -> Figure:
    bins = found.bins[name]
    at = bin_rows(bins, "x")
    table = found.table.filter(np.array([one == name for one in found.table["parameter"].to_pylist()]))
    rows = [row | at[row["bin"]] for row in table.to_pylist()]
    share = {"field": "share", "type": "quantitative", "axis": {"format": "~%", "title": "failed sets"}}
    share["scale"] = {"domain": [0, 1]}
    kind = {"type": "rect"} if bins.kind != "values" else {"type": "bar"}
    several = len(found.causes) > 1
    bars = {
        "transform": [{"filter": "datum.cause === 0"}],
        "mark": kind | {"color": PALE if several else VERMILION, "stroke": "var(--card)", "strokeWidth": 0.5},
        "encoding": {**bin_axis(bins, "x"), "y": share} | ({"y2": {"datum": 0}} if bins.kind != "values" else {}),
    }
    layers, keys = [bars], [Key(PALE if several else VERMILION, "any failure")]
    if several:
        for i, colour in enumerate(_CAUSE_COLOURS[: len(found.causes)], 1):
            layers.append(_line_of_cause(bins, share, i, colour))
            keys.append(Key(colour, _cause_name(found, i)))
    layers.append(_intervals(bins, share))
    keys.append(Key(INK, "95 % interval of any failure"))
    worst = max((row for row in rows if row["cause"] == 0 and row["share"] is not None), key=lambda row: row["share"])
    alt = f"The share of sets with a failure over {name} is greatest at {worst['label']}: {worst['share']:.0%}."
    caption = f"The share of parameter sets with a failure over {shortened(name, 60)}, of those that have run."
    others = len(found.causes) - len(_CAUSE_COLOURS)
    caption += f" {counted(others, 'other cause')} count in any failure only." if others > 1 else ""
    caption += " One other cause counts in any failure only." if others == 1 else ""
    return Figure(f"Failures over {shortened(name, 40)}", caption, alt, {**values(rows), "layer": layers}, table, keys)


def _cause_name(found: FailureBins, cause: int) -> str:
    of = found.causes[cause - 1]
    return f"{cause}. {shortened(of.cause or of.verdict, _CAUSE_CHARACTERS)}"


def _line_of_cause(bins: Bins, share: dict[str, Any], cause: int, colour: str) -> dict[str, Any]:
    return {
        "transform": [{"filter": f"datum.cause === {cause}"}],
        "mark": {"type": "line", "color": colour, "point": {"size": 18, "color": colour}, "strokeWidth": 1.5},
        "encoding": {**point_axis(bins, "x"), "y": share},
    }


def _intervals(bins: Bins, share: dict[str, Any]) -> dict[str, Any]:
    ends = {"y": share | {"field": "share_low"}, "y2": {"field": "share_high"}}
    return {
        "transform": [{"filter": "datum.cause === 0 && datum.share !== null"}],
        "mark": {"type": "rule", "color": INK, "strokeWidth": 1},
        "encoding": {**point_axis(bins, "x"), **ends},
    }


def _map(facts: Facts, found: FailureBins, x: str, y: str) -> Figure:
    cells = failure_map(found, facts.data.parameters.next_to(()), facts.data.has_run, x, y)
    at_x, at_y = bin_rows(cells.x, "x"), bin_rows(cells.y, "y")
    rows = [row | at_x[row["x_bin"]] | at_y[row["y_bin"]] for row in cells.table.to_pylist()]
    full, empty = [row for row in rows if row["sets"]], [row for row in rows if not row["sets"]]
    colour = {
        "field": "share",
        "type": "quantitative",
        "scale": {"type": "threshold", "domain": [1e-9, 0.25, 0.5, 0.75, 1], "range": list(SHARES)},
        "legend": None,
    }
    axes = {**bin_axis(cells.x, "x"), **bin_axis(cells.y, "y")}
    crosses = {**point_axis(cells.x, "x"), **point_axis(cells.y, "y")}
    mark = {"type": "text", "text": "\u00d7", "color": MUTED, "fontSize": 10}
    layers = [
        {**values(full), "mark": {"type": "rect", "stroke": "var(--card)"}, "encoding": axes | {"color": colour}},
        {**values(empty), "mark": mark, "encoding": crosses},
    ]
    texts = ("none", "below 25 %", "below 50 %", "below 75 %", "75 % or more", "all")
    keys = [Key(shade, text) for shade, text in zip(SHARES, texts, strict=True)]
    keys += [Key(CROSS, "no set has run")] if empty else []
    alt = f"The share of failed sets in {counted(len(full), 'cell')} of {x} and {y}."
    title = f"Failures over {shortened(x, 24)} and {shortened(y, 24)}"
    sets = sorted(row["sets"] for row in full)
    caption = f"The share of parameter sets with a failure in each cell. A cell has {_from_to(sets)} that have run."
    return Figure(title, caption, alt, {"layer": layers}, cells.table, keys, height=240)


def _from_to(sets: list[int]) -> str:
    return counted(sets[0], "set") if sets[0] == sets[-1] else f"{sets[0]:,} to {sets[-1]:,} sets"
