"""The tables and the pictures of the measurements of `throughput.py`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from textwrap import fill

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "internals" / "throughput.md"
USERS_PAGE = DOCS / "explanation" / "speed.md"
BEGIN, END = "<!-- table: begin (bench/throughput.py writes it) -->", "<!-- table: end -->"
WORKERS = 2
PAGE_WIDTH = 120

WRITERS = {
    "whose main process writes": ("concurrent.futures", "joblib", "ray"),
    "whose workers write": ("dask, tasks write", "pool, workers write"),
}
"""The tuned peers, by the process that writes the rows."""
MEMORY_CASE = "0 ms, 64 KiB"
"""The case with the most data in flight."""

STANDING = ("simulation", "programs", "the fastest of them", "mops / that program", "least and most of the rounds")
TABLE = (
    "simulation",
    "program",
    "simulations/s",
    "run time / ideal",
    "mops is x times as fast",
    "CPU, us / simulation",
    "peak, MiB",
    "start-up, s",
)


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; its first row is the head."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))


def standing(results: list[dict]) -> str:
    """Return a comparison of mops with the fastest tuned peer of each kind and case, as a Markdown table."""
    rows = [
        standing_row(result, kind, present)
        for result in results
        for kind, names in WRITERS.items()
        if "mops" in peers(result) and (present := [name for name in names if name in peers(result)])
    ]
    return markdown([STANDING, *rows])


def standing_row(result: dict, kind: str, others: list[str]) -> list[str]:
    best = max(others, key=lambda peer: median_rate(result, peer))
    ratios = [rate(mops) / rate(other) for mops, other in pairs(result, "mops", best)]
    return [result["case"], kind, best, f"{median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"]


def table(results: list[dict]) -> str:
    """Return all cases as one Markdown table; figures are medians over rounds."""
    return markdown([TABLE, *(row(result, peer) for result in results for peer in peers(result))])


def row(result: dict, peer: str) -> list[str]:
    return [
        result["case"],
        peer,
        rate_text(result, peer),
        f"{over_ideal(result, peer):.2f}",
        advantage(result, peer),
        f"{cpu_us(result, peer):,.0f}",
        f"{peak_mib(result, peer):,.0f}",
        f"{middle(result, peer, lambda figures: figures['start_up_seconds']):.2f}",
    ]


def users_table(results: list[dict]) -> str:
    """Return one row for each peer: its rate in each case, and its memory where most data are in flight."""
    memory = [f"peak memory, MiB ({MEMORY_CASE})" for result in results if result["case"] == MEMORY_CASE]
    head = ["simulations/s", *(result["case"] for result in results), *memory]
    rows = [head]
    for peer in dict.fromkeys(peer for result in results for peer in peers(result)):
        rates = [rate_text(result, peer) if peer in peers(result) else "" for result in results]
        peaks = [f"{peak_mib(result, peer):,.0f}" for result in results if result["case"] == MEMORY_CASE]
        rows.append([peer, *rates, *peaks])
    return markdown(rows)


def peers(result: dict) -> list[str]:
    return list(result["rounds"][0])


def middle(result: dict, peer: str, figure: Callable[[dict], float]) -> float:
    """Return the median of a peer's figure over the rounds in which it ran."""
    return median(figure(round_[peer]) for round_ in result["rounds"] if peer in round_)


def rate(figures: dict) -> float:
    return figures["simulations"] / figures["seconds"]


def median_rate(result: dict, peer: str) -> float:
    return middle(result, peer, rate)


def rate_text(result: dict, peer: str) -> str:
    """Return the rate with three figures or more."""
    value = median_rate(result, peer)
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def cpu_us(result: dict, peer: str) -> float:
    """Return the CPU time of all processes of a peer per simulation, without the start-up, in microseconds."""
    return middle(result, peer, lambda figures: 1e6 * figures["cpu_seconds"] / figures["simulations"])


def peak_mib(result: dict, peer: str) -> float:
    return middle(result, peer, lambda figures: figures["peak_bytes"]) / 2**20


def over_ideal(result: dict, peer: str) -> float:
    """Return a peer's run time as a multiple of the bare computation on all workers."""
    return WORKERS * 1000 / median(result["serial_ms"]) / median_rate(result, peer)


def cpu_over_serial(result: dict, peer: str) -> float:
    """Return a peer's CPU time as a multiple of the CPU time of the bare computation."""
    return cpu_us(result, peer) / (1000 * median(result["serial_ms"]))


def pairs(result: dict, first: str, second: str) -> Iterator[tuple[dict, dict]]:
    """Yield the figures of two peers of each round in which both ran."""
    for round_ in result["rounds"]:
        if first in round_ and second in round_:
            yield round_[first], round_[second]


def advantage(result: dict, peer: str) -> str:
    """Return mops's rate over the peer's: the median of the ratios within each round."""
    if peer == "mops" or "mops" not in peers(result):
        return ""
    return f"{median(rate(mops) / rate(other) for mops, other in pairs(result, 'mops', peer)):.2f}"


def write_report(results: list[dict]) -> None:
    """Put the tables between the markers of both pages, and draw the pictures."""
    for (name, title), figure in PLOTS.items():
        draw(results, PAGE.parent / name, title, figure)
    facts = captions(results)
    put_between(PAGE, BEGIN, END, "\n\n".join([*pictures(""), facts, standing(results), table(results)]))
    put_between(USERS_PAGE, BEGIN, END, "\n\n".join([users_table(results), facts, *pictures("../internals/")]))


def pictures(folder: str) -> list[str]:
    """Return the pictures in Markdown, for a page from which they are in this folder."""
    return [f"![{title}]({folder}{name})" for name, title in PLOTS]


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two markers of a page."""
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def captions(results: list[dict]) -> str:
    """Return where the figures come from: a sentence for all cases, or one for each series of cases."""
    series: dict[str, list[str]] = {}
    for result in results:
        series.setdefault(caption(result), []).append(result["case"])
    if len(series) == 1:
        return fill(next(iter(series)), PAGE_WIDTH)
    return "\n".join(fill(f"- {', '.join(cases)}: {text}", PAGE_WIDTH) for text, cases in series.items())


def caption(result: dict) -> str:
    rounds = len(result["rounds"])
    once = [peer for peer in peers(result) if rounds > 1 and peer not in result["rounds"][1]]
    sentences = [f"Medians of {rounds} interleaved rounds" if rounds > 1 else "One round"]
    if once:
        sentences[0] += f" ({'; '.join(once)}: one round)"
    sentences[0] += f"; {facts_line(result['machine'])}."
    sentences += [f"{peer} was not installed, so its row is missing." for peer in missing(result)]
    return " ".join(sentences)


def missing(result: dict) -> list[str]:
    """Return the tuned peers that did not run."""
    return [peer for names in WRITERS.values() for peer in names if peer not in peers(result)]


PACKAGES = ("numpy", "pyarrow", "distributed", "joblib", "ray")


def facts_line(facts: dict) -> str:
    """Return the commit, the date, the machine and the packages of the figures."""
    packages = ", ".join(f"{name} {facts[name]}" for name in PACKAGES if name in facts)
    machine = f"{facts['cpus']} cores ({facts['processor']}), {facts['memory_gib']} GiB"
    return f"commit {facts['commit']}, {facts['date']}; {machine}; Python {facts['python']}, {packages}"


PLOTS: dict[tuple[str, str], Callable[[dict, str], float]] = {
    ("throughput.png", "Run time / ideal run time"): over_ideal,
    ("throughput-cpu.png", "CPU time / CPU time of the simulations alone"): cpu_over_serial,
}
BLUE, GREY = "#1f5f99", "#b8b8b8"
PANELS_IN_A_ROW = 3


def draw(results: list[dict], path: Path, title: str, figure: Callable[[dict, str], float]) -> None:
    """Draw a figure of all peers, a panel for each case.

    The background is white and not transparent, so that the picture is readable on a dark page.
    """
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(peer for result in results for peer in peers(result)))
    columns = min(PANELS_IN_A_ROW, len(results))
    rows = -(-len(results) // columns)
    size = (2.1 * columns + 1.5, rows * (0.23 * len(names) + 0.4) + 0.5)
    whole, panels = plt.subplots(rows, columns, figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axes in panels.flat[len(results) :]:
        axes.set_visible(False)
    for axes, result in zip(panels.flat, results, strict=False):
        draw_bars(axes, {names.index(peer): figure(result, peer) for peer in peers(result)}, names.index("mops"))
        axes.set_title(result["case"], fontsize=9)
    panels[0][0].set_yticks(range(len(names)), names)
    panels[0][0].invert_yaxis()
    whole.suptitle(f"{title}\n1: only the simulations. The log scale differs between the cases", fontsize=9)
    whole.savefig(path, dpi=160, facecolor="white")
    plt.close(whole)


def draw_bars(axes, values: dict[int, float], highlighted: int) -> None:
    """Draw values by their place as bars that begin at 1, with their figures."""
    for place, value in values.items():
        axes.barh(place, value - 1, left=1, color=BLUE if place == highlighted else GREY, height=0.75)
        axes.annotate(
            f"{value:.2f}" if value < 10 else f"{value:.0f}",
            (max(value, 1), place),
            (3, 0),
            textcoords="offset points",
            va="center",
            size=8,
        )
    axes.set_xscale("log")
    axes.set_xlim(min(1, *values.values()), 4 * max(values.values()))
    axes.set_xticks([])
    axes.minorticks_off()
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
