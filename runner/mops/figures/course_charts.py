"""Draws outputs, the job over time, and calibrations as Altair charts, with the scales and colours of ``charts.py``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import altair as alt
import numpy as np
import pyarrow as pa

from mops.figures.bins import Bins
from mops.figures.calibration import Trials
from mops.figures.charts import (
    AMBER,
    AXIS,
    BLUE,
    CARD,
    GREEN,
    GREY,
    INK,
    LEGEND_OFFSET,
    PALE,
    SERIES,
    SHARES,
    VERMILION,
    Chart,
    Rows,
    bin_axis,
    bin_bars,
    binned,
    celled,
    coloured,
    counts_y,
    drawn_from,
    loss_y,
    titled,
    value_y,
    with_field,
)
from mops.figures.columns import Floats, cell, numbers
from mops.figures.fan import MOST_OVERLAID, Fan
from mops.figures.row_keys import division_text
from mops.figures.spreads import Spread
from mops.figures.timeline import Timeline
from mops.units import bytes_text, counted, duration, shortened

_LIMIT_SHOWN = 3.0  # times the peak memory: a line much higher would press the curve to the bottom
_LATER_SHOWN, _FLAT = 0.98, 0.3  # of the losses of later rounds, and of the range of all losses
_LEAST_SHARE = 0.02  # of the greatest weight: a cell with less is empty, because its colour would be that of no weight
_LEAST_OPACITY, _LINE_OPACITY = 0.12, 0.75


def place(x: Any) -> Any:
    """Return a value of a horizontal axis as Vega-Lite reads it: a number, or a date or time as ISO 8601."""
    if isinstance(x, date) and not isinstance(x, datetime):
        return f"{x.isoformat()}T00:00:00"  # JavaScript reads a date alone as UTC, and draws it in local time
    return x if isinstance(x, int | float) else x.isoformat()


# Outputs


def fan(
    found: Fan,
    data: pa.Table | None = None,
    *,
    data_name: str = "",
    has_decades: bool = False,
    shown: Floats | None = None,
    note: str = "",
) -> Chart:
    """Draw the median and the bands of an output along x, and data as points."""
    # ``data`` has the columns ``x`` and ``y``, and ``division`` if columns of the data divide them too.
    # ``shown``: the values of all charts, which have equal axes.
    divisions = found.table["division"].unique().to_pylist()
    names = {one: division_text(found.by, one) or "median" for one in divisions}
    is_divided = found.by is not None and len(divisions) > 1
    own = [found.shown, *([numbers(data["y"])] if data is not None else [])]
    values = np.concatenate(own) if shown is None else shown
    y = value_y(found.y, values, has_decades=has_decades, is_shared=shown is not None)
    known = list(names.values()) if is_divided else ["median"]
    data_names = [] if data is None else [f"data: {shortened(data_name, 60)}"]
    if data is not None and is_divided and "division" in data.column_names:  # points in the colours of their lines
        data_names, note = [], f" Points are the data of {data_name}.{note}"
        data = data.set_column(
            2, "series", pa.array([names.get(one) for one in data["division"].to_pylist()], pa.string())
        )
    series = [*known, *data_names] if is_divided or data_names else []
    colour = coloured(series, [*SERIES[: len(known)], INK]) if series else alt.value(BLUE)
    layers = _bands(found, y, names if is_divided else {}, colour, both=len(divisions) <= MOST_OVERLAID)
    if data is not None:
        layers.append(_points(data, found, y, colour, data_names[0] if data_names else None))
    title = f"{shortened(found.y, 40)} ({shortened(found.output, 40)}){only_text(found)}"
    return titled(alt.layer(*layers), title, f"{found.caption}{note}", 560, 260)


def only_text(fan: Fan) -> str:
    """Return which division a fan with one division shows, for a title; empty: it is not divided."""
    divisions = fan.table["division"].unique().to_pylist()
    return f", {shortened(division_text(fan.by, divisions[0]), 43)}" if fan.by and len(divisions) == 1 else ""


def compared(
    under: Fan,
    over: Fan,
    names: tuple[str, str],
    data: pa.Table | None = None,
    *,
    data_name: str = "",
    has_inner_bands: bool = False,
    has_decades: bool = False,
) -> tuple[Any, bool]:
    """Draw a fan in grey and another one in blue above it, for which the axis is; also tell if it cuts the grey one."""
    table = over.table
    columns = [table["low90"], table["high90"], *([data["y"]] if data is not None else [])]
    shown = np.concatenate([numbers(column) for column in columns])
    drawn = np.concatenate([numbers(under.table[end]) for end in ("low90", "high90")])
    if has_decades and np.any(drawn == 0):
        shown = np.append(shown, 0.0)  # only an axis with a linear part has a place for it
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    if has_decades and low >= 0 < high:
        y = value_y(over.y, shown, has_decades=True)
    else:
        scale = alt.Scale(domain=[low, high], nice=True) if high > low else alt.Scale(zero=False)
        y = alt.Y(type="quantitative", title=shortened(over.y, 40), scale=scale, axis=alt.Axis(tickCount=5))
    data_names = [] if data is None else [f"data: {shortened(data_name, 60)}"]
    colour = coloured([names[1], names[0], *data_names], [BLUE, GREY, INK])
    both: dict[str, Any] = {"both": True, "inner": has_inner_bands}
    layers = _bands(under, y, {None: names[0]}, colour, dash=(4, 3), **both)
    layers += _bands(over, y, {None: names[1]}, colour, **both)
    layers += [] if data is None else [_points(data, over, y, colour, data_names[0])]
    is_cut = bool(np.nanmin(drawn) < low or np.nanmax(drawn) > high)
    return alt.layer(*layers), is_cut


def _x_of(found: Fan) -> Any:
    is_time = not pa.types.is_floating(found.table["x"].type)
    axis, scale = alt.Axis(tickCount=6), alt.Scale(nice=False)
    return alt.X("x", type="temporal" if is_time else "quantitative", title=found.x, scale=scale, axis=axis)


def _points(data: pa.Table, found: Fan, y: Any, colour: Any, name: str | None) -> Any:
    rows = [
        {"series": name, **row, "x": place(row["x"])}
        for row in data.select([column for column in data.column_names if column != "division"]).to_pylist()
        if row["x"] is not None
    ]
    mark = drawn_from(rows).mark_point(filled=True, size=36, opacity=1, stroke=CARD, strokeWidth=1)
    return mark.encode(x=_x_of(found), y=with_field(y, "y"), color=colour)


def _bands(
    found: Fan,
    y: Any,
    names: Mapping[str | None, str],  # the series of each division, or of all if None is the only key; empty: no series
    colour: Any,
    *,
    both: bool,
    inner: bool = True,
    dash: tuple[int, int] = (1, 0),
) -> list[Any]:
    """Return the layers of a fan: bands and medians."""
    x = _x_of(found)

    def series_of(division: str | None) -> str:
        return names.get(division, names.get(None, "median"))

    rows = [row | {"x": place(row["x"]), "series": series_of(row["division"])} for row in found.table.to_pylist()]
    layers = []
    ends = [("low90", "high90", 0.18)] * both + [("low50", "high50", 0.3)] * inner
    for low, high, opacity in ends if rows else []:
        area = drawn_from(rows).mark_area(opacity=opacity, clip=True)
        layers.append(area.encode(x=x, y=with_field(y, low), y2=high, color=colour))
    if rows:
        median = drawn_from(rows).mark_line(
            strokeWidth=2, strokeDash=list(dash), clip=True, point=len({r["x"] for r in rows}) == 1
        )
        layers.append(median.encode(x=x, y=with_field(y, "median"), color=colour))
    return layers


def spread(found: Spread) -> Chart:
    """Draw how a column is spread over simulations: a histogram, or one for each division, below each other."""
    title, name = f"{shortened(found.y, 40)} ({shortened(found.output, 40)})", shortened(found.y, 40)
    if found.by is None:
        bars = bin_bars(found.bins, binned(found.bins, found.table), counts_y(found.table, "simulations"), title=name)
        return titled(bars, title, found.caption)
    n = len(found.bins)
    greatest = max(found.table["share"].to_pylist())
    panels = []
    for i, strip in enumerate(found.strips):
        rows = binned(found.bins, found.table.slice(i * n, n))
        scale, axis = alt.Scale(domain=[0, greatest]), alt.Axis(format="~%", tickCount=2)
        y = alt.Y("share:Q", title=None, scale=scale, axis=axis)
        colour = SERIES[i] if len(found.strips) <= MOST_OVERLAID else BLUE
        x_title = name if i == len(found.strips) - 1 else ""
        bars = bin_bars(found.bins, rows, y, title=x_title, colour=colour)
        if found.bins.kind != "values":
            median = drawn_from([{"x_at": strip.median}]).mark_rule(color=INK, size=1.5)
            bars += median.encode(**bin_axis(found.bins, "x", at=True, title=x_title))
        text = division_text(found.by, strip.division)
        text = text if len(text) <= 40 else f"{text[:28]}...{text[-9:]}"  # the end often tells it from other names
        text = f"{text}, n = {strip.n:,}, median {cell(strip.median)}"
        head = alt.TitleParams(text, anchor="start", fontSize=11, fontWeight="normal", offset=2)
        panels.append(bars.properties(title=head, width=420, height=55))
    return titled(alt.vconcat(*panels, spacing=6), title, found.caption)


# The job over time


def _time(line: Timeline) -> tuple[float, Any]:
    """Return the seconds of the unit of a time axis, and the axis, with a line where an attempt starts."""
    points = numbers(line.points["running_seconds"])
    end = float(points[-1]) if len(points) else 0.0
    units = (
        (180.0, 1.0, "seconds"),
        (7_200.0, 60.0, "minutes"),
        (172_800.0, 3_600.0, "hours"),
        (np.inf, 86_400.0, "days"),
    )
    size, name = next((size, name) for limit, size, name in units if end < limit)
    return size, alt.X("t:Q", title=f"running time ({name})", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=5))


def _lines(line: Timeline, series: Mapping[str, tuple[str, str]], y_title: str, unit: float = 1.0) -> list[Any]:
    """Return a line for each series: the name of each column, and its colour. Also lines where attempts start."""
    size, x = _time(line)
    colour = coloured([name for name, _ in series.values()], [one for _, one in series.values()])
    layers = []
    for column, (name, _) in series.items():
        rows = [
            {"t": row["running_seconds"] / size, "y": row[column] / unit, "series": name}
            for row in line.points.to_pylist()
            if row[column] is not None
        ]
        step = {"interpolate": "step-after", "strokeDash": [3, 2]} if column == "durable" else {}
        mark = drawn_from(rows).mark_line(point={"size": 18} if len(rows) < 30 else False, **step)
        y = alt.Y("y:Q", title=y_title, scale=alt.Scale(domainMin=0), axis=alt.Axis(tickCount=5))
        layers.append(mark.encode(x=x, y=y, color=colour if len(series) > 1 else alt.value(BLUE)))
    if len(line.starts) > 1:
        starts = [{"t": seconds / size} for seconds in line.starts.tolist()]
        layers.append(drawn_from(starts).mark_rule(color=AXIS, strokeDash=[4, 3]).encode(x=x))
    return layers


def progress(line: Timeline) -> Chart:
    """Draw the simulations that have finished and those that are committed."""
    if not len(line.points):
        text = "The job has no samples yet. A runner takes one about every 10 s."
        return titled(drawn_from([]).mark_line(), "Progress", text)
    series = {"simulations": ("finished", BLUE), "durable": ("committed", GREEN)}
    n_failed = line.points["failed"][-1].as_py()
    series |= {"failed": ("failed", VERMILION)} if n_failed else {}
    rule = drawn_from([{"y": line.n_simulations}]).mark_rule(color=AXIS, strokeDash=[4, 3])
    layers = [rule.encode(y="y:Q"), *_lines(line, series, "simulations")]
    last = line.points["simulations"][-1].as_py()
    of = f"{last:,} of {line.n_simulations:,} simulations have finished, {n_failed:,} of them failed"
    n, running = counted(len(line.starts), "attempt"), duration(line.points["running_seconds"][-1].as_py())
    pauses = ", without the pauses between them" if len(line.starts) > 1 else ""
    caption = f"{of}, over {running} in {n}{pauses}. A commit makes many simulations durable at once."
    return titled(alt.layer(*layers), "Progress", caption, 420, 200)


def rate(line: Timeline) -> Chart:
    """Draw the simulations per second."""
    caption = (
        "Good and failed simulations that reached the runner, per second, as means over the time before each sample."
    )
    layers = _lines(line, {"rate": ("rate", BLUE)}, "simulations per second")
    return titled(alt.layer(*layers), "Rate", caption, 420, 200)


def memory(line: Timeline) -> Chart:
    """Draw the resident memory of the runner, and of the runner with all its child processes."""
    peak = max(line.points["memory_bytes"].to_pylist(), default=0)
    size, unit = (2.0**30, "GiB") if peak >= 2 * 2**30 else (2.0**20, "MiB")
    series = {"memory_bytes": ("runner and its child processes", BLUE), "runner_bytes": ("runner alone", GREY)}
    layers = _lines(line, series, f"memory ({unit})", size)
    caption = "Resident memory of the runner, and of the runner with all its child processes."
    if line.limit_bytes:
        is_near = line.limit_bytes < _LIMIT_SHOWN * peak
        where = "the red line" if is_near else "far above the figure"
        caption += f" The container or the machine has {bytes_text(line.limit_bytes)}, {where}."
        limit = (
            drawn_from([{"y": line.limit_bytes / size}]).mark_rule(color=VERMILION, strokeDash=[4, 3]).encode(y="y:Q")
        )
        layers += [limit] if is_near else []
    return titled(alt.layer(*layers), "Memory", caption, 420, 200)


# Calibrations


def trials(found: Trials) -> Chart:
    """Draw the losses over the trials, the least loss so far, and where rounds begin."""
    rows = [row for row in found.points.to_pylist() if row["loss"] is not None]
    losses = [row["loss"] for row in rows]
    x = alt.X("trial:Q", scale=alt.Scale(nice=False, padding=4))
    cut, note = None if found.is_log else _cut(rows), ""
    if cut is not None:
        n_above = counted(sum(loss > cut for loss in losses), "trial")
        note = f" The vertical axis ends at {cell(cut)}, to show the later rounds: {n_above} above."
    y = loss_y("loss", losses, "loss", is_log=found.is_log, domain=None if cut is None else [min(losses), cut])
    names = ["a trial", "least loss so far", "a new round"]
    colour = coloured(names, [BLUE, VERMILION, PALE])
    starts = [{"trial": n + 0.5, "series": names[2]} for n in found.n_before[1:].tolist()]
    rounds = drawn_from(starts).mark_rule(strokeDash=[3, 3])
    points = drawn_from([row | {"series": names[0]} for row in rows]).mark_circle(size=18, opacity=0.6, clip=True)
    best = [row | {"series": names[1]} for row in found.points.to_pylist() if row["best"] is not None]
    line = drawn_from(best).mark_line(interpolate="step-after", strokeWidth=2, clip=True)
    layers = [
        rounds.encode(x=x, color=colour),
        points.encode(x=x, y=y, color=colour),
        line.encode(x=x, y=with_field(y, "best"), color=colour),
    ]
    shown = f" {len(found.points):,} of them are shown." if len(found.points) < found.n_trials else ""
    least = f", {cell(min(losses))}" if losses else ""
    over = f"{counted(found.n_trials, 'trial')} in {counted(len(found.n_before), 'round')}"
    caption = f"The loss of {over}, and the least so far{least}.{shown}{note}"
    return titled(alt.layer(*layers), "Trials", caption, 1000, 300)


def _cut(rows: Rows) -> float | None:
    """Return where the axis of losses ends, so that the later rounds are no flat line; None: it shows all losses."""
    first = min((row["round"] for row in rows), default=0)
    later = [row["loss"] for row in rows if row["round"] > first]
    if not later:
        return None
    least, greatest = min(row["loss"] for row in rows), max(row["loss"] for row in rows)
    end = float(np.quantile(later, _LATER_SHOWN))
    return end if 0 < end - least < _FLAT * (greatest - least) else None


def marginal(bins: Bins, table: pa.Table, median: float | None, rough: str = "") -> Chart:
    """Draw the posterior of a parameter in bins, its prior, and its median; ``rough``: "rough " or nothing."""
    names = [f"{rough}posterior", "prior", *([f"{rough}median {cell(median)}"] if median is not None else [])]
    rows = [row | {"series": names[0]} for row in binned(bins, table)]
    y = alt.Y("weight:Q", title="share in each bin", axis=alt.Axis(format="~%", tickCount=5))
    colour, priors = coloured(names, [BLUE, AMBER, VERMILION]), [row | {"series": names[1]} for row in rows]
    layers = [bin_bars(bins, rows, y).encode(color=colour)]
    for style in ({"color": CARD, "size": 5}, {"size": 2.5}):  # a line with an edge is seen on each bar
        line = drawn_from(priors)
        if bins.kind == "values":
            size = style.pop("size")
            line = line.mark_tick(orient="horizontal", thickness=size, opacity=1, **style)
        else:
            line = line.mark_rule(**style)
        shade = {} if "color" in style else {"color": colour}
        layers.append(line.encode(**bin_axis(bins, "x"), y=with_field(y, "prior"), **shade))
    if median is not None:
        at_median = drawn_from([{"x_at": median, "series": names[2]}]).mark_rule(size=2)
        layers.append(at_median.encode(**bin_axis(bins, "x", at=True), color=colour))
    likely = max(rows, key=lambda row: row["weight"])
    caption = (
        "The weight of the trials in each bin and the prior probability of the bin. Each sums to 1. Most weight is in "
        f"{likely['label']}: {likely['weight']:.0%}, and {likely['prior']:.2%} of the prior."
    )
    title = f"{f'{rough}posterior'.capitalize()} of {shortened(bins.name, 40)}"
    return titled(alt.layer(*layers), title, caption)


def posterior_pair(table: pa.Table, x: Bins, y: Bins, rough: str = "") -> Chart:
    """Draw the posterior weight in each cell of two parameters."""
    rows = celled(x, y, table.drop_columns(["x", "y"]))
    most = max((row["weight"] for row in rows), default=1.0)
    rows = [row for row in rows if row["weight"] >= _LEAST_SHARE * most]
    limits = [float(f"{most * i / len(SHARES):.2g}") for i in range(1, len(SHARES))]
    scale = alt.Scale(type="threshold", domain=limits, range=list(SHARES))
    legend = alt.Legend(orient="top", title="weight", format=".2~g", offset=LEGEND_OFFSET)
    colour = alt.Color("weight:Q", scale=scale, legend=legend)
    caption = (
        f"The weight of the trials in each cell. A cell with less than {100 * _LEAST_SHARE:g} % of the greatest "
        f"weight, {most:.2g}, is empty."
    )
    title = f"{f'{rough}posterior'.capitalize()} of {shortened(x.name, 24)} and {shortened(y.name, 24)}"
    chart = drawn_from(rows).mark_rect().encode(**bin_axis(x, "x"), **bin_axis(y, "y"), color=colour)
    return titled(chart, title, caption)


def pareto(rows: Rows, x: str, y: str) -> Chart:
    """Draw trials over two objectives; ``best`` of a row: it is in the Pareto set."""
    names = ["a trial", "Pareto set"]
    scale = alt.Scale(zero=False, padding=6)
    axes = {
        "x": alt.X("x:Q", scale=scale, title=shortened(x, 40), axis=alt.Axis(tickCount=5)),
        "y": alt.Y("y:Q", scale=scale, title=shortened(y, 40), axis=alt.Axis(tickCount=5)),
    }
    layers = []
    for name, size, is_best in ((names[0], 16, False), (names[1], 36, True)):
        some = [row | {"series": name} for row in rows if row["best"] == is_best]
        mark = drawn_from(some).mark_circle(size=size, opacity=1 if is_best else 0.7)
        layers.append(mark.encode(**axes, color=coloured(names, [PALE, VERMILION])))
    n_best = sum(row["best"] for row in rows)
    caption = (
        f"The losses of {counted(len(rows), 'trial')}. No trial is better in all objectives than one of the "
        f"{counted(n_best, 'set')} of the Pareto set."
    )
    return titled(alt.layer(*layers), f"Pareto set: {shortened(x, 24)} and {shortened(y, 24)}", caption)
