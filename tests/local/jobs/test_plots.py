"""Pictures of a job: what is drawn on the axes, against the numbers of the figures."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from figure_jobs import sets, submitted
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import mops
from job_reads import data_of
from mops.errors import UsageError
from mops.figures.choices import Course
from mops.figures.fan import fans_caption
from mops.figures.losses import distribution, shown_sets
from mops.figures.profiles import pairs, profile
from mops.jobs.drawing import Plot, use_log_scale
from mops.jobs.figure_data import fans_of, measured_of, scored_of, sensitivity_of, timeline_of
from mops.jobs.job import Job
from mops.project.bundle import pack
from mops.storage.paths import bundle_path


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job in which some simulations and some targets fail."""
    return submitted(tmp_path_factory.mktemp("plots") / "project")


def line(ax: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    (found,) = [one for one in ax.get_lines() if one.get_label() == label]
    return np.asarray(found.get_xdata(), float), np.asarray(found.get_ydata(), float)


def caption(figure: Figure) -> str:
    return " ".join(figure._supxlabel.get_text().split("\n"))  # type: ignore[attr-defined]


def test_the_losses_are_bars_of_the_distribution(job: Job) -> None:
    weights = dict.fromkeys(scored_of(data_of(job)).labels, 1.0)
    scored = scored_of(data_of(job), weights=weights)
    axes = job.plot.losses(weights=weights).axes
    assert [ax.get_title(loc="left") for ax in axes] == ["weighted sum of losses", *scored.labels]
    assert [ax.get_title(loc="left") for ax in job.plot.losses().axes] == list(scored.labels)
    for ax, label in zip(axes, scored.shown_labels, strict=True):
        figure = distribution(scored, label)
        (bars,) = ax.patches
        values, edges, _ = bars.get_data()
        assert values.tolist() == figure.table["n"].to_pylist()
        assert edges.tolist() == figure.bins.edges.tolist()
        assert line(ax, f"median {figure.quantiles[2]:.4g}")[0].tolist() == [figure.quantiles[2]] * 2


def test_a_profile_has_a_point_for_each_set_and_the_best_of_each_bin(job: Job) -> None:
    figure = job.plot.profile(loss="fit")
    assert [ax.get_xlabel() for ax in figure.axes] == ["beta", "kind", "rate", "extra"]
    for ax in figure.axes:
        found = profile(scored_of(data_of(job)), ax.get_xlabel(), "fit")
        x, y = line(ax, "least")
        full = found.table["n"].to_numpy() > 0
        assert y.tolist() == found.table["best"].to_numpy()[full].tolist()
        assert x.tolist() == found.bins.middles[full].tolist()
        assert line(ax, "median")[1].tolist() == found.table["median"].to_numpy()[full].tolist()
        sets = shown_sets(scored_of(data_of(job)), "fit", 200, 1_800).table
        assert sorted(ax.collections[0].get_offsets()[:, 1].data) == sorted(sets["fit"].to_pylist())
    assert figure.axes[2].get_xscale() == "log"


def test_a_fan_has_the_median_and_both_bands(job: Job) -> None:
    figure = job.plot.fan("daily", x="day", y=["infected", "share"], by=False)
    fans = fans_of(data_of(job), Course("daily", "day", ("infected", "share")), by=False)
    for ax, fan in zip(figure.axes, fans, strict=True):
        x, y = line(ax, "median")
        assert x.tolist() == fan.table["x"].to_pylist()
        assert y.tolist() == fan.table["median"].to_pylist()
        for band, low, high in zip(ax.collections, ("low90", "low50"), ("high90", "high50"), strict=True):
            corners = band.get_paths()[0].vertices
            assert {*fan.table[low].to_pylist(), *fan.table[high].to_pylist()} <= set(corners[:, 1])
        assert ax.get_ylabel() == fan.y
    assert [ax.get_xlabel() for ax in figure.axes] == ["", "day"]  # the lower one
    assert caption(figure) == fans_caption(fans)


def test_a_fan_has_the_data_that_the_project_declares_for_its_columns(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "cases.csv").write_text("day,infected\n0,11\n2,\n4,20.5\n")
    observed = {"output": "daily", "x": "day", "y": "infected", "file": "cases.csv"}
    lines = "\n".join(f'{key} = "{value}"' for key, value in observed.items())
    (folder / "mops.toml").write_text(f"[[observed]]\n{lines}\n")
    job = submitted(folder)
    figure = job.plot.fan("daily", y=["share", "infected"], by=False)
    share, infected = figure.axes
    x, y = line(infected, "data: cases.csv")
    assert x.tolist() == [0, 2, 4]
    np.testing.assert_array_equal(y, [11, np.nan, 20.5])
    assert not [one for one in share.get_lines() if str(one.get_label()).startswith("data")]
    assert "data: cases.csv" in [text.get_text() for text in infected.get_legend().get_texts()]
    assert "data" not in caption(figure)


def test_a_fan_says_why_it_has_no_data(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "cases.csv").write_text("day,infected\n2024-01-31,11\n")
    (folder / "mops.toml").write_text('[[observed]]\noutput = "daily"\nx = "day"\ny = "infected"\nfile = "cases.csv"\n')
    job = submitted(folder)
    why = "The figure has no data: the column 'day' of the data has the type date32[day] (cases.csv)."
    assert caption(job.plot.fan("daily")).endswith(why)
    with pytest.warns(UserWarning, match="has the type date32") as found:
        job.plot.fan("daily", ax=Figure().subplots())
    assert found[0].filename == __file__


def test_a_fan_without_a_bundle_or_with_a_damaged_one_says_so(tmp_path: Path) -> None:
    job = submitted(tmp_path / "project")
    bundle = Path(job.files.url) / bundle_path(job.record.bundle)
    bundle.chmod(0o600)
    bundle.write_bytes(bundle.read_bytes()[:-40])
    assert "The figure has no data: the bundle of the project is damaged" in caption(job.plot.fan("daily"))
    bundle.unlink()
    why = f"The figure has no data: the bundle of the project is missing ({bundle})."
    assert caption(job.plot.fan("daily")).endswith(why)


def test_a_divided_fan_has_a_line_for_each_value(job: Job) -> None:
    (ax,) = job.plot.fan(y="infected", by="kind").axes
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["kind = a", "kind = b"]
    (fan,) = fans_of(data_of(job), Course("daily", "day", ("infected",)), "kind")
    drawn = [line(ax, f"kind = {kind}")[1].tolist() for kind in "ab"]
    assert drawn == [fan.table["median"].to_pylist()[:6], fan.table["median"].to_pylist()[6:]]


def test_pairs_have_a_point_for_each_shown_set_below_the_diagonal(job: Job) -> None:
    weights = dict.fromkeys(scored_of(data_of(job)).labels, 1.0)
    figure = job.plot.pairs(weights=weights)
    found = pairs(scored_of(data_of(job), weights=weights))
    assert found.parameters == ("beta", "kind", "rate", "extra")
    panels = [ax for ax in figure.axes if ax.collections and ax.get_label() != "<colorbar>"]
    assert len(panels) == 6
    table = found.points.table.to_pandas()[::-1]
    offsets = panels[1].collections[0].get_offsets()  # rate over beta: the rows of the matrix come first
    assert offsets[:, 0].data.tolist() == table["beta"].tolist()
    assert offsets[:, 1].data.tolist() == table["rate"].tolist()
    assert panels[1].collections[0].get_array().tolist() == table["loss"].tolist()


def test_a_logarithmic_axis_has_plain_numbers(job: Job) -> None:
    """Matplotlib writes a power of ten for 120."""
    for least, greatest, expected in ((110, 240, {"120"}), (0.002, 3, {"0.01", "1"}), (1, 1e9, {"10,000", "1e+06"})):
        figure = Plot()
        ax = figure.subplots()
        ax.plot([1, 2], [least, greatest])
        use_log_scale(ax, vertical=True)
        figure.draw_without_rendering()
        texts = {text.get_text() for text in ax.get_yticklabels(which="both")}
        assert expected <= texts
        assert not any("$" in text for text in texts)


def test_the_timeline_has_progress_rate_and_memory(job: Job) -> None:
    progress, rate, memory = job.plot.timeline().axes
    points = timeline_of(data_of(job)).points
    assert line(progress, "finished")[1].tolist() == points["simulations"].to_pylist()
    assert line(progress, "committed")[1].tolist() == points["durable"].to_pylist()
    assert line(progress, "failed")[1].tolist() == points["failed"].to_pylist()
    assert rate.get_lines()[0].get_ydata() == pytest.approx(points["rate"].to_numpy(zero_copy_only=False), nan_ok=True)
    drawn = line(memory, "runner and its processes")[1] * 2**20
    assert memory.get_ylabel() == "memory (MiB)"
    assert drawn == pytest.approx(points["memory_bytes"].to_numpy())


def test_rank_correlations_have_a_point_and_an_interval(job: Job) -> None:
    figure, found = job.plot.sensitivity(), sensitivity_of(measured_of(data_of(job))).known()
    assert [ax.get_title(loc="left") for ax in figure.axes] == found.table["measure"].unique().to_pylist()
    drawn = np.concatenate([ax.get_lines()[1].get_xdata() for ax in figure.axes])
    rows = found.table.to_pandas()
    expected = [rows[rows["measure"] == ax.get_title(loc="left")]["rho"] for ax in figure.axes]
    np.testing.assert_array_equal(drawn, np.concatenate(expected))


def test_rank_correlations_need_several_sets_and_results_that_vary(job: Job, tmp_path: Path) -> None:
    """Two sets had correlations of 1, and a constant result had an empty picture."""
    titles = [ax.get_title(loc="left") for ax in job.plot.sensitivity().axes]
    assert "last daily.infected" in titles
    assert "last daily.same" not in titles
    few = submitted(tmp_path / "project", parameter_sets=sets()[:3])
    with pytest.raises(UsageError, match="a rank correlation needs 8 parameter sets"):
        few.plot.sensitivity()


def test_many_divisions_have_no_wide_bands_that_hide_each_other(tmp_path: Path) -> None:
    of = [one | {"kind": "abc"[i % 3], "gamma": 0.01 * i} for i, one in enumerate(sets() * 2)]
    figure = submitted(tmp_path / "project", parameter_sets=of).plot.fan("daily", y="infected", by="kind")
    assert [len(ax.collections) for ax in figure.axes] == [3]
    assert "Median (line) and the middle 50 % (band) of 'infected'" in caption(figure)


@pytest.mark.parametrize(
    "draw",
    [
        lambda job, ax: job.plot.losses(ax=ax),
        lambda job, ax: job.plot.profile("beta", weights={"fit": 1.0}, ax=ax),
        lambda job, ax: job.plot.profile(loss="fit", ax=ax),
        lambda job, ax: job.plot.fan("daily", ax=ax),
    ],
)
def test_one_picture_can_be_drawn_on_the_users_axes(job: Job, draw: Callable[[Job, Axes], Figure]) -> None:
    mine = Figure()
    _, ax = mine.subplots(1, 2)
    assert draw(job, ax) is mine
    assert ax.has_data()
    assert len(mine.axes) == 2


def test_a_plot_leaves_matplotlib_as_it_was_and_a_notebook_shows_it(job: Job) -> None:
    before = dict(mpl.rcParams)
    figure = job.plot.losses()
    assert dict(mpl.rcParams) == before
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("draw", "what", "hint"),
    [
        (lambda job: job.plot.losses("fitt"), "no loss has the label 'fitt'", "the labels are "),
        (
            lambda job: job.plot.pairs(["beta", "bet"], "fit"),
            "the job has no parameter 'bet'",
            "the parameters are beta, gamma",
        ),
        (lambda job: job.plot.pairs(), "the job has 3 losses, and without weights they have no sum", "give the losses"),
        (lambda job: job.plot.fan(best=3), "the job has 3 losses, and without weights", "give the losses that count"),
        (lambda job: job.plot.fan("dayly"), "there is no output 'dayly'", "did you mean 'daily'?"),
        (lambda job: job.plot.fan("daily", y="infect"), "there is no column 'infect'", "did you mean 'infected'?"),
        (lambda job: job.plot.fan("summary"), "no output has the columns of a fan chart", "name the column"),
        (lambda job: job.plot.fan(by="rate"), "'rate' has 20 values", "a figure shows at most 6 values"),
    ],
)
def test_a_wrong_name_says_what_there_is(job: Job, draw: Callable[[Job], Figure], what: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        draw(job)
    assert raised.value.what.startswith(what)
    assert raised.value.hint is not None
    assert raised.value.hint.startswith(hint)


def test_a_job_without_targets_or_outputs_says_what_is_missing(tmp_path: Path) -> None:
    one = [{"beta": 0.9, "kind": "a"}]
    failed = submitted(tmp_path / "failed", parameter_sets=one, targets=[])
    with pytest.raises(UsageError, match="job 'figures' has no losses"):
        failed.plot.losses()
    with pytest.raises(UsageError, match="no output of job 'figures' has a column such as 'day' or 't'"):
        failed.plot.fan()
    assert len(failed.plot.timeline().axes) == 3


def test_a_job_of_one_set_can_be_drawn(tmp_path: Path) -> None:
    one = submitted(tmp_path / "one", parameter_sets=[{"beta": 0.5, "kind": "a"}], n_replicates=1)
    for figure in (one.plot.losses(), one.plot.fan(), one.plot.timeline(), one.plot.profile(["beta", "kind"], "fit")):
        figure.savefig(tmp_path / "one.png")
    with pytest.raises(UsageError, match="every parameter has one value in all sets with a loss"):
        one.plot.pairs(loss="fit")


def test_matplotlib_is_imported_at_the_first_plot_and_a_missing_one_is_named(job: Job) -> None:
    program = f"""
import sys
import mops
plot = mops.open_job({job.name!r}, {job.files.url!r}, local=True).plot
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None  # as if it were not installed
try:
    plot.losses()
except mops.errors.UsageError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "matplotlib is not installed\n  at: job.plot\nhint: pip install 'mops-runner[plots]'\n"


GROWTH = """
def run(params, seed):
    n = [params["first"] * 2.0**day for day in range(16)]
    return {"daily": {"day": list(range(16)), "n": n, "from_0": [0.0, *n[1:]], "share": [i / 16 for i in range(16)]}}
"""


@pytest.fixture(scope="module")
def growth(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job whose output grows exponentially."""
    folder = tmp_path_factory.mktemp("growth")
    (folder / "model.py").write_text(GROWTH)
    sets = [{"first": 1.0}, {"first": 2.0}]
    return mops.submit(model="model:run", project=folder, storage=folder / "s", sets=sets, name="growth", local=True)


def test_a_fan_over_decades_has_a_logarithmic_axis_as_in_the_report(growth: Job) -> None:
    """On a linear axis, only the last days of an exponential growth are seen."""
    linear = growth.plot.fan("daily", y=["n", "from_0", "share"])
    assert [ax.get_yscale() for ax in linear.axes] == ["linear"] * 3, "the same for all, and one needs no other"
    figure = growth.plot.fan("daily", y=["n", "from_0"])
    n, from_0 = figure.axes
    assert [ax.get_yscale() for ax in figure.axes] == ["log", "symlog"]
    figure.draw_without_rendering()
    ticks = ["1", "10", "100", "1,000", "10,000"]
    assert [text.get_text() for text in n.get_yticklabels()][:5] == ticks
    assert [text.get_text() for text in from_0.get_yticklabels()][:5] == ["0", *ticks[1:]], "1 would collide with 0"
    assert from_0.get_ylim()[0] == 0
    assert caption(figure).endswith(
        "The axis of 'n' is logarithmic. "
        "The axis of 'from_0' is logarithmic, and below 1 about linear down to 0 (symlog)."
    )
    assert caption(growth.plot.fan("daily", y="n")).endswith(" The vertical axis is logarithmic.")
    (ax,) = growth.plot.fan("daily", y="n", ax=Figure().subplots()).axes
    assert ax.get_yscale() == "log"


def test_the_ticks_of_a_logarithmic_axis_follow_its_limits(growth: Job) -> None:
    (ax,) = growth.plot.fan("daily", y="from_0").axes
    ax.set_ylim(5, 80)
    assert list(ax.get_yticks()) == [5, 10, 20, 50]
    ax.set_ylim(21, 49)
    assert len(ax.get_yticks()) > 2, "without regular ticks, those of a linear axis"


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        *((suffix, {"metadata": {"Title": "losses"}}) for suffix in ("png", "svg", "svgz", "pdf", "ps", "eps")),
        *((suffix, {"pil_kwargs": {"quality": 80}}) for suffix in ("jpg", "jpeg", "webp")),
        *((suffix, {}) for suffix in ("tif", "tiff")),
    ],
)
def test_a_bundle_leaves_out_a_picture_of_mops_in_each_format(
    tmp_path: Path, suffix: str, options: dict[str, Any]
) -> None:
    """Regression: JPEG and SVGZ pictures were in the bundle, so a new picture made another project of it."""
    plot = Plot()
    plot.subplots().plot([1, 2])
    plot.savefig(tmp_path / f"mine.{suffix}", **options)
    assert (tmp_path / f"mine.{suffix}").stat().st_size > 0
    Figure().savefig(tmp_path / f"other.{suffix}")
    assert pack(tmp_path).names == (f"other.{suffix}",)


def test_a_picture_in_a_format_without_metadata_can_be_written(tmp_path: Path) -> None:
    Plot().savefig(tmp_path / "empty.rgba")
    assert (tmp_path / "empty.rgba").stat().st_size > 0


@pytest.mark.parametrize("dpi", [60, 80, 150])
def test_a_caption_is_inside_the_figure_at_each_resolution(dpi: int) -> None:
    style = importlib.import_module("mops.jobs.drawing")
    plot, _ = style.panels(1)
    style.add_caption(plot, "Wide WWWW MMMM and the middle 50 % of all simulations of many parameter sets. " * 4)
    plot.set_dpi(dpi)
    plot.draw_without_rendering()
    assert plot.get_supxlabel().count("\n") >= 3
    box = plot._supxlabel.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= plot.bbox.width
