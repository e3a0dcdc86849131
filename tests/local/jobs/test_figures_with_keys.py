"""Figures of outputs with several rows for a day and a simulation, against pandas and scipy on the Parquet files.

Case 32: the rows of the regions of a day were counted as if they were simulations.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest
from scipy import stats

import mops
from job_folders import folder_of
from job_reads import data_of
from mops.errors import UsageError
from mops.figures.choices import Course
from mops.figures.fan import BAND_COLUMNS, QUANTILES, Fan
from mops.jobs.figure_data import course_of, declared, fans_of, measured_of, sensitivity_of
from mops.jobs.job import Job
from mops.report.content import Block, Gallery, Section
from mops.report.facts import Facts
from mops.report.influence import influence
from mops.report.outputs import outputs
from mops.settings import Settings

MODEL = """
import random

def run(params, seed):
    rng, beta = random.Random(seed), params["beta"]
    by_region = [
        {"day": day, "region": region, "sex": sex, "cases": rng.random() * size + day * beta, "deaths": day}
        for day in range(4) for region, size in (("north", 100), ("south", 1)) for sex in ("f", "m")
    ]
    by_age = [{"n": rng.randint(0, 9), "age": age, "step": step} for step in range(3) for age in (0, 5, 10)]
    return {
        "by_region": by_region,
        "by_age": by_age,
        "totals": {"region": ["north", "south"], "total": [beta * rng.random(), -beta]},
        "events": {"day": [1, 1, 2], "cost": [rng.random() for _ in range(3)]},
        "districts": [{"day": day, "district": f"d{i}", "n": beta * i} for day in range(2) for i in range(9)],
        "result": {"peak": beta + rng.random()},
    }

def fit(params, replicates):
    return abs(params["beta"] - 0.4)
"""
KEYED = {"by_region": ["region", "sex"], "by_age": ["age"]}
BY_REGION = [f"last by_region.cases, region and sex = {region}, {sex}" for region in ("north", "south") for sex in "fm"]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "model.py").write_text(MODEL)
    (folder / "cases.csv").write_text("day,region,sex,cases\n1,north,f,50\n1,south,m,0.5\n")
    (folder / "plain.csv").write_text("day,deaths\n1,3\n")
    entry = '[[observed]]\noutput = "by_region"\nx = "day"\ny = "{}"\nfile = "{}"\n'
    (folder / "mops.toml").write_text(entry.format("cases", "cases.csv") + entry.format("deaths", "plain.csv"))
    sets = [{"beta": round(0.05 * i + 0.05, 2), "policy": "ab"[i % 2]} for i in range(20)]
    options = {"project": folder, "storage": folder / "s", "settings": Settings(slots=1), "local": True}
    return mops.submit(model="model:run", targets=["model:fit"], sets=sets, replicates=2, name="keys", **options)


def raw(job: Job, output: str) -> pd.DataFrame:
    folder = folder_of(job.files.url, "keys") / "outputs" / output
    return pd.concat(map(pd.read_parquet, folder.glob("*.parquet")))


def check(fan: Fan, rows: pd.DataFrame, keys: list[str]) -> None:
    """Compare the bands of each division with the quantiles over its simulations."""
    found = fan.table.to_pandas().set_index(["division", "x"])
    for (*of, x), some in rows.groupby([*keys, fan.x])[fan.y]:
        row = found.loc[(", ".join(map(str, of)), x)]
        assert row["n"] == len(some) == 40, "one value of each simulation"
        assert row[list(BAND_COLUMNS)].tolist() == pytest.approx(np.quantile(some, QUANTILES).tolist())
    assert len(found) == len(rows.drop_duplicates([*keys, fan.x]))
    assert fan.n_simulations == 40


def test_fans_are_apart_for_the_columns_that_tell_rows_apart(job: Job) -> None:
    for output, keys in KEYED.items():
        course = course_of(data_of(job), output)
        assert course is not None
        assert list(course.keys) == keys
        for fan in fans_of(data_of(job), course):
            check(fan, raw(job, output), keys)
            assert "of 40 simulations of 20" in fan.caption
    assert course_of(data_of(job), "by_age") == Course("by_age", "step", ("n",), ("age",)), "an age is no result"


def test_a_user_chooses_rows_or_what_is_apart(job: Job) -> None:
    rows = raw(job, "by_region").merge(job.params().to_pandas()[["group", "policy"]], on="group")
    where = "sex == 'f' and day > 0"
    course = course_of(data_of(job), "by_region", ys=["cases"], by=["region"], where=where)
    assert course is not None
    check(
        *fans_of(data_of(job), course, by="region", where=where),
        rows[(rows["sex"] == "f") & (rows["day"] > 0)],
        ["region"],
    )
    chart = job.plot.fan("by_region", y="cases", where={"region": "north", "sex": "m"}, by=False).to_dict()
    assert "no data, because" in " ".join(chart["title"]["subtitle"])
    (drawn,) = chart["datasets"].values()
    north = rows[(rows["region"] == "north") & (rows["sex"] == "m")].groupby("day")["cases"].median()
    assert [row["median"] for row in drawn] == pytest.approx(north.tolist())
    (both,) = fans_of(data_of(job), Course("by_region", "day", ("cases",)), by=["policy", "region"], where="sex == 'f'")
    found = both.table.filter(pc.equal(both.table["division"], "a, south"))["median"].to_pylist()
    of_a = rows[(rows["policy"] == "a") & (rows["region"] == "south") & (rows["sex"] == "f")]
    assert found == pytest.approx(of_a.groupby("day")["cases"].median().tolist())


def test_a_figure_that_would_pool_rows_says_why_it_is_not_drawn(job: Job, subtests: pytest.Subtests) -> None:
    for output, options, what in [
        ("by_region", {"by": "region"}, "simulations have several rows of 'by_region' for one 'day' and one 'region'"),
        ("by_region", {"by": "policy"}, "simulations have several rows of 'by_region' for one 'day' and one 'policy'"),
        ("events", {}, "simulations have several rows of 'events' for one 'day', and no column tells these rows apart"),
        (
            "districts",
            {},
            "simulations have several rows of 'districts' for one 'day', one for each of the 9 values of",
        ),
        ("by_region", {"by": "regio"}, "there is no parameter and no column 'regio'"),
    ]:
        with subtests.test(what), pytest.raises(UsageError, match=re.escape(what)):
            job.plot.fan(output, **options)


def test_the_last_values_are_those_of_each_key(job: Job) -> None:
    found = measured_of(data_of(job))
    assert found.measures[:3] == ("fit", "result.peak", BY_REGION[0]), "first what has one row"
    params = job.params().to_pandas().set_index("group")["beta"]
    rows = raw(job, "by_region")
    whole = measured_of(data_of(job), "by_region", ["cases"])
    assert list(whole.measures) == BY_REGION
    rho = sensitivity_of(whole).table.to_pandas().set_index(["parameter", "measure"])["rho"]
    for name in BY_REGION:
        region, sex = name.partition(" = ")[2].split(", ")
        last = rows[(rows["day"] == 3) & (rows["region"] == region) & (rows["sex"] == sex)]
        means = last.groupby("group")["cases"].mean()
        assert rho["beta", name] == pytest.approx(stats.spearmanr(params[means.index], means).statistic)
    assert any(note.startswith("No measure shows 'districts': simulations have several") for note in found.notes)
    shown, left_out = set(found.measures), found.notes[-1]
    assert len(shown) == 8
    assert "job.plot.sensitivity(OUTPUT, y=COLUMN) draws them." in left_out
    assert all(name.removeprefix("last ") in left_out for name in BY_REGION if name not in shown)
    figure = job.plot.sensitivity("by_region", y="cases", where="region == 'north' and sex == 'f'")
    assert figure.title.text == "Rank correlations with last by_region.cases"


def parts(section: Section | None) -> tuple[dict[str, str], list[str]]:
    assert section is not None
    figures = [figure for part in section.parts if isinstance(part, Gallery) for figure in part.figures]
    notes = [str(part.data) for part in section.parts if isinstance(part, Block) and part.kind == "note"]
    return {figure.title: str(figure.spec) for figure in figures}, notes


def test_a_report_has_a_panel_for_each_key_and_its_data_or_names_them(job: Job) -> None:
    figures, notes = parts(outputs(Facts.of(job)))
    panels = [title for title in figures if title.startswith("cases (by_region)")]
    assert panels == [f"cases (by_region), region and sex = {r}, {s}" for r in ("north", "south") for s in "fm"]
    assert ["'type': 'point'" in figures[title] for title in panels] == [True, False, False, True]
    assert "cases of the best sets (by_region), region and sex = south, f" in figures
    text = " ".join(notes)
    assert "No figure shows the data of plain.csv for 'deaths' of 'by_region' along" in text
    assert "several rows of 'events' for one 'day', and no column tells these rows apart: return one row" in text
    assert "one for each of the 9 values of 'district': choose some of them, such as job.plot.fan('districts'" in text
    _, why = parts(influence(Facts.of(job)))
    assert any("At most 8 results have a figure here" in note for note in why)


def test_data_with_keys_are_points_in_the_colour_of_their_line(job: Job) -> None:
    assert len(declared(data_of(job).observed)) == 2
    chart = job.plot.fan("by_region", y="cases").to_dict()
    points = next(layer for layer in chart["layer"] if layer["mark"]["type"] == "point")
    rows = [row for row in chart["datasets"][points["data"]["name"]] if row["series"] == "region and sex = south, m"]
    assert [(row["x"], row["y"]) for row in rows] == [(1, 0.5)]
    assert len({str(layer["encoding"]["color"]) for layer in chart["layer"]}) == 1
