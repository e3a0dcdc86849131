"""The tables and the picture of the measurements of `memory.py`."""

from pathlib import Path
from statistics import mean, median

import numpy as np
from throughput_report import BEGIN as THROUGHPUT_BEGIN
from throughput_report import END, facts_line, put_between

DOCS = Path(__file__).resolve().parent.parent / "docs" / "internals"
PAGE = DOCS / "memory.md"
PICTURE = DOCS / "memory.png"
BEGIN = THROUGHPUT_BEGIN.replace("throughput.py", "memory.py")
MIB = 2**20
SLOPE_ABOVE = 1_000
"""Parameter sets. Below this number, memory grows because the window fills and first pages are used."""
MARKS = {"peak_bytes": 0.5, "peak_root_bytes": 0.2}
WHOSE = {"peak_bytes": "process tree", "peak_root_bytes": "runner alone"}


def tables(result: dict) -> str:
    """Return the slopes and the peaks as Markdown."""
    return f"{slopes(result)}\n\n{peaks(result)}"


def slopes(result: dict) -> str:
    """Return how much mops grows with the number of sets."""
    head = (
        "| outputs | memory of | MiB per 1,000 sets, between sizes | within the largest | mark |\n|---|---|---|---|---|"
    )
    rows = [
        f"| {load} | {whose} | {line(between(result, load, key))} | {line(within(result, load, key))} | {MARKS[key]} |"
        for load in named(result, "load")
        for key, whose in WHOSE.items()
    ]
    return "\n".join([head, *rows])


def between(result: dict, load: str, key: str) -> list[tuple[float, int]]:
    """Return the peaks (bytes) of mops over the sets."""
    return [(point["sets"], point[key]) for point in chosen(result, load, "mops") if point["sets"] > SLOPE_ABOVE]


def within(result: dict, load: str, key: str) -> list[tuple[float, int]]:
    """Return the peaks (bytes) of mops in each part of its largest runs, over the sets done, minus each run's mean."""
    points = chosen(result, load, "mops")
    largest = max((point["sets"] for point in points), default=0)
    found: list[tuple[float, int]] = []
    for point in points:
        sizes = [window[list(WHOSE).index(key)] for window in point["windows"]]
        if point["sets"] == largest and sizes:
            step = largest / (len(sizes) + 1)
            found += [((n + 1) * step, size - round(mean(sizes))) for n, size in enumerate(sizes)]
    return found


def line(points: list[tuple[float, int]]) -> str:
    """Return the slope and its standard error as text; empty if there is only one size."""
    if len({sets for sets, _ in points}) < 2:
        return ""
    slope, error = fitted(points)
    return f"{slope:.2f} ± {error:.2f}"


def fitted(points: list[tuple[float, int]]) -> tuple[float, float]:
    """Return the slope of peaks (bytes) over sets and its standard error, both in MiB per 1,000 sets."""
    x = np.array([sets for sets, _ in points]) / 1_000
    y = np.array([peak for _, peak in points]) / MIB
    slope, offset = np.polyfit(x, y, 1)
    left = y - (slope * x + offset)
    freedom = max(len(points) - 2, 1)
    return float(slope), float(np.sqrt((left**2).sum() / freedom / ((x - x.mean()) ** 2).sum()))


def peaks(result: dict) -> str:
    """Return the median peaks of all peers."""
    parts = []
    for load in named(result, "load"):
        sizes = sorted({point["sets"] for point in result["points"] if point["load"] == load})
        head = f"| {load} outputs, MiB at | " + " | ".join(f"{sets:,} sets" for sets in sizes) + " |"
        rows = [peak_row(result, load, peer, sizes) for peer in named(result, "peer") if chosen(result, load, peer)]
        parts.append("\n".join([head, "|---" * (len(sizes) + 1) + "|", *rows]))
    return "\n\n".join(parts)


def peak_row(result: dict, load: str, peer: str, sizes: list[int]) -> str:
    cells = [spread([p["peak_bytes"] for p in chosen(result, load, peer) if p["sets"] == sets]) for sets in sizes]
    return f"| {peer} | {' | '.join(cells)} |"


def spread(peaks: list[int]) -> str:
    """Return the median in MiB and, if there are several values, the largest deviation from it."""
    if not peaks:
        return ""
    middle = median(peaks)
    far = max(abs(peak - middle) for peak in peaks)
    return f"{middle / MIB:,.0f}" + (f" ± {far / MIB:,.0f}" if len(peaks) > 1 else "")


def chosen(result: dict, load: str, peer: str) -> list[dict]:
    return [point for point in result["points"] if point["load"] == load and point["peer"] == peer]


def named(result: dict, key: str) -> list[str]:
    """Return the loads or the peers in the order in which they were measured."""
    return list(dict.fromkeys(point[key] for point in result["points"]))


def write_report(result: dict) -> None:
    """Put the tables between the page's markers, and draw the picture."""
    picture = f"![peak memory over the number of parameter sets]({PICTURE.name})"
    put_between(PAGE, BEGIN, END, f"{picture}\n\n{facts_line(result['machine'])}.\n\n{tables(result)}")
    draw(result)


def draw(result: dict) -> None:
    """Draw the peaks over the sets, for each size of outputs, both axes in logarithms."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    loads = named(result, "load")
    figure, panels = plt.subplots(1, len(loads), figsize=(5 * len(loads), 4.2), layout="constrained", sharey=True)
    for axes, load in zip(np.atleast_1d(panels), loads, strict=True):
        for peer in named(result, "peer"):
            plot(axes, chosen(result, load, peer), "peak_bytes", peer)
        plot(axes, chosen(result, load, "mops"), "peak_root_bytes", "mops, runner alone")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_title(f"{load} outputs")
        axes.set_xlabel("parameter sets")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    np.atleast_1d(panels)[0].set_ylabel("peak memory, MiB")
    figure.legend(*np.atleast_1d(panels)[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


def plot(axes, points: list[dict], key: str, label: str) -> None:
    sizes = sorted({point["sets"] for point in points})
    heights = [mean(point[key] for point in points if point["sets"] == sets) / MIB for sets in sizes]
    own = {"linewidth": 2.5, "color": "black"} if label.startswith("mops") else {"linewidth": 1.5}
    axes.plot(sizes, heights, marker="o", linestyle="--" if "alone" in label else "-", label=label, **own)
