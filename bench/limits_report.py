"""The tables and the picture of the measurements of `limits.py`."""

from pathlib import Path
from statistics import median

from throughput_report import facts_line, put_between

DOCS = Path(__file__).resolve().parent.parent / "docs" / "internals"
PAGE = DOCS / "memory.md"
PICTURE = DOCS / "limits.png"
BEGIN, END = "<!-- limits: begin (bench/limits.py writes it) -->", "<!-- limits: end -->"
MIB = 2**20
FLAT_SHARE, FLAT_BYTES = 0.05, 20 * MIB
"""Memory is flat if the last quarter's median exceeds the second quarter's by at most the larger of these."""


def tables(result: dict) -> str:
    """Return the tables of all benches that have run."""
    return "\n\n".join(TABLES[name](result["benches"][name]) for name in TABLES if name in result["benches"])


def leak(bench: dict) -> str:
    head = (
        f"| {bench['leak_mib']} MiB leaked a simulation, worker of 1 GiB | rows of simulations | failures "
        "| over their limit | killed by the kernel | seconds | peak, MiB |\n" + "|---" * 7 + "|"
    )
    return "\n".join([head, *map(leak_row, bench["runs"])])


def leak_row(run: dict) -> str:
    cells = [
        run["label"],
        of(run.get("rows", 0), run["simulations"]),
        failures(run),
        run["over_limit"],
        run["kernel_kills"],
        f"{run['seconds']:.0f}" if "seconds" in run else "",
        mib(run["peak_bytes"]),
    ]
    return line(cells)


def failures(run: dict) -> str:
    """Return the failures by reason, or how the job ended."""
    found = run.get("failures", {})
    counted = ", ".join(f"{n:,} {reason}" for reason, n in found.items())
    return counted or ("none" if run["state"] == "succeeded" else f"the job {run['state']}: {run['error']}")


def fragment(bench: dict) -> str:
    head = quarters_head("heap fragmented, the worker's tree", "simulations", "processes", "peak, MiB")
    rows = [quarters_row(run, f"{run['rows']:,}", run["processes"], mib(run["peak_bytes"])) for run in bench["runs"]]
    return "\n".join([head, *rows])


def jobs(bench: dict) -> str:
    head = quarters_head(f"{bench['jobs']} jobs of {bench['simulations'] // bench['jobs']} simulations", "succeeded")
    return "\n".join([head, *(quarters_row(run, of(bench["succeeded"], bench["jobs"])) for run in bench["runs"])])


def quarters_head(first: str, *others: str) -> str:
    names = (first, *others, "second quarter, MiB", "last quarter, MiB", "flat")
    return line(names) + "\n" + "|---" * len(names) + "|"


def quarters_row(run: dict, *others: object) -> str:
    ends = (mib(run["second_quarter_bytes"]), mib(run["last_quarter_bytes"]))
    return line([run["label"], *others, *ends, "yes" if flat(run) else "no"])


def flat(run: dict) -> bool:
    """Tell whether a run's memory is flat by this benchmark's rule."""
    before, after = run["second_quarter_bytes"], run["last_quarter_bytes"]
    return after - before <= max(FLAT_SHARE * before, FLAT_BYTES)


def outputs(bench: dict) -> str:
    head = (
        "| outputs | all in all, MiB | rows | failures | killed by the kernel | /dev/shm, MiB | seconds | peak, MiB |\n"
        + "|---" * 8
        + "|"
    )
    cells = [
        f"{bench['simulations']} of {bench['mib']} MiB, limit 4,096 MiB",
        f"{bench['simulations'] * bench['mib']:,}",
        of(bench.get("rows", 0), bench["rows_asked"]),
        failures(bench),
        bench["kernel_kills"],
        mib(bench.get("shm_bytes", 0)),
        f"{bench['seconds']:.0f}" if "seconds" in bench else "",
        mib(bench["peak_bytes"]),
    ]
    return f"{head}\n{line(cells)}"


def threads(bench: dict) -> str:
    names = list(bench["loads"][0]["seconds"])
    head = line(["unknowns of a system", *(f"{name}, s" for name in names), "times as long", "least and most"])
    return "\n".join([head, "|---" * (len(names) + 3) + "|", *map(threads_row, bench["loads"])])


def threads_row(load: dict) -> str:
    one, own = load["seconds"].values()
    ratios = [slow / fast for fast, slow in zip(one, own, strict=True)]
    spread = f"{min(ratios):.1f} to {max(ratios):.1f}"
    return line([f"{load['size']:,}", f"{median(one):.1f}", f"{median(own):.1f}", f"{median(ratios):.1f}", spread])


TABLES = {"leak": leak, "fragment": fragment, "jobs": jobs, "outputs": outputs, "threads": threads}


def line(cells) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def of(found: int, asked: int) -> str:
    return f"{found:,} of {asked:,}"


def mib(n_bytes: float) -> str:
    return f"{n_bytes / MIB:,.0f}"


def write_report(result: dict) -> None:
    """Put the tables between the page's markers, and draw the picture."""
    picture = f"![memory over time, for each of these]({PICTURE.name})"
    text = f"{picture}\n\n{facts_line(result['machine'])}.\n\n{tables(result)}"
    put_between(PAGE, BEGIN, END, text)
    draw(result["benches"])


def draw(benches: dict) -> None:
    """Draw a panel for each bench that has memory over time."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    panels = [name for name in PANELS if name in benches]
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    for place, name in zip(axes.flat, panels, strict=False):
        title, limit_mib = PANELS[name]
        for run in drawn(benches[name]):
            plot(place, run)
        if limit_mib:
            place.axhline(limit_mib, color="grey", linestyle=":", linewidth=1)
        place.set_title(title)
        place.set_xlabel("seconds")
        place.set_ylim(bottom=0)
        place.spines[["top", "right"]].set_visible(False)
        place.grid(alpha=0.25)
        if place.get_legend_handles_labels()[1]:
            place.legend(frameon=False, fontsize=8)
    for place in axes.flat[len(panels) :]:
        place.set_visible(False)
    for place in axes[:, 0]:
        place.set_ylabel("memory, MiB")
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


PANELS = {
    "leak": ("72 MiB leaked a simulation, worker of 1 GiB", 1024),
    "fragment": ("heap fragmented, the worker's tree", None),
    "jobs": ("jobs one after the other", None),
    "outputs": ("outputs of 50 MiB, 4 GiB for everything", 4096),
}
"""Titles, and limits in MiB of the benches that have one."""
DRAWN_LEAKS = ("default settings", "CHILD_GROWTH=0, SIM_MEMORY=64GiB")


def drawn(bench: dict) -> list[dict]:
    """Return the series of a bench to draw."""
    runs = bench.get("runs", [bench])
    return [run for run in runs if "leak_mib" not in bench or run["label"] in DRAWN_LEAKS]


def plot(axes, run: dict) -> None:
    first = run.get("label", "").startswith(("default", "the worker's tree")) or "label" not in run
    own = {"linewidth": 1.5, "color": "black"} if first else {"linewidth": 1}
    axes.plot(*zip(*run["series"], strict=True), label=run.get("label"), **own)
