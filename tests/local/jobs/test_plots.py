"""Charts of a job: what is drawn, against the numbers of the figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import altair as alt
import pytest
from figure_jobs import sets, submitted

import mops
from job_reads import data_of
from mops.errors import UsageError
from mops.figures.choices import Course
from mops.figures.losses import distribution
from mops.jobs.figure_data import fans_of, measured_of, scored_of, sensitivity_of, timeline_of
from mops.jobs.job import Job
from mops.storage.paths import bundle_path
from mops.units import number


def views(chart: Any) -> list[dict[str, Any]]:
    """Return the views of a chart, each with its layers and their rows."""
    whole = chart.to_dict()
    found = next((whole[name] for name in ("concat", "vconcat") if name in whole), [whole])
    data = whole["datasets"]
    for view in found:
        # Altair moves rows that all layers or views have to the chart around them.
        around = whole.get("data") or view.get("data")
        view["layers"] = [(layer, data[(layer.get("data") or around)["name"]]) for layer in view.get("layer", [view])]
    return found


def titles(chart: Any) -> list[str]:
    return [view["title"]["text"] for view in views(chart)]


def caption(chart: Any) -> str:
    return " ".join(line for view in views(chart) for line in view["title"]["subtitle"])


def test_the_losses_are_bars_of_the_distribution(job: Job) -> None:
    weights = dict.fromkeys(scored_of(data_of(job)).labels, 1.0)
    scored = scored_of(data_of(job), weights=weights)
    found = views(job.plot.losses(weights=weights))
    assert [len(views(job.plot.losses())), len(found)] == [3, 4]
    for view, label in zip(found, scored.shown_labels, strict=True):
        figure = distribution(scored, label)
        ((_, rows),) = view["layers"]
        assert [row["n"] for row in rows] == figure.table["n"].to_pylist()
        assert figure.quantiles is not None
        assert f"the median {number(figure.quantiles[1])}." in " ".join(view["title"]["subtitle"])
        assert [row["x_low"] for row in rows] == figure.bins.edges[:-1].tolist()


def test_a_fan_has_the_median_and_both_bands(job: Job) -> None:
    found = views(job.plot.fan("daily", x="day", y=["infected", "share"], by=False))
    fans = fans_of(data_of(job), Course("daily", "day", ("infected", "share")), by=False)
    for view, fan in zip(found, fans, strict=True):
        drawn = [
            (layer["encoding"]["y"]["field"], layer["encoding"].get("y2", {}).get("field"))
            for layer, _ in view["layers"]
        ]
        assert drawn == [("low90", "high90"), ("low50", "high50"), ("median", None)]
        for _, rows in view["layers"]:
            assert [row["median"] for row in rows] == fan.table["median"].to_pylist()
        assert " ".join(view["title"]["subtitle"]) == fan.caption


def test_a_divided_fan_has_a_colour_for_each_value_and_many_have_no_wide_bands(job: Job, tmp_path: Path) -> None:
    (two,) = views(job.plot.fan(y="infected", by="kind"))
    assert two["layers"][0][0]["encoding"]["color"]["scale"]["domain"] == ["kind = a", "kind = b"]
    (fan,) = fans_of(data_of(job), Course("daily", "day", ("infected",)), "kind")
    rows = two["layers"][-1][1]
    assert [row["median"] for row in rows] == fan.table["median"].to_pylist()
    assert [row["series"] for row in rows] == [f"kind = {kind}" for kind in fan.table["division"].to_pylist()]
    of = [one | {"kind": "abc"[i % 3], "gamma": 0.01 * i} for i, one in enumerate(sets() * 2)]
    chart = submitted(tmp_path / "project", parameter_sets=of).plot.fan("daily", y="infected", by="kind")
    assert len(views(chart)[0]["layers"]) == len(two["layers"]) - 1
    assert "Median (line) and the middle 50 % (band)" in caption(chart)


def test_a_fan_has_the_data_that_the_project_declares_or_says_why_not(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "cases.csv").write_text("day,infected\n0,11\n2,\n4,20.5\n")
    (folder / "mops.toml").write_text('[[observed]]\noutput = "daily"\nx = "day"\ny = "infected"\nfile = "cases.csv"\n')
    job = submitted(folder)
    share, infected = views(job.plot.fan("daily", y=["share", "infected"], by=False))
    layer, rows = infected["layers"][-1]
    assert [(row["x"], row["y"]) for row in rows] == [(0, 11), (2, None), (4, 20.5)]
    assert layer["encoding"]["color"]["scale"]["domain"] == ["median", "data: cases.csv"]
    assert len(share["layers"]) == 3
    assert "no data" not in caption(job.plot.fan("daily"))
    bundle = Path(job.files.url) / bundle_path(job.record.bundle)
    bundle.chmod(0o600)
    bundle.write_bytes(bundle.read_bytes()[:-40])
    assert "The chart has no data: the bundle of the project is damaged" in caption(job.plot.fan("daily"))
    bundle.unlink()
    assert f"The chart has no data: the bundle of the project is missing ({bundle})." in caption(job.plot.fan("daily"))


def test_pairs_have_a_point_for_each_set_below_the_diagonal(job: Job) -> None:
    weights = dict.fromkeys(scored_of(data_of(job)).labels, 1.0)
    whole = job.plot.pairs(weights=weights).to_dict()
    rows = [row["hconcat"] for row in whole["vconcat"]]
    assert [len(row) for row in rows] == [1, 2, 3, 4]
    points = whole["datasets"][rows[2][0]["data"]["name"]]  # rate over beta
    table = scored_of(data_of(job), weights=weights).table.to_pylist()
    expected = {(row["beta"], row["rate"], row["loss"]) for row in table if row["loss"] is not None}
    assert {(row["x_at"], row["y_at"], row["loss"]) for row in points} == expected
    assert points[-1]["loss"] == min(row["loss"] for row in points), "the best on top"


def test_the_timeline_has_progress_rate_and_memory(job: Job) -> None:
    chart = job.plot.timeline()
    assert titles(chart) == ["Progress", "Rate", "Memory"]
    points = timeline_of(data_of(job)).points
    progress, rate, memory = views(chart)
    lines = {rows[0]["series"]: [row["y"] for row in rows] for _, rows in progress["layers"][1:]}
    names = {"finished": "simulations", "committed": "durable", "failed": "failed"}
    assert lines == {name: points[column].to_pylist() for name, column in names.items()}
    assert [row["y"] for row in rate["layers"][0][1]] == points["rate"].drop_null().to_pylist()
    drawn = [row["y"] * 2**20 for row in memory["layers"][0][1]]
    assert drawn == pytest.approx(points["memory_bytes"].to_pylist())
    assert memory["layers"][0][0]["encoding"]["y"]["title"] == "memory (MiB)"


def test_rank_correlations_have_a_point_and_need_several_sets(job: Job, tmp_path: Path) -> None:
    """Two sets had correlations of 1, and a constant result had an empty picture."""
    chart, found = job.plot.sensitivity(), sensitivity_of(measured_of(data_of(job))).known().table
    measures = found["measure"].unique().to_pylist()
    assert "last daily.same" not in measures
    assert titles(chart) == [f"Rank correlations with {measure}" for measure in measures]
    drawn = [row for view in views(chart) for row in view["layers"][1][1]]
    columns = ("measure", "parameter", "rho")
    assert {tuple(row[name] for name in columns) for row in drawn} == {
        tuple(row[name] for name in columns) for row in found.to_pylist() if row["rho"] is not None
    }
    assert "Texts have no ranks: kind." in " ".join(chart.to_dict()["title"]["subtitle"])
    few = submitted(tmp_path / "project", parameter_sets=sets()[:3])
    with pytest.raises(UsageError, match="a rank correlation needs 8 parameter sets"):
        few.plot.sensitivity()


def test_a_wrong_name_says_what_there_is(job: Job, subtests: pytest.Subtests) -> None:
    for draw, what, hint in [
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
    ]:
        with subtests.test(draw=draw, what=what, hint=hint):
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
    assert len(views(failed.plot.timeline())) == 3


def test_each_chart_of_a_job_of_one_set_can_be_saved_and_layered(tmp_path: Path) -> None:
    one = submitted(tmp_path / "one", parameter_sets=[{"beta": 0.5, "kind": "a"}], n_replicates=1)
    drawn = (
        one.plot.losses(),
        one.plot.fan(y="infected"),
        one.plot.timeline(),
    )
    assert all(chart.to_dict() for chart in drawn)
    fan = one.plot.fan(y="infected", by=False)
    fan.save(tmp_path / "one.png")
    layered = fan + alt.Chart(alt.InlineData([{"x": 3}])).mark_rule().encode(x="x:Q")
    layered.save(tmp_path / "layered.svg")
    layered.save(tmp_path / "layered.html", inline=True)
    assert "<script src=" not in (tmp_path / "layered.html").read_text().replace("\n", "")
    with pytest.raises(UsageError, match="every parameter has one value in all sets with a loss"):
        one.plot.pairs(loss="fit")


def test_altair_is_imported_at_the_first_chart_and_a_missing_one_is_named(job: Job) -> None:
    program = f"""
import sys
import mops
plot = mops.open_job({job.name!r}, {job.files.url!r}, local=True).plot
assert "altair" not in sys.modules
sys.modules["altair"] = None  # as if it were not installed
try:
    plot.losses()
except mops.errors.UsageError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "no charts: Altair is not installed\n  at: job.plot\nhint: pip install 'mops-runner[plots]'\n"


GROWTH = """
def run(params, seed):
    n = [params["first"] * 2.0**day for day in range(16)]
    return {"daily": {"day": list(range(16)), "n": n, "from_0": [0.0, *n[1:]]}}
"""


def test_a_fan_over_decades_has_a_logarithmic_axis(tmp_path: Path) -> None:
    """On a linear axis, only the last days of an exponential growth are seen."""
    (tmp_path / "model.py").write_text(GROWTH)
    found = [{"first": 1.0}, {"first": 2.0}]
    job = mops.submit(
        model="model:run", project=tmp_path, storage=tmp_path / "s", sets=found, name="growth", local=True
    )

    def axes(ys: list[str]) -> list[dict[str, Any]]:
        return [view["layers"][0][0]["encoding"]["y"] for view in views(job.plot.fan("daily", y=ys))]

    n, from_0 = axes(["n", "from_0"])
    assert (n["scale"]["type"], n["title"]) == ("log", "n (log scale)")
    assert (from_0["scale"]["type"], from_0["title"]) == ("symlog", "from_0 (log scale, linear below 1)")
