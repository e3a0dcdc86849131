"""Draws each figure as an Altair chart: one home for units, scales, colours, and for light and dark pages.

A chart has its numbers in it, its title, and below the title what it shows. Names of a study are titles and values
only, never names of fields: Vega-Lite would read ``a.b`` or ``a[0]`` as a path. ``course_charts.py`` has the figures of
outputs, of the job over time, and of calibrations.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Any, TypeAlias

import altair as alt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.figures.bins import Bins, is_constant
from mops.figures.columns import Floats, cell, numbers
from mops.figures.failures import FailureBins
from mops.figures.fan import linear_below
from mops.figures.losses import TOTAL, Distribution, ScoredSets, named
from mops.figures.profiles import Pairs, Parallel, Profile
from mops.figures.sensitivity import Sensitivity
from mops.figures.sobol import Sobol
from mops.units import counted, number, shortened

Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.ConcatChart | alt.HConcatChart | alt.VConcatChart

# The colours of series are Okabe and Ito's, which people with colour blindness tell apart, darkened or lightened until
# each has enough contrast with the page: the first one for a light page, the second one for a dark page.
BLUE, VERMILION, GREEN, PURPLE, AMBER, SKY = "#0b68b0", "#c4500a", "#00795a", "#a0457c", "#8a6100", "#3d91c4"
GREY, PALE, INK, CARD, AXIS = "#5f6b79", "#838e9c", "#17202b", "#fefefe", "#9aa5b3"
SHARES = ("#b3d1ec", "#88b7df", "#5a99cc", "#2f79b5", "#155590", "#082b52")  # none, four steps, all
DARK = {
    BLUE: "#62b1f0",
    VERMILION: "#f58a4b",
    GREEN: "#37c79d",
    PURPLE: "#df92be",
    AMBER: "#e3b341",
    SKY: "#8bd0f7",
    GREY: "#98a4b2",
    PALE: "#6c7887",
    INK: "#e9edf2",
    CARD: "#181d25",
    AXIS: "#5b6878",
    **dict(zip(SHARES, ("#2f5378", "#447ba8", "#6ba3d2", "#98c6ea", "#c6e1f7", "#f2f8ff"), strict=True)),
}
SERIES = (BLUE, VERMILION, GREEN, PURPLE, AMBER, SKY)

MOST_AS_POINTS = 1_000  # sets of a pair: more would make a file too large, because each pair has all
_COLOURED = 0.75  # the share of the sets, those with the least losses, whose colours tell their losses apart
_PARAMETERS_SHOWN = 15
_CAUSES_WITH_LINES = 3
_CAPTION_WIDTH = 90  # characters of a line
LEGEND_OFFSET = 28  # pixels, so that the title of the vertical axis has room below the legend

Rows: TypeAlias = list[dict[str, Any]]


def titled(chart: Any, title: str, caption: str, width: int = 420, height: int = 240) -> Chart:
    """Return a chart with its title, and what it shows below the title."""
    text = alt.TitleParams(title, subtitle=_lines(caption), anchor="start")
    is_composed = isinstance(chart, alt.ConcatChart | alt.HConcatChart | alt.VConcatChart)
    found: Chart = chart.properties(title=text, **({} if is_composed else {"width": width, "height": height}))
    return found


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, _CAPTION_WIDTH, break_long_words=False, break_on_hyphens=False)


def beside(charts: Sequence[Any], columns: int = 3) -> Any:
    """Return one chart, or several next to each other, each with its own colours."""
    if len(charts) == 1:
        return charts[0]
    return alt.concat(*charts, columns=columns).resolve_scale(color="independent", opacity="independent")


def noted(chart: Any, notes: Sequence[str]) -> Any:
    """Return a chart with notes below the text of its title, or above several charts."""
    if not notes:
        return chart
    lines = _lines(" ".join(notes))
    if chart.title is alt.Undefined:
        return chart.properties(title=alt.TitleParams("", subtitle=lines, anchor="start"))
    return chart.properties(
        title=alt.TitleParams(chart.title.text, subtitle=[*chart.title.subtitle, *lines], anchor="start")
    )


def drawn_from(rows: Rows) -> Any:
    """Return a chart without marks, with its rows in it."""
    return alt.Chart(alt.InlineData(values=rows))


def coloured(names: Sequence[str], colours: Sequence[str], field: str = "series", columns: int | None = None) -> Any:
    """Return the colour of each series, and a legend above the chart."""
    few = sum(len(name) + 4 for name in names) <= 48
    columns = columns if columns is not None else 0 if few else 1
    legend = alt.Legend(
        orient="top", title=None, labelLimit=320, columns=columns, symbolOpacity=1, offset=LEGEND_OFFSET
    )
    scale = alt.Scale(domain=list(names), range=list(colours))
    return alt.Color(field, type="nominal", scale=scale, legend=legend if names else None)


# Axes


def bin_rows(bins: Bins, channel: str) -> Rows:
    """Return the fields of :func:`bin_axis` for each bin."""
    rows = zip(bins.table().to_pylist(), bins.middles.tolist(), strict=True)
    return [
        {f"{channel}_{name}": row[name] for name in ("label", "low", "high")} | {f"{channel}_at": middle}
        for row, middle in rows
    ]


def bin_axis(
    bins: Bins, channel: str, *, at: bool = False, title: str | None = None, padding: int = 0
) -> dict[str, Any]:
    """Return the channels of bins on ``x`` or ``y``: from edge to edge, or with ``at`` one place in each bin."""
    make: Any = {"x": alt.X, "y": alt.Y}[channel]
    name = shortened(bins.name if title is None else title, 40)
    if bins.kind == "values":
        labels = bins.labels()
        is_wide = sum(min(6 * len(label) + 8, 70) for label in labels) > 280
        # Texts have no regular steps, so none may be left out. Vega-Lite begins at the top.
        style: dict[str, Any] = (
            {"labelAngle": -40, "labelOverlap": False} if channel == "x" and bins.is_text and is_wide else {}
        )
        order = labels if channel == "x" or bins.is_text else labels[::-1]
        style = {"labelAngle": 0, "labelLimit": 70, "labelSeparation": 8} | style
        axis = alt.Axis(**style)
        return {channel: make(f"{channel}_label", type="ordinal", sort=order, title=name, axis=axis)}
    ends: dict[str, Any] = {"domain": [float(bins.edges[0]), float(bins.edges[-1])], "nice": False, "zero": False}
    scale = alt.Scale(type=bins.kind, padding=padding, **ends)
    axis = alt.Axis(tickCount=5)
    if bins.kind == "log":
        axis = alt.Axis(tickCount=5, format=",~g")
    elif bins.is_integer:
        axis = alt.Axis(tickCount=5, tickMinStep=1)
    name = log_title(name) if bins.kind == "log" and name else name
    if at:
        return {channel: make(f"{channel}_at", type="quantitative", scale=scale, title=name, axis=axis)}
    first = make(f"{channel}_low", type="quantitative", scale=scale, title=name, axis=axis)
    return {channel: first, f"{channel}2": f"{channel}_high"}


def log_title(name: str) -> str:
    """Return the title of an axis with a logarithmic scale."""
    return f"{shortened(name, 22)} (log scale)"


def loss_y(field: str, losses: Sequence[float], title: str, *, is_log: bool, domain: Any = None) -> Any:
    """Return the vertical axis of losses; ``is_log``: of all losses, also those that are not shown."""
    name, axis = shortened(title, 40), alt.Axis(tickCount=5)
    if len(losses) and is_constant(np.array(losses)):
        middle, half = losses[0], abs(losses[0]) / 10 or 1.0
        scale, axis = alt.Scale(domain=[middle - half, middle + half], nice=False), alt.Axis(values=[middle])
    elif domain is not None:
        scale = alt.Scale(domain=domain, nice=False, padding=4)
    elif is_log and len(losses):
        scale, axis, name = alt.Scale(type="log", nice=False, padding=4), alt.Axis(format=",~g"), log_title(title)
    else:
        scale = alt.Scale(zero=False, padding=4)
    return alt.Y(field, type="quantitative", scale=scale, title=name, axis=axis)


def value_y(name: str, shown: Floats, *, has_decades: bool, is_shared: bool = False) -> Any:
    """Return the vertical axis of a fan: linear, logarithmic, or logarithmic down to a linear part at 0."""
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    if not has_decades or low < 0 or high == 0:
        ends: dict[str, Any] = {"domain": [min(low, 0.0), high]} if is_shared and high > min(low, 0.0) else {}
        return alt.Y(
            type="quantitative", title=shortened(name, 40), scale=alt.Scale(**ends), axis=alt.Axis(tickCount=5)
        )
    linear = linear_below(shown)
    style = ",~g" if high < 1e6 else "~e"
    if linear is None:
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        return alt.Y(type="quantitative", title=log_title(name), scale=scale, axis=alt.Axis(format=style))
    # Vega has the ticks of a linear axis here, which are all in the last decade.
    decades = np.arange(np.log10(linear), np.log10(high) + 1e-9)
    ticks = [0.0, *(10.0 ** decades[:: -(-len(decades) // 6)]).tolist()[1 if len(decades) > 1 else 0 :]]
    scale = alt.Scale(type="symlog", constant=linear, domain=[0, high], nice=False)
    title = f"{shortened(name, 22)} (log scale, linear below {linear:g})"
    return alt.Y(type="quantitative", title=title, scale=scale, axis=alt.Axis(values=ticks, format=style))


def with_field(channel: Any, field: str) -> Any:
    """Return the same axis for another field of numbers."""
    copy = channel.copy()
    copy.shorthand = alt.Undefined
    copy.field, copy.type = field, "quantitative"
    return copy


def bin_bars(bins: Bins, rows: Rows, y: Any, *, title: str | None = None, colour: str = BLUE) -> Any:
    """Return a bar for each bin, from rows with the fields of :func:`bin_rows`."""
    edge = {"color": colour, "stroke": CARD, "strokeWidth": 0.5}
    if bins.kind == "values":
        return drawn_from(rows).mark_bar(**edge).encode(**bin_axis(bins, "x", title=title), y=y)
    return drawn_from(rows).mark_rect(**edge).encode(**bin_axis(bins, "x", title=title), y=y, y2=alt.datum(0))


def binned(bins: Bins, table: pa.Table) -> Rows:
    """Return the rows of a table with a row for each bin, with the fields of :func:`bin_axis`."""
    return [row | at for row, at in zip(table.to_pylist(), bin_rows(bins, "x"), strict=True)]


def celled(x: Bins, y: Bins, table: pa.Table) -> Rows:
    """Return the rows of a table with ``x_bin`` and ``y_bin``, with the fields of :func:`bin_axis` of both."""
    at_x, at_y = bin_rows(x, "x"), bin_rows(y, "y")
    return [row | at_x[row["x_bin"]] | at_y[row["y_bin"]] for row in table.to_pylist()]


def counts_y(table: pa.Table, title: str) -> Any:
    """Return a vertical axis of the column ``n``, which has whole numbers."""
    ticks = min(5, max(table["n"].to_pylist(), default=1))  # fewer than ticks would repeat numbers
    return alt.Y("n:Q", title=title, axis=alt.Axis(tickMinStep=1, tickCount=ticks, format=",d"))


# Losses


def distribution(found: Distribution) -> Chart:
    """Draw how a loss is spread over the parameter sets: a bar for each bin."""
    title = f"Distribution of the {shortened(named(found.title), 40)}"
    bars = bin_bars(
        found.bins, binned(found.bins, found.table), counts_y(found.table, "parameter sets"), title=found.title
    )
    if found.quantiles is None:
        return titled(bars, title, f"None of {counted(found.n_missing, 'parameter set')} has the {named(found.title)}.")
    scale = ", in bins of equal ratio" if found.bins.kind == "log" else ""
    of = f"{found.n:,} of {counted(found.n + found.n_missing, 'parameter set')}; {found.n_missing:,} lack it"
    of = of if found.n_missing else counted(found.n, "parameter set")
    least, median = number(found.quantiles[0]), number(found.quantiles[1])
    return titled(bars, title, f"The {named(found.title)} of {of}{scale}. The least is {least}, the median {median}.")


def profile(found: Profile, by: str = "") -> Chart:
    """Draw the least and the median loss in each bin of a parameter."""
    rows = [row for row in binned(found.bins, found.table) if row["best"] is not None]
    x, is_text = bin_axis(found.bins, "x", at=True), found.bins.is_text
    losses = [row[name] for row in rows for name in ("best", "median")]
    y = loss_y("y", losses, found.title, is_log=found.is_log)
    colour = coloured(["least", "median"], [BLUE, VERMILION])
    layers = []
    for name, field, dash in (("median", "median", [3, 3]), ("least", "best", [1, 0])):
        line = drawn_from([row | {"y": row[field], "series": name} for row in rows])
        # Texts have no order that a line could show.
        marked = line.mark_point(filled=True, size=50, opacity=1) if is_text else None
        marked = marked or line.mark_line(strokeDash=dash, point={"size": 22})
        layers.append(marked.encode(**x, y=y, color=colour))
    best = min(rows, key=lambda row: row["best"])
    each = "each value" if found.bins.kind == "values" else f"each of {len(found.bins)} bins"
    have = "has" if found.n_missing == 1 else "have"
    missing = f" {counted(found.n_missing, 'set')} {have} no value of it." if found.n_missing else ""
    caption = (
        f"The least and the median {named(found.title)} in {each} of {shortened(found.bins.name, 60)!r}, for "
        f"{counted(found.n, 'parameter set')}. The least is {cell(best['best'])}, at {best['x_label']}.{missing}"
    )
    return titled(alt.layer(*layers), f"Profile of {shortened(found.bins.name, 40)}{by}", caption)


def _places(bins: Bins, column: pa.ChunkedArray, channel: str) -> Rows:
    """Return the fields of :func:`bin_axis` with ``at`` for each value; none for a value without a place."""
    if bins.kind == "values":
        labels = bins.labels()
        return [{f"{channel}_label": labels[i]} if i >= 0 else {} for i in bins.index(column).tolist()]
    return [{f"{channel}_at": value} if np.isfinite(value) else {} for value in numbers(column).tolist()]


def shade_limits(scored: ScoredSets) -> list[float]:
    """Return the losses between six colours: equal steps or ratios, up to the loss that 3 of 4 sets are below."""
    losses = scored.losses()
    if scored.is_constant() or not len(losses):
        return []
    spaced = np.geomspace if scored.is_log() else np.linspace
    limits = spaced(float(losses.min()), float(np.quantile(losses, _COLOURED)), len(SHARES))[1:]
    found: list[float] = np.unique([float(f"{limit:.3g}") for limit in limits]).tolist()
    return found


def pair(scored: ScoredSets, found: Pairs, x: str, y: str) -> tuple[Chart, pa.Table]:
    """Draw the sets over two parameters in the colours of their losses, or the cells of many; also return the data."""
    bins, n, ranked = {"x": found.bins[x], "y": found.bins[y]}, found.n_sets, scored.ranked
    as_points = n <= MOST_AS_POINTS and any(of.kind != "values" for of in bins.values())
    if as_points:
        data = pa.table({"group": ranked["group"], "x": ranked[x], "y": ranked[y], "loss": ranked[TOTAL]})
        places = zip(*(_places(of, data[channel], channel) for channel, of in bins.items()), strict=True)
        losses = data["loss"].to_pylist()
        rows = [px | py | {"loss": loss} for (px, py), loss in zip(places, losses, strict=True) if px and py]
        # The best is on top.
        chart = drawn_from(rows[::-1]).mark_circle(size=30, opacity=1, stroke=AXIS, strokeWidth=0.4)
        on_top = "" if scored.is_constant() else ", the best on top"
        what = f"Each of {counted(n, 'set')} is a point{on_top}."
    else:
        data = found.cells[x, y]
        for channel, name in zip("xy", (x, y), strict=True):
            labels = pa.array(found.bins[name].labels(), pa.string())
            data = data.append_column(f"{channel}_label", labels.take(data[f"{channel}_bin"]))
        rows = [row | {"loss": row["best"]} for row in celled(bins["x"], bins["y"], data.drop_columns(["x", "y"]))]
        chart = drawn_from(rows).mark_rect()
        what = f"The least {named(found.title)} in each cell, of {counted(n, 'set')}. An empty cell has none."
    axes = {**bin_axis(bins["x"], "x", at=as_points, padding=6), **bin_axis(bins["y"], "y", at=as_points, padding=6)}
    at_best = " and ".join(f"{name} = {cell(ranked[name][0].as_py())}" for name in (x, y))
    title = f"{shortened(named(found.title), 30)} over {shortened(x, 20)} and {shortened(y, 20)}"
    where = "" if scored.is_constant() else f" The best is at {shortened(at_best, 80)}."
    chart = chart.encode(**axes, color=_shades(shade_limits(scored), found.title))
    return titled(chart, title[0].upper() + title[1:], f"{what}{where}"), data


def _shades(limits: Sequence[float], title: str) -> Any:
    if not limits:
        return alt.value(BLUE)
    scale = alt.Scale(type="threshold", domain=list(limits), range=list(SHARES[::-1][: len(limits) + 1]))
    legend = alt.Legend(orient="top", title=shortened(title, 40), format=".3~g", offset=LEGEND_OFFSET)
    return alt.Color("loss", type="quantitative", scale=scale, legend=legend)


def pairs(scored: ScoredSets, found: Pairs, profiles: Sequence[Profile]) -> Chart:
    """Draw a matrix: each pair of parameters below the diagonal, and the profile of each parameter on it."""
    rows = []
    for i, name in enumerate(found.parameters):
        below: list[Any] = [pair(scored, found, x, name)[0] for x in found.parameters[:i]]
        small = [one.properties(width=150, height=130) for one in [*below, profile(profiles[i])]]
        for one in small:
            one.title = alt.Undefined
        rows.append(alt.hconcat(*small))
    left_out = f" Not shown: {', '.join(found.left_out)}." if found.left_out else ""
    shown = "Points are sets, and cells have the least loss of their sets."
    caption = f"{counted(found.n_sets, 'parameter set')} with the {named(found.title)}. {shown} The diagonal has the "
    caption += f"least and the median loss of each parameter.{left_out}"
    matrix = alt.vconcat(*rows).resolve_scale(color="independent")
    return titled(matrix, f"The {named(found.title)} over pairs of parameters", caption)


def parallel(found: Parallel, by: str = "") -> Chart:
    """Draw each set as a line over its parameters and its loss. A drag keeps the sets that cross it."""
    axes = [(axis, _axis_name(axis, found)) for axis in found.axes]
    columns = [(name, _shares(axis, found.sets.table[axis.name]), found.sets.table[axis.name]) for axis, name in axes]
    groups, n_best = found.sets.table["group"].to_pylist(), found.sets.n_best
    rows = [
        {"set": groups[at], "kind": "others" if at >= n_best else "best sets" if at else "best set"}
        | {"name": name, "share": float(shares[at]), "value": _json_value(column[at].as_py())}
        for at in reversed(range(len(groups)))
        for name, shares, column in columns
        if np.isfinite(shares[at])
    ]
    kinds = ["best set", "best sets", "others"][: 0 if not n_best else 3 if found.sets.n_others else 2]
    names = [name for _, name in axes]
    x = alt.X("name:N", sort=names, title=None, scale=alt.Scale(type="point", padding=0.4), axis=_top_axis(len(names)))
    y = alt.Y("share:Q", axis=None, scale=alt.Scale(domain=[0, 1], padding=8))
    # A set is kept if it lies in the brush at each axis under it, and between all numbers that the reader has typed.
    brush = alt.selection_interval(name="brush", encodings=["x", "y"])
    inputs = [
        alt.param(name=f"{end}_{i}", value="", bind=alt.binding(input="number", name=f"{text} {shortened(name, 40)}"))
        for i, (axis, name) in enumerate(axes)
        if not axis.is_text
        for end, text in (("low", "least"), ("high", "greatest"))
    ]
    beyond = [
        f"(datum.name === {json.dumps(name)} && ((low_{i} !== '' && datum.value < toNumber(low_{i})) || "
        f"(high_{i} !== '' && datum.value > toNumber(high_{i}))))"
        for i, (axis, name) in enumerate(axes)
        if not axis.is_text
    ]
    inside = "isArray(brush.name) && indexof(brush.name, datum.name) >= 0 && inrange(datum.share, brush.share)"
    kept = (
        drawn_from(rows)
        .transform_calculate(inside=inside, outside=" || ".join(beyond) or "false")
        .transform_joinaggregate(n_inside="sum(inside)", n_outside="sum(outside)", groupby=["set"])
        .transform_filter("datum.n_outside === 0 && (!isArray(brush.name) || datum.n_inside === length(brush.name))")
    )
    style = {
        "color": coloured(kinds, (VERMILION, BLUE, PALE), "kind") if kinds else alt.value(PALE),
        "strokeWidth": alt.condition("datum.kind === 'best set'", alt.value(2.6), alt.value(1.1)),
        "strokeOpacity": alt.condition("datum.kind === 'best sets'", alt.value(0.6), alt.value(1)),
    }
    lines = kept.mark_line().encode(x=x, y=y, detail="set:N", **style)
    ticks = [
        {"name": name, "share": share, "text": text, "dy": 12 if share == 0 else -8 if share == 1 else 0}
        for axis, name in axes
        for share, text in _ends(axis)
    ]
    frame = drawn_from([{"name": name, "share": 0, "top": 1} for name in names])
    rules = frame.mark_rule(color=AXIS).encode(x=x, y=y, y2="top")
    grab = frame.mark_point(opacity=0).encode(x=x, y=y).add_params(brush)
    text = drawn_from(ticks).mark_text(fontSize=10, color=INK, stroke=CARD, strokeWidth=0.3, dy=alt.expr("datum.dy"))
    left_out = f" Not shown: {', '.join(found.left_out)}." if found.left_out else ""
    caption = f"{found.sets.caption} Each set is a line through its parameters and its loss.{left_out}"
    chart = alt.layer(lines, rules, grab, text.encode(x=x, y=y, text="text:N")).add_params(*inputs)
    return titled(chart, f"Parameter sets{by or ' and their losses'}", caption, 1000, 300)


def _axis_name(axis: Bins, found: Parallel) -> str:
    name = axis.name
    if name == TOTAL:
        name = found.sets.title
        name = f"{name} (loss)" if name in {one.name for one in found.axes[:-1]} else name
    return f"{name} (log)" if axis.kind == "log" else name


def _top_axis(n: int) -> alt.Axis:
    return alt.Axis(
        orient="top", labelAngle=0, labelLimit=max(960 // n, 60), domain=False, ticks=False, labelPadding=16
    )


def _json_value(value: Any) -> Any:
    return value if isinstance(value, str | bool | int | float) or value is None else cell(value)


def _axis_ends(axis: Bins) -> tuple[float, float]:
    ends = axis.ends if axis.kind != "values" else (0, len(axis) - 1) if axis.is_text else axis.values
    return (float(ends[0]), float(ends[-1])) if len(ends) else (0.0, 1.0)


def _shares(axis: Bins, column: pa.ChunkedArray) -> Floats:
    """Return where values are on an axis from 0 to 1; NaN: a value has no place."""
    low, high = _axis_ends(axis)
    if axis.is_text:
        index = axis.index(column).astype(np.float64)
        values = np.where(index >= 0, index, np.nan)
    else:
        values = numbers(column)
    if high == low:
        return np.where(np.isfinite(values), 0.5, np.nan)
    if axis.kind == "log":
        found: Floats = np.log(np.where(values > 0, values, np.nan) / low) / np.log(high / low)
    else:
        found = (values - low) / (high - low)
    return found


def _ends(axis: Bins) -> list[tuple[float, str]]:
    """Return the places and the texts of the labels of an axis of parallel coordinates."""
    low, high = _axis_ends(axis)
    if axis.is_text:
        places = np.linspace(0, 1, len(axis)) if len(axis) > 1 else [0.5]
        return [(float(at), shortened(label, 14)) for at, label in zip(places, axis.labels(), strict=True)]
    texts = [cell(round(end) if axis.is_integer else end) for end in (low, high)]
    return [(0.0, texts[0]), (1.0, texts[1])] if high > low else [(0.5, texts[0])]


# Sensitivity


def sensitivity(found: Sensitivity, measure: str) -> Chart:
    """Draw the rank correlation of each parameter with a measure."""
    table = found.table.filter(pc.equal(found.table["measure"], measure)).to_pylist()
    rows = sorted((row for row in table if row["rho"] is not None), key=lambda row: -abs(row["rho"]))
    shown = rows[:_PARAMETERS_SHOWN]
    scale = alt.Scale(domain=[-1, 1])
    x = alt.X("rho:Q", scale=scale, title="rank correlation", axis=alt.Axis(grid=True, tickCount=5))
    y = _names_y([row["parameter"] for row in shown])
    zero = drawn_from([{"rho": 0}]).mark_rule(color=AXIS).encode(x=x)
    points = drawn_from(shown).mark_point(filled=True, size=60, color=BLUE, opacity=1).encode(x=x, y=y)
    n = max((row["n"] for row in rows), default=0)
    caption = f"Spearman's rank correlation over {counted(n, 'parameter set')}."
    if shown:
        caption += f" {shown[0]['parameter']} has the strongest: {shown[0]['rho']:.2f}."
    title = f"Rank correlations with {shortened(measure, 50)}"
    return titled(alt.layer(zero, points), title, caption, 300, 24 * len(shown))


def sobol(found: Sobol, measure: str) -> Chart:
    """Draw the first-order and the total index of each parameter for a measure, with their intervals."""
    rows = found.table.filter(pc.equal(found.table["measure"], measure)).to_pylist()
    total = {row["parameter"]: row["index"] for row in rows if row["order"] == "total"}
    shown = sorted(total, key=lambda name: -total[name])[:_PARAMETERS_SHOWN]
    words = {"total": "total", "first": "first-order"}
    rows = [row | {"series": words[row["order"]]} for row in rows if row["parameter"] in shown]
    ends = [row[name] for row in rows for name in ("index", "low", "high") if row[name] is not None]
    scale = alt.Scale(domain=[min(0.0, *ends), max(1.0, *ends)], nice=False)
    x = alt.X("index:Q", scale=scale, title="share of the variance", axis=alt.Axis(grid=True, tickCount=5))
    y, offset = _names_y(shown), alt.YOffset("series:N", sort=list(words.values()))
    bars = (
        drawn_from(rows)
        .mark_bar()
        .encode(x=x, y=y, yOffset=offset, color=coloured(list(words.values()), [BLUE, AMBER]))
    )
    known = [row for row in rows if row["low"] is not None]
    lines = [  # a line with an edge is seen on each bar
        drawn_from(known)
        .mark_rule(color=colour, size=size)
        .encode(x=with_field(x, "low"), x2="high", y=y, yOffset=offset)
        for colour, size in ((CARD, 4), (INK, 1.4))
    ]
    zero = drawn_from([{"index": 0}]).mark_rule(color=AXIS).encode(x=x)
    title = f"Sobol indices of {shortened(measure, 50)}"
    return titled(alt.layer(bars, *lines, zero), title, found.caption(measure), 300, 34 * len(shown))


def _names_y(names: Sequence[str]) -> Any:
    return alt.Y("parameter:N", sort=list(names), title=None, axis=alt.Axis(labelLimit=120, domain=False, ticks=False))


# Failures


def failures(found: FailureBins, name: str) -> Chart:
    """Draw the share of failed sets in each bin of a parameter, with the most frequent causes as lines."""
    bins, at = found.bins[name], bin_rows(found.bins[name], "x")
    table = found.table.filter(pc.equal(found.table["parameter"], name)).to_pylist()
    causes = found.causes[:_CAUSES_WITH_LINES] if len(found.causes) > 1 else ()
    names = ["any failure", *(f"{i}. {shortened(cause, 34)}" for i, cause in enumerate(causes, 1))]
    rows = [row | at[row["bin"]] | {"series": names[row["cause"]]} for row in table if row["cause"] < len(names)]
    any_failure = [row for row in rows if row["cause"] == 0]
    colour = coloured(names, [PALE if causes else VERMILION, BLUE, PURPLE, GREEN][: len(names)])
    y = alt.Y("share:Q", title="failed sets", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="~%", tickCount=5))
    centre = bin_axis(bins, "x", at=True)
    layers = [bin_bars(bins, any_failure, y).encode(color=colour)]
    for i in range(1, len(names)):
        line = drawn_from([row for row in rows if row["cause"] == i]).mark_line(point={"size": 22}, strokeWidth=1.5)
        layers.append(line.encode(**centre, y=y, color=colour))
    known = [row for row in any_failure if row["share"] is not None]
    worst = max(known, key=lambda row: row["share"])
    others = len(found.causes) - _CAUSES_WITH_LINES
    few = "One other cause counts" if others == 1 else f"{counted(others, 'other cause')} count"
    caption = (
        "The share of parameter sets with a failure, of those that have run. It is "
        f"greatest at {worst['label']}: {worst['share']:.0%}.{f' {few} in any failure only.' if others > 0 else ''}"
    )
    return titled(alt.layer(*layers), f"Failures over {shortened(name, 40)}", caption)
