"""The tables and the picture of the measurements of `throughput.py`."""

from collections.abc import Callable
from pathlib import Path
from statistics import median

DOCS = Path(__file__).resolve().parent.parent / "docs" / "internals"
PAGE = DOCS / "throughput.md"
PICTURE = DOCS / "throughput.png"
BEGIN, END = "<!-- table: begin (bench/throughput.py writes it) -->", "<!-- table: end -->"
WORKERS = 2

HEAD = """\
| simulation | runner | simulations/s | run time / ideal | mops is x times as fast | peak, MiB | start-up, s |
|---|---|---|---|---|---|---|"""


STANDING = """\
| simulation | best library | mops / best library | least and most of the rounds |
|---|---|---|---|"""


def standing(results: list[dict]) -> str:
    """Return a comparison of mops with the best library of each case, as a Markdown table."""
    return "\n".join([STANDING, *(standing_row(result) for result in results if "mops" in peers(result))])


def standing_row(result: dict) -> str:
    others = [peer for peer in peers(result) if peer != "mops"]
    best = max(others, key=lambda peer: middle(result, lambda round_: rate(round_[peer])))
    ratios = [rate(round_["mops"]) / rate(round_[best]) for round_ in result["rounds"]]
    return f"| {result['case']} | {best} | {median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |"


def table(results: list[dict]) -> str:
    """Return all cases as one Markdown table; figures are medians over rounds."""
    return "\n".join([HEAD, *(row(result, peer) for result in results for peer in peers(result))])


def row(result: dict, peer: str) -> str:
    cells = [
        result["case"],
        peer,
        f"{middle(result, lambda round_: rate(round_[peer])):,.0f}",
        f"{over_ideal(result, peer):.2f}",
        advantage(result, peer),
        f"{middle(result, lambda round_: round_[peer]['peak_bytes']) / 2**20:,.0f}",
        f"{middle(result, lambda round_: round_[peer]['start_up_seconds']):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def peers(result: dict) -> list[str]:
    return list(result["rounds"][0])


def middle(result: dict, figure: Callable[[dict], float]) -> float:
    """Return the median of a figure over the rounds."""
    return median(figure(round_) for round_ in result["rounds"])


def rate(figures: dict) -> float:
    return figures["simulations"] / figures["seconds"]


def over_ideal(result: dict, peer: str) -> float:
    """Return a peer's run time as a multiple of the bare computation on all workers."""
    ideal_rate = WORKERS * 1000 / median(result["serial_ms"])
    return ideal_rate / middle(result, lambda round_: rate(round_[peer]))


def advantage(result: dict, peer: str) -> str:
    """Return mops's rate over the peer's: the median of the ratios within each round."""
    if peer == "mops" or "mops" not in peers(result):
        return ""
    return f"{middle(result, lambda round_: rate(round_['mops']) / rate(round_[peer])):.2f}"


def write_report(results: list[dict]) -> None:
    """Put the tables between the page's markers, and draw the picture."""
    picture = f"![run time over ideal, for each cost of a simulation]({PICTURE.name})"
    put_between(PAGE, BEGIN, END, "\n\n".join([picture, machine_line(results), standing(results), table(results)]))
    draw(results)


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two markers of a page."""
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def machine_line(results: list[dict]) -> str:
    rounds = min(len(result["rounds"]) for result in results)
    return f"Medians of {rounds} interleaved rounds; {facts_line(results[-1]['machine'])}."


def facts_line(facts: dict) -> str:
    """Return the machine and the packages of the figures."""
    packages = ", ".join(f"{name} {facts[name]}" for name in ("numpy", "pyarrow", "distributed", "joblib"))
    return f"{facts['cpus']} cores, {facts['memory_gib']} GiB, Python {facts['python']}, {packages}"


def draw(results: list[dict]) -> None:
    """Draw run time over ideal for each case and peer, on a log scale: 1 is the bare computation."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(12, 4.5), layout="constrained")
    names = peers(results[0])
    width = 0.8 / len(names)
    for n, peer in enumerate(names):
        places = [position + (n - (len(names) - 1) / 2) * width for position in range(len(results))]
        heights = [over_ideal(result, peer) for result in results]
        bars = axes.bar(places, [height - 1 for height in heights], width, bottom=1, label=peer)
        axes.bar_label(bars, [f"{height:.3g}" for height in heights], fontsize=7, padding=2, rotation=90)
    axes.set_yscale("log")
    axes.set_ylim(0.9, 500)
    axes.margins(y=0.2)
    axes.set_xticks(range(len(results)), [result["case"] for result in results])
    axes.set_xlabel("CPU time of one simulation")
    axes.set_ylabel("run time / ideal (log scale)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)
