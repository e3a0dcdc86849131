"""Results without a day or a time: histograms of real jobs, against their Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from job_folders import folder_of
from mops.jobs.job import Job
from mops.report.content import Block, Figure, Gallery
from mops.report.facts import Facts
from mops.report.outputs import outputs

from .report_lab import submit

if TYPE_CHECKING:
    pass

RESULTS = """
import math, random

def run(params, seed):
    rng = random.Random(seed)
    peak = params["beta"] * 100 + rng.random()
    return {
        "final_size": rng.random(), "peak": peak, "people": int(peak), "cost": math.exp(rng.gauss(3, 2)),
        "constant": 3.0, "often_nan": rng.choice([math.nan, math.inf, None, 1.0, 2.0]),
        "rare": 1.0 + seed % 7 if params["beta"] < 0.05 else math.nan,
        "label": "epidemic", "late": rng.random(), "later": rng.random(), "latest": rng.random(),
    }
"""
WITH_TIME = """
def run(params, seed):
    course = {"day": [1, 2], "cases": [1.0, params["beta"]]}
    return {"end": {"time": 3.5 + params["beta"], "cost": params["beta"]}, "daily": course}
"""
SEVERAL_ROWS = """
def run(params, seed):
    return {"agents": {"size": [1.0, 2.0, params["beta"]]}, "daily": {"day": [1, 2], "cases": [1.0, params["beta"]]}}
"""


def results(folder: Path, policies: str, n: int = 40, **fields: Any) -> Job:
    sets = [{"beta": round((i + 0.5) / n, 6), "policy": policies[i % len(policies)]} for i in range(n)]
    return job_of(folder, RESULTS, sets, **fields)


def job_of(folder: Path, model: str, sets: list[dict[str, Any]], **fields: Any) -> Job:
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(model)
    return submit(folder, sets, fields={"targets": [], **fields})


def parts(job: Job) -> tuple[list[Figure], list[str]]:
    """Return the figures and the notes of the section."""
    section = outputs(Facts.of(job))
    assert section is not None
    figures = [figure for part in section.parts if isinstance(part, Gallery) for figure in part.figures]
    return figures, [str(part.data) for part in section.parts if isinstance(part, Block)]


def stored(job: Job, column: str) -> pd.DataFrame:
    """Return the finite values in the files of a job, with the policies of their sets."""
    files = (folder_of(job.files.url, job.name) / "outputs").rglob("*.parquet")
    rows = pd.concat(map(pd.read_parquet, files)).merge(job.params().to_pandas()[["group", "policy"]], on="group")
    return rows[np.isfinite(rows[column].astype(float))]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return results(tmp_path_factory.mktemp("results"), "ab")


def test_the_counts_are_those_of_the_stored_values(job: Job) -> None:
    figures, _ = parts(job)
    columns = ["final_size", "peak", "people", "cost", "often_nan", "late"]
    assert [figure.title for figure in figures] == [f"{name} (output)" for name in columns]
    for name, figure in zip(columns, figures, strict=True):
        rows = figure.data.to_pandas()
        assert rows["division"].unique().tolist() == ["a", "b"]
        values = stored(job, name).astype({name: float})
        for policy, of_policy in values.groupby("policy")[name]:
            found = rows[rows["division"] == policy]
            if name == "often_nan":
                expected = of_policy.value_counts().sort_index().tolist()
            else:
                edges = [*found["low"], found["high"].iloc[-1]]
                expected = np.histogram(of_policy, edges)[0].tolist()
            assert found["n"].tolist() == expected, name
            assert found["share"].tolist() == pytest.approx(np.array(expected) / len(of_policy))
            assert f"policy = {policy}, n = {len(of_policy)}, median" in str(figure.spec)
    n_left_out = 80 - len(stored(job, "often_nan"))
    assert f"{n_left_out} values left out, not finite." in figures[4].caption
    assert "in bins of equal ratio" in figures[3].caption
    assert figures[0].caption == (
        "'final_size' of 80 simulations of 40 parameter sets, for each value of 'policy'. Each simulation counts once. "
        "The bars of a strip add up to 100 %. A line is a median."
    )


def test_notes_name_the_columns_without_a_figure_and_say_why(job: Job) -> None:
    _, notes = parts(job)
    assert notes == [
        "Without a figure: output.constant = 3 (all values are equal).",
        "Without a figure: output.rare (fewer than 5 values).",
        "Without a figure: output.label (not a number).",
        "Without a figure: output.later, output.latest (the report has figures of 6 columns).",
    ]


def test_more_than_six_values_divide_no_figure_and_six_have_a_strip_each(tmp_path: Path) -> None:
    """As for fan charts: :func:`mops.figures.choices.choose_division`."""
    job = results(tmp_path / "seven", "abcdefg")
    seven, _ = parts(job)
    rows = seven[0].data.to_pandas()
    assert "division" not in rows
    edges = [*rows["low"], rows["high"].iloc[-1]]
    assert rows["n"].tolist() == np.histogram(stored(job, "final_size")["final_size"], edges)[0].tolist()
    assert "for each value" not in seven[0].caption
    six, _ = parts(results(tmp_path / "six", "abcdef"))
    assert six[0].data["division"].unique().to_pylist() == list("abcdef")
    axes = [[view["layer"][0]["encoding"][channel]["scale"] for channel in "xy"] for view in six[0].spec["vconcat"]]
    assert len(axes) == 6, "one below the other"
    assert all(axis == axes[0] for axis in axes), "the same axes"
    titles = [{layer["encoding"]["x"]["title"] for layer in view["layer"]} for view in six[0].spec["vconcat"]]
    assert titles == [{""}] * 5 + [{"final_size"}], "one title, below all"


def test_long_names_of_divisions_keep_both_ends(tmp_path: Path) -> None:
    """The name of a scenario often ends with what tells it from the others."""
    names = ["schools_and_workplaces_closed_in_week_12", "schools_and_workplaces_closed_in_week_20"]
    sets = [{"beta": i / 40, "policy": names[i % 2]} for i in range(40)]
    figures, _ = parts(job_of(tmp_path, RESULTS, sets))
    texts = [view["title"]["text"].partition(", n")[0] for view in figures[0].spec["vconcat"]]
    assert all(text.startswith("policy = schools") for text in texts)
    assert [text[-2:] for text in texts] == ["12", "20"]


def test_a_single_row_with_a_time_has_histograms_and_no_course(tmp_path: Path) -> None:
    """A fan chart showed the cost along the time at which simulations ended."""
    job = job_of(tmp_path, WITH_TIME, [{"beta": i / 20} for i in range(20)])
    figures, notes = parts(job)
    assert [figure.title for figure in figures] == ["cases (daily)", "time (end)", "cost (end)"]
    assert notes == []
    rows = figures[1].data.to_pandas()
    files = (folder_of(job.files.url, "waves") / "outputs/end").glob("*.parquet")
    stored_times = pd.concat(map(pd.read_parquet, files))["time"]
    assert rows["n"].tolist() == np.histogram(stored_times, [*rows["low"], rows["high"].iloc[-1]])[0].tolist()


def test_several_rows_of_a_simulation_have_a_note(tmp_path: Path) -> None:
    figures, notes = parts(job_of(tmp_path, SEVERAL_ROWS, [{"beta": i / 20} for i in range(20)]))
    assert [figure.title for figure in figures] == ["cases (daily)"]
    (note,) = notes
    assert note.startswith("The output agents has no figure: it has several rows for a simulation, and no column such")
