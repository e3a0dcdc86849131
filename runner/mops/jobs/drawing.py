"""Draws the pictures of ``job.plot`` with matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, Locator, MaxNLocator, NullFormatter, NullLocator
from PIL.Image import Exif

from mops.figures.bins import Bins, is_constant
from mops.figures.columns import Floats, numbers
from mops.figures.fan import MOST_OVERLAID, Fan
from mops.figures.log_axes import Decades, log_ticks, ticks_from_0
from mops.figures.losses import Distribution, ShownSets
from mops.figures.profiles import Pairs, Profile
from mops.figures.row_keys import division_text
from mops.figures.sensitivity import Sensitivity
from mops.figures.sobol import Sobol
from mops.figures.timeline import Timeline
from mops.project.bundle import MARK
from mops.project.mops_toml import Observed
from mops.units import counted

# Okabe and Ito 2008: people with any kind of colour blindness tell these apart.
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
GREY, INK = "#8a8a8a", "#222222"
MAP = "viridis"  # the colours of losses: the least is the darkest

_CAPTION_POINTS = 8.0
_CAPTION_WIDTH = 0.85  # of the figure; hinting at few dots per inch widens a text by several percent
_PANEL_WIDTH, _PANEL_HEIGHT = 3.6, 2.6  # inches
_FEW_TICKS = 5
_LINEAR_PART = 0.3  # decades: about the height of the linear part in the scale "symlog" of Vega
_PADDING = {"w_pad": 0.08, "h_pad": 0.08}  # inches
_LOOK: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.facecolor": "white",
    "font.size": 9,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.dpi": 150,
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 8,
    "ytick.color": INK,
    "ytick.labelsize": 8,
}


# The formats whose metadata can say who made them, and the key for it.
_MARKED_BY = {"png": "Software", **dict.fromkeys(("svg", "svgz", "pdf", "ps", "eps"), "Creator")}
_SOFTWARE_TAG = 0x0131  # of Exif and TIFF


def _exif() -> bytes:
    exif = Exif()
    exif[_SOFTWARE_TAG] = MARK
    return exif.tobytes()


# The formats that Pillow writes for matplotlib, and its option that says who made a picture.
_MARKED_BY_PILLOW: dict[str, dict[str, Any]] = {
    **{key: {"exif": _exif()} for key in ("jpg", "jpeg", "webp")},
    **{key: {"software": MARK} for key in ("tif", "tiff")},
}


class Plot(Figure):
    """A figure that a notebook shows as a picture. pyplot does not know it, so nothing shows it twice."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the picture, with the mark by which bundles leave it out."""
        suffix = Path(fname).suffix if isinstance(fname, (str, os.PathLike)) else ""
        file_format = (options.get("format") or suffix.lstrip(".") or mpl.rcParams["savefig.format"]).lower()
        if key := _MARKED_BY.get(file_format):
            options["metadata"] = {key: MARK} | (options.get("metadata") or {})
        elif file_format in _MARKED_BY_PILLOW:
            options["pil_kwargs"] = _MARKED_BY_PILLOW[file_format] | (options.get("pil_kwargs") or {})
        super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png")
        return picture.getvalue()


@contextmanager
def look() -> Iterator[None]:
    """Draw with the look of mops, and leave the settings of matplotlib as they were."""
    with mpl.rc_context(_LOOK):
        yield


def panels(
    n: int,
    columns: int = 3,
    *,
    share: bool = False,  # whether the axes of a column have the same horizontal axis
) -> tuple[Plot, list[Axes]]:
    """Return a figure with ``n`` axes, in rows of at most ``columns``."""
    across = max(1, min(n, columns))
    down = max(1, -(-n // across))
    width = 6.4 if across == 1 else _PANEL_WIDTH * across
    figure = Plot(figsize=(width, max(_PANEL_HEIGHT * down, 3.4) + 0.5), layout="constrained")
    padded(figure)
    grid = figure.subplots(down, across, squeeze=False, sharex="col" if share else "none")
    every = list(grid.flat)
    for unused in every[n:]:
        unused.remove()
    return figure, every[:n]


def use_log_scale(ax: Axes, *, vertical: bool) -> None:
    """Make an axis logarithmic."""
    (ax.set_yscale if vertical else ax.set_xscale)("log")
    use_log_ticks(ax.yaxis if vertical else ax.xaxis)


def use_decades(ax: Axes, axis: Decades) -> None:
    """Make the vertical axis logarithmic. Call it after the values are drawn."""
    if axis.linear_below is None:
        use_log_scale(ax, vertical=True)
        return
    ax.set_yscale("symlog", linthresh=axis.linear_below, linscale=_LINEAR_PART)
    ax.set_ylim(bottom=0)
    use_log_ticks(ax.yaxis, axis.linear_below)


def use_log_ticks(
    axis: Axis,
    # The end of the linear part of the axis, which has a tick at 0; None: all is logarithmic.
    linear_below: float | None = None,
) -> None:
    """Give a logarithmic axis the ticks of all figures, as plain numbers. Matplotlib writes a power of ten for 120."""
    axis.set_major_locator(_LogTicks(linear_below))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    axis.set_minor_formatter(NullFormatter())
    if linear_below is not None:
        axis.set_minor_locator(NullLocator())


def use_date_ticks(axis: Axis) -> None:
    """Give an axis of dates or times few ticks with short labels, which do not collide."""
    untyped: Any = dates
    locator = untyped.AutoDateLocator(minticks=3, maxticks=_FEW_TICKS + 1)
    axis.set_major_locator(locator)
    axis.set_major_formatter(untyped.ConciseDateFormatter(locator))


class _LogTicks(Locator):
    """The ticks of the shown part of an axis. They follow the limits that a caller sets later."""

    def __init__(self, linear_below: float | None):
        self._linear_below = linear_below

    def __call__(self) -> Sequence[float]:
        axis: Any = self.axis
        return self.tick_values(*axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        # A part without regular ticks gets those of a linear axis.
        low, high = sorted((vmin, vmax))
        start = low if self._linear_below is None else max(low, self._linear_below)
        if not 0 < start < high:
            ticks: Sequence[float] = []
        elif self._linear_below is not None and low <= 0:
            ticks = ticks_from_0(self._linear_below, high)
        else:
            ticks = log_ticks(start, high)
        return ticks if len(ticks) > 1 else MaxNLocator(_FEW_TICKS).tick_values(low, high)


def _plain(value: float) -> str:
    return f"{value:,.6g}" if 1e-4 <= abs(value) < 1e6 else f"{value:g}"


def padded(figure: Figure) -> None:
    """Leave some room at the edges of a figure with the layout ``constrained``."""
    engine: Any = figure.get_layout_engine()
    engine.set(**_PADDING)


def add_caption(figure: Figure, caption: str) -> None:
    """Write the caption below the axes."""
    figure.supxlabel(
        "\n".join(_lines(caption, figure.get_figwidth() * 72 * _CAPTION_WIDTH)),
        x=0.01,
        ha="left",
        fontsize=_CAPTION_POINTS,
        color="#555555",
    )


def _lines(text: str, width: float) -> list[str]:
    """Return a text in lines that are at most ``width`` points wide in the font of captions."""
    font = FontProperties(size=_CAPTION_POINTS)
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and TextPath((0, 0), longer.replace("$", r"\$"), prop=font).get_extents().width > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


@dataclass(frozen=True)
class Unit:
    """A unit of an axis: a value is divided by ``size``."""

    name: str
    size: float


def unit_of_time(seconds: float) -> Unit:
    """Return the unit for a time axis that ends at some seconds."""
    for name, size, least in (("days", 86_400.0, 2.0), ("h", 3_600.0, 2.0), ("min", 60.0, 3.0)):
        if seconds >= least * size:
            return Unit(name, size)
    return Unit("s", 1.0)


def unit_of_bytes(n_bytes: float) -> Unit:
    """Return the unit for an axis of bytes that ends at a number of bytes."""
    return Unit("GiB", 2.0**30) if n_bytes >= 4 * 2**30 else Unit("MiB", 2.0**20)


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
