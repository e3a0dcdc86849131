"""Draws the pictures of the documentation: ``python docs/pictures/draw.py`` writes the SVG files into its folder.

The curves come from bench/results, the words of the life of a group from the journey (docs/internals/journey.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "bench" / "results"
MIB = 2**20
BLUE, ORANGE, GREY, INK = "#1f5f99", "#b35900", "#8a8a8a", "#111111"
Point = tuple[float, float]


def main() -> None:
    for name, picture in PICTURES.items():
        (HERE / name).write_text(picture())


def svg(width: float, height: float, shapes: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>', *shapes, "</svg>", ""])


def text(x: float, y: float, words: str, *, size: int = 13, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def line(points: Sequence[Point], colour: str, *, width: float = 2, dashed: bool = False) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dash}/>'


def scaled(low: float, high: float, start: float, end: float, *, log: bool = False) -> Callable[[float], float]:
    """Return what turns a value from ``low`` to ``high`` into a place from ``start`` to ``end``."""
    of = math.log10 if log else float
    return lambda value: start + (of(value) - of(low)) / (of(high) - of(low)) * (end - start)


def axes(
    x: Callable[[float], float],
    y: Callable[[float], float],
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    titles: tuple[str, str],
) -> list[str]:
    left, right = x(x_ticks[0]), x(x_ticks[-1])
    shapes = [text(left - 8, y(y_ticks[-1]) - 14, titles[1], size=12, colour=GREY)]
    for value in y_ticks:
        shapes.append(line([(left, y(value)), (right, y(value))], "#e4e4e4", width=1))
        shapes.append(text(left - 8, y(value) + 4, f"{value:,.0f}", size=12, anchor="end", colour=GREY))
    below = y(y_ticks[0]) + 18
    shapes += [text(x(value), below, f"{value:,.0f}", size=12, anchor="middle", colour=GREY) for value in x_ticks]
    return [*shapes, text(right, y(y_ticks[0]) + 36, titles[0], size=12, anchor="end", colour=GREY)]


def memory_by_sets() -> str:
    """Draw the peak memory of each runner over the number of parameter sets, both axes in logarithms."""
    points = json.loads((RESULTS / "memory.json").read_text())["points"]
    x, y = scaled(200, 10_000, 70, 560, log=True), scaled(100, 5_000, 320, 40, log=True)
    shapes = axes(x, y, (200, 1_000, 2_000, 5_000, 10_000), (100, 200, 500, 1_000, 2_000, 5_000), AXES_BY_SETS)
    for peer, (colour, lift) in PEERS.items():
        peaks: dict[int, list[int]] = {}
        for point in points:
            if point["load"] == "64 KiB" and point["peer"] == peer:
                peaks.setdefault(point["sets"], []).append(point["peak_bytes"])
        curve = [(x(sets), y(mean(found) / MIB)) for sets, found in sorted(peaks.items())]
        shapes.append(line(curve, colour, width=3 if peer == "mops" else 1.5))
        shapes += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in curve]
        shapes.append(text(curve[-1][0] + 10, curve[-1][1] + 4 + lift, peer, colour=colour))
    return svg(700, 370, shapes)


AXES_BY_SETS = ("parameter sets, 64 KiB of results each", "peak memory, MiB")
PEERS = {
    "dask, all at once": (ORANGE, 0),
    "dask, strict": ("#d08a3e", 0),
    "joblib": (GREY, 0),
    "concurrent.futures": ("#5b5b5b", 14),
    "mops": (BLUE, 0),
}
"""Each runner of the measurement, with its colour and where its name stands."""


def memory_over_time() -> str:
    """Draw the memory of a worker over time for a model that leaks, with the defaults and without bounds."""
    runs = json.loads((RESULTS / "limits.json").read_text())["benches"]["leak"]["runs"]
    x, y = scaled(0, 80, 70, 660), scaled(0, 1_100, 300, 40)
    shapes = axes(x, y, (0, 20, 40, 60, 80), (0, 200, 400, 600, 800, 1_000), ("seconds", "memory, MiB"))
    shapes.append(line([(x(0), y(1_024)), (x(80), y(1_024))], INK, width=1, dashed=True))
    shapes.append(text(x(80), y(1_024) - 6, "limit of the container", size=12, anchor="end"))
    for label, (name, colour, height) in LEAK_RUNS.items():
        run = next(run for run in runs if run["label"] == label)
        shapes.append(line([(x(at), y(mib)) for at, mib in run["series"]], colour, width=1.2))
        killed, failed = run["kernel_kills"], run["simulations"] - run["rows"]
        said = f"{name}: {killed} processes killed by the kernel, {failed} simulations failed, {run['seconds']:.0f} s"
        shapes.append(text(x(20), y(height), said, size=12, colour=colour))
    return svg(700, 350, shapes)


LEAK_RUNS = {
    "CHILD_GROWTH=0, SIM_MEMORY=64GiB": ("without bounds", ORANGE, 40),
    "default settings": ("defaults", BLUE, 130),
}
"""Each run that is drawn, with its name, its colour, and how high its name stands."""


def life_of_a_group() -> str:
    """Draw what happens to a group, from top to bottom, and in which process."""
    left, width, height, gap = 40, 400, 40, 12
    y = [30 + (height + gap) * n for n in range(len(STEPS))]
    window_top, window_end = y[1] - gap / 2, y[4] + height + gap / 2
    shapes = [
        f'<rect x="12" y="{window_top}" width="536" height="{window_end - window_top}" rx="6" fill="#eef3f8"/>',
        (
            f'<text transform="translate(30 {(window_top + window_end) / 2}) rotate(-90)" font-size="13" '
            f'text-anchor="middle" fill="{BLUE}">in the window</text>'
        ),
        text(left + width + 12, 20, "in which process", size=12, colour=GREY),
    ]
    for n, (title, words, process) in enumerate(STEPS):
        box = f'x="{left}" y="{y[n]}" width="{width}" height="{height}" rx="4" fill="#ffffff" stroke="{BLUE}"'
        shapes.append(f"<rect {box}/>")
        shapes.append(text(left + 12, y[n] + 25, title, size=14, colour=BLUE))
        shapes.append(text(left + 84, y[n] + 25, words, size=13))
        shapes.append(text(left + width + 12, y[n] + 25, process, size=13, colour=ORANGE))
        if n + 1 < len(STEPS):
            shapes.append(f'<path d="M60 {y[n] + height} v{gap} m-4 -5 l4 5 l4 -5" fill="none" stroke="{INK}"/>')
    return svg(560, y[-1] + height + 12, shapes)


STEPS = (
    ("plan", "the planner puts the group into a task", "runner"),
    ("queue", "the task waits for a free slot", "scheduler"),
    ("run", "simulations run, then targets", "child process"),
    ("hold", "results wait as Arrow until they are fetched", "worker"),
    ("fetch", "results come to the runner", "runner"),
    ("encode", "rows go to a Parquet file", "runner"),
    ("commit", "parts, then one record: the group counts", "storage"),
)
"""Where a group is, what happens to it there, and in which process."""

PICTURES: dict[str, Callable[[], str]] = {
    "life-of-a-group.svg": life_of_a_group,
    "memory-by-sets.svg": memory_by_sets,
    "memory-over-time.svg": memory_over_time,
}

if __name__ == "__main__":
    main()
