"""The look of all plots: colours, sizes, units, the caption. This package is imported at the first plot."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, Locator, MaxNLocator, NullFormatter, NullLocator
from PIL.Image import Exif

from mops.figures.log_axes import Decades, log_ticks, ticks_from_0
from mops.project.bundle import MARK

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
