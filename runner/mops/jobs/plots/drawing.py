"""Draws the numbers of figures on axes of matplotlib. It computes nothing that a figure's table does not have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from mops.figures.bins import Bins, is_constant
from mops.figures.columns import Floats, numbers
from mops.figures.fan import MOST_OVERLAID, Fan
from mops.figures.log_axes import Decades
from mops.figures.losses import Distribution, ShownSets
from mops.figures.profiles import Pairs, Profile
from mops.figures.row_keys import division_text
from mops.figures.sensitivity import Sensitivity
from mops.figures.sobol import Sobol
from mops.figures.timeline import Timeline
from mops.jobs.plots.style import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    INK,
    MAP,
    ORANGE,
    VERMILION,
    Plot,
    Unit,
    add_caption,
    padded,
    panels,
    unit_of_bytes,
    unit_of_time,
    use_date_ticks,
    use_decades,
    use_log_scale,
    use_log_ticks,
)
from mops.project.mops_toml import Observed
from mops.units import counted

_MOST_TICKS = 8
_TEXT, _LONG_TEXT = 14, 28  # characters of a tick
_COLOURED = 0.75  # the share of the sets, those with the least losses, whose colours tell their losses apart


def draw_distribution(ax: Axes, figure: Distribution) -> None:
    """Draw how a loss is spread over the sets: a bar for each bin."""
    n = figure.table["n"].to_numpy()
    if figure.bins.kind == "values":
        ax.bar(_places(figure.bins), n, width=_width_of(figure.bins), color=BLUE)
        _ticks_of(ax, figure.bins)
    else:
        ax.stairs(n, figure.bins.edges, fill=True, color=BLUE)
        if figure.bins.kind == "log":
            use_log_scale(ax, vertical=False)
    if figure.quantiles is not None:
        least, _, median, *_ = figure.quantiles
        for value, colour, text in ((least, VERMILION, "least"), (median, INK, "median")):
            at = _places(figure.bins)[figure.bins.index(pa.array([value]))[0]] if figure.bins.is_text else value
            ax.axvline(at, color=colour, linewidth=1.2, linestyle="--", label=f"{text} {value:.4g}")
        ax.legend(loc="upper right")
    ax.margins(y=0.35)  # for the legend
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(title=figure.title, xlabel="loss", ylabel="parameter sets", ylim=(0, None))


def draw_profile(ax: Axes, figure: Profile, sets: ShownSets) -> None:
    """Draw the least and the median loss over a parameter, and sets as points."""
    places = _places(figure.bins)
    x = _coordinates(figure.bins, sets.table[figure.parameter])
    ax.scatter(x, numbers(sets.table[figure.label]), s=7, color=GREY, alpha=0.45, linewidths=0, label="sets")
    best, median = numbers(figure.table["best"]), numbers(figure.table["median"])
    full = np.isfinite(best)
    kind = "none" if figure.bins.is_text else "-"
    ax.plot(places[full], best[full], color=BLUE, marker="o", markersize=3.5, linestyle=kind, label="least")
    ax.plot(places[full], median[full], color=VERMILION, marker="_", linewidth=1.2, linestyle=kind, label="median")
    _scale_of(ax, figure.bins)
    if sets.is_log:
        use_log_scale(ax, vertical=True)
    ax.set(xlabel=figure.parameter, ylabel=figure.title)


def draw_fan(
    ax: Axes,
    figure: Fan,
    data: Observed | None,
    axis: Decades | None,  # the logarithmic vertical axis; None: the axis is linear
) -> None:
    """Draw the median and the bands along x, in one colour for each division, and data as points."""
    divided = figure.divided()
    for number, one in enumerate(divided):
        colour, rows = COLOURS[number % len(COLOURS)], one.table
        division = rows["division"][0].as_py()
        name = division_text(figure.by, division)
        if figure.keys and data is not None:
            _draw_data(ax, data.of_division(division), colour, f"data: {name}")
        if len(one.lines):
            _draw_simulations(ax, one.lines, colour, name or "a simulation")
            continue
        x = rows["x"].to_numpy()
        low90, low50, median, high50, high90 = (numbers(rows[name]) for name in rows.column_names[3:])
        if len(divided) <= MOST_OVERLAID:
            label = "" if name else "middle 90 %"
            ax.fill_between(x, low90, high90, color=colour, alpha=0.16, linewidth=0, label=label)
        ax.fill_between(x, low50, high50, color=colour, alpha=0.3, linewidth=0, label="" if name else "middle 50 %")
        marker = "o" if len(x) == 1 else None
        ax.plot(x, median, color=colour, marker=marker, label=name or "median")
    if data is not None and not figure.keys:
        _draw_data(ax, data, INK, f"data: {_shortened(data.file, _LONG_TEXT)}")
    ax.set(xlabel=figure.x, ylabel=figure.y)
    if not pa.types.is_floating(figure.table["x"].type):
        use_date_ticks(ax.xaxis)
    if axis is not None:
        use_decades(ax, axis)


def _draw_data(ax: Axes, data: Observed | None, colour: str, label: str) -> None:
    if data is not None:
        x, y = data.table[data.x].to_numpy(), numbers(data.table[data.y])
        ax.plot(x, y, color=colour, marker="o", markersize=4, markeredgecolor="white", linestyle="none", label=label)


def _draw_simulations(ax: Axes, lines: pa.Table, colour: str, label: str) -> None:
    rows = zip(*(lines[column].to_pylist() for column in ("group", "replicate", "x", "y")), strict=True)
    for number, (_, some) in enumerate(groupby(rows, key=lambda row: row[:2])):
        _, _, x, y = zip(*some, strict=True)
        marker = "o" if len(x) == 1 else None
        ax.plot(x, y, color=colour, linewidth=1, marker=marker, label="" if number else label)


def draw_timeline(figure: Timeline) -> Plot:
    """Draw the progress, the rate and the memory over time, one below the other."""
    plot, (progress, rate, memory) = panels(3, columns=1, share=True)
    plot.set_size_inches(6.4, 6.6)
    points = figure.points
    seconds = numbers(points["running_seconds"])
    unit = unit_of_time(float(seconds[-1]) if len(seconds) else 0.0)
    x = seconds / unit.size
    marker = "o" if len(x) == 1 else None
    series: tuple[tuple[str, str, str, str], ...] = (
        ("simulations", "finished", BLUE, "-"),
        ("durable", "committed", GREEN, "--"),
        ("failed", "failed", VERMILION, "-"),
    )
    for column, name, colour, line in series:
        steps = "steps-post" if column == "durable" else "default"  # a commit makes many simulations durable at once
        y = numbers(points[column])
        progress.plot(x, y, color=colour, linestyle=line, drawstyle=steps, marker=marker, label=name)
    progress.axhline(figure.n_simulations, color=GREY, linewidth=1, linestyle=":", label="all")
    progress.set(ylabel="simulations", ylim=(0, None))
    rates = numbers(points["rate"])
    rate.plot(x, rates, color=BLUE, marker="o" if np.isfinite(rates).sum() == 1 else None)
    rate.set(ylabel="simulations per second", ylim=(0, None))
    _draw_memory(memory, figure, x)
    memory.set(xlabel=f"running time ({unit.name})")
    for ax in (progress, memory):
        ax.legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)
    _mark_attempts((progress, rate, memory), figure, unit)
    add_caption(plot, f"{figure.caption} {figure.memory_caption}" if len(points) else figure.caption)
    return plot


def _draw_memory(ax: Axes, figure: Timeline, x: Floats) -> None:
    every, runner = numbers(figure.points["memory_bytes"]), numbers(figure.points["runner_bytes"])
    highest = float(every.max()) if len(every) else 0.0
    unit = unit_of_bytes(highest)
    marker = "o" if len(x) == 1 else None
    ax.plot(x, every / unit.size, color=BLUE, marker=marker, label="runner and its processes")
    ax.plot(x, runner / unit.size, color=VERMILION, marker=marker, label="runner")
    limit = figure.limit_bytes
    if limit is not None and limit <= 4 * highest:  # a far limit would press the curves to the bottom
        ax.axhline(limit / unit.size, color=INK, linewidth=1, linestyle=":", label="limit")
    elif limit is not None:
        ax.plot([], [], color=INK, linewidth=1, linestyle=":", label=f"limit {limit / unit.size:,.0f} {unit.name}")
    ax.set(ylabel=f"memory ({unit.name})", ylim=(0, None))


def _mark_attempts(axes: Sequence[Axes], figure: Timeline, unit: Unit) -> None:
    for attempt, seconds in zip(
        figure.attempts["attempt"].to_pylist(), figure.attempts["running_seconds"].to_pylist(), strict=True
    ):
        if len(figure.attempts) > 1:
            for ax in axes:
                ax.axvline(seconds / unit.size, color=GREY, linewidth=1, linestyle="--")
            axes[0].annotate(
                f"attempt {attempt}",
                (seconds / unit.size, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -9),
                textcoords="offset points",
                fontsize=7.5,
            )


def draw_pairs(figure: Pairs, profiles: Sequence[Profile]) -> Plot:
    """Draw a matrix: each pair of parameters below the diagonal, and the profile of each parameter on it."""
    n = len(figure.parameters)
    plot = Plot(figsize=(max(2.0 * n + 1.2, 5.2), max(1.9 * n + 0.6, 3.4)), layout="constrained")
    padded(plot)
    grid = plot.subplots(n, n, squeeze=False, sharex="col")
    losses = numbers(figure.points.table[figure.label])
    # A few sets far from the data would give all others the same colour.
    least, greatest = np.quantile(losses, (0, _COLOURED)).tolist()
    norm = (LogNorm if figure.points.is_log else Normalize)(least, greatest, clip=True)
    for row, column in product(range(n), range(n)):
        ax = grid[row, column]
        if column > row:
            ax.remove()
        elif column == row:
            _draw_diagonal(ax, profiles[row], is_log=figure.points.is_log)
        else:
            _draw_pair(ax, figure, (figure.parameters[column], figure.parameters[row]), norm)
        if column <= row:
            _outer_labels(ax, figure, row, column)
    n_above = 0 if n == 1 or is_constant(losses) else int((losses > greatest).sum())
    if n > 1:
        extend = "max" if n_above else "neither"
        bar = plot.colorbar(ScalarMappable(norm, MAP), ax=plot.axes, label=figure.title, shrink=0.6, extend=extend)
        if figure.points.is_log:
            use_log_ticks(bar.ax.yaxis)
    above = f" {counted(n_above, 'point')} {'has' if n_above == 1 else 'have'} a greater loss than the colours show."
    diagonal = "The diagonal has the least loss in each bin of a parameter."
    add_caption(plot, f"{figure.caption} {diagonal}{above if n_above else ''}")
    return plot


def _draw_pair(ax: Axes, figure: Pairs, names: tuple[str, str], norm: Normalize) -> None:
    rows = np.arange(len(figure.points.table))[::-1]  # the best on top
    table = figure.points.table.take(pa.array(rows))
    x, y = (_coordinates(figure.bins[name], table[name]) for name in names)
    size = np.where(rows < figure.points.n_best, 14.0, 6.0)
    ax.scatter(x, y, s=size, c=numbers(table[figure.label]), norm=norm, cmap=MAP, linewidths=0)
    _scale_of(ax, figure.bins[names[0]])
    _scale_of(ax, figure.bins[names[1]], vertical=True)


def _draw_diagonal(ax: Axes, profile: Profile, *, is_log: bool) -> None:
    best = numbers(profile.table["best"])
    full = np.isfinite(best)
    line = "none" if profile.bins.is_text else "-"
    ax.plot(_places(profile.bins)[full], best[full], color=BLUE, marker="o", markersize=3, linestyle=line)
    ax.tick_params(axis="y", labelsize=7)
    _scale_of(ax, profile.bins)
    if is_log:
        use_log_scale(ax, vertical=True)


def _outer_labels(ax: Axes, figure: Pairs, row: int, column: int) -> None:
    last = len(figure.parameters) - 1
    if row == last:
        bins = figure.bins[figure.parameters[column]]
        ax.set_xlabel(bins.name)
        if bins.kind == "linear":
            ax.xaxis.set_major_locator(MaxNLocator(3, integer=bins.is_integer))
    else:
        ax.tick_params(labelbottom=False)
    if column == 0:
        ax.set_ylabel(figure.parameters[row] if row else f"least\n{figure.title}")
    elif column < row:
        ax.tick_params(labelleft=False)


def draw_sensitivity(figure: Sensitivity, notes: Sequence[str] = ()) -> Plot:
    """Draw an axes for each measure, with a point and its interval for each parameter; notes end the caption."""
    parameters = figure.table["parameter"].unique().to_pylist()
    plot, axes = _panels_of_measures(figure.table["measure"].unique().to_pylist(), parameters)
    for measure, ax in axes.items():
        rows = figure.table.filter(pc.equal(figure.table["measure"], measure))
        rho, low, high = (numbers(rows[name]) for name in ("rho", "low", "high"))
        y = np.arange(len(rho))
        ax.axvline(0, color=GREY, linewidth=1)
        ax.hlines(y, low, high, color=BLUE, linewidth=1.5)
        ax.plot(rho, y, color=BLUE, marker="o", linestyle="none")
        ax.set(xlim=(-1.05, 1.05), xlabel="rank correlation")
    add_caption(plot, " ".join([figure.caption, *notes]))
    return plot


def draw_sobol(figure: Sobol, notes: Sequence[str] = ()) -> Plot:
    """Draw an axes for each measure, with two bars and their intervals for each parameter; notes end the caption."""
    parameters = figure.design.parameters
    plot, axes = _panels_of_measures(figure.measures, parameters, row_height=0.42)
    captions: dict[str, list[str]] = {}
    edge = withStroke(linewidth=3, foreground="white")  # so that a line is seen on each bar
    for measure, ax in axes.items():
        rows = figure.table.filter(pc.equal(figure.table["measure"], measure))
        for order, name, colour, shift in (("total", "total", BLUE, -0.2), ("first", "first-order", ORANGE, 0.2)):
            of_order = rows.filter(pc.equal(rows["order"], order))
            index, low, high = (numbers(of_order[column]) for column in ("index", "low", "high"))
            y = np.arange(len(parameters)) + shift
            ax.barh(y, index, height=0.36, color=colour, label=name)
            ax.hlines(y, low, high, color=INK, linewidth=1.3, path_effects=[edge])
        ax.axvline(0, color=GREY, linewidth=1)
        ax.set(xlabel="share of the variance", xlim=(min(0.0, ax.get_xlim()[0]), max(1.0, ax.get_xlim()[1])))
        captions.setdefault(figure.caption(measure), []).append(measure)
    plot.axes[0].legend(loc="lower right")
    texts = [f"{', '.join(measures)}: {text}" if len(captions) > 1 else text for text, measures in captions.items()]
    add_caption(plot, " ".join([*texts, *notes]))
    return plot


def _panels_of_measures(
    measures: Sequence[str], parameters: Sequence[str], *, row_height: float = 0.28
) -> tuple[Plot, dict[str, Axes]]:
    """Return a figure with axes for each measure, that have a row of ``row_height`` inches for each parameter."""
    plot, axes = panels(len(measures))
    height = max(1.0 + row_height * len(parameters), 1.6)
    plot.set_size_inches(plot.get_figwidth(), height * -(-len(axes) // 3) + 0.8)
    places = np.arange(len(parameters))
    for number, (ax, measure) in enumerate(zip(axes, measures, strict=True)):
        ax.set(title=measure, ylim=(len(parameters) - 0.5, -0.5))
        ax.set_yticks(places, [_shortened(name, _LONG_TEXT) for name in parameters] if number % 3 == 0 else [])
    return plot, dict(zip(measures, axes, strict=True))


def _places(bins: Bins) -> Floats:
    return bins.middles


def _coordinates(bins: Bins, column: pa.ChunkedArray) -> Floats:
    """Return where the values of a column are on the axis of its bins."""
    if not bins.is_text:
        return numbers(column)
    index = bins.index(column)
    return np.where(index >= 0, index, np.nan).astype(np.float64)


def _width_of(bins: Bins) -> float:
    """Return the width of bars: 80 % of the least distance of two values."""
    distances = np.diff(bins.middles)
    return 0.8 * float(distances.min()) if len(distances) else 0.8


def _scale_of(ax: Axes, bins: Bins, *, vertical: bool = False) -> None:
    if bins.kind == "log":
        use_log_scale(ax, vertical=vertical)
    elif bins.is_integer:
        (ax.yaxis if vertical else ax.xaxis).set_major_locator(MaxNLocator(_MOST_TICKS, integer=True))
    elif bins.is_text:
        _ticks_of(ax, bins, vertical=vertical)


def _ticks_of(ax: Axes, bins: Bins, *, vertical: bool = False) -> None:
    # The values of the bins have names only if they are few or texts.
    if not bins.is_text and len(bins) > _MOST_TICKS:
        return
    axis: Any = ax.yaxis if vertical else ax.xaxis
    axis.set_ticks(bins.middles, [_shortened(label) for label in bins.labels()])
    if bins.is_text:  # their points would lie on the edges
        ends = (-0.5, len(bins) - 0.5)
        (ax.set_ylim if vertical else ax.set_xlim)(*ends)
    longest = max((len(_shortened(label)) for label in bins.labels()), default=0)
    if not vertical and longest * len(bins) > 32:
        ax.tick_params(axis="x", labelrotation=40)


def _shortened(text: str, most: int = _TEXT) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
