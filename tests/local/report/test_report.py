"""The report of a real job: what it says, and that it is one file."""

from __future__ import annotations

import base64
import csv
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import mops
from job_folders import folder_of
from job_reads import data_of
from mops.errors import CorruptRecord, UsageError
from mops.figures.charts import shade_limits
from mops.figures.choices import Course
from mops.jobs.figure_data import fans_of, measured_of, scored_of, sensitivity_of
from mops.jobs.job import Job
from mops.jobs.summary import percent_of
from mops.report.content import Block, Gallery
from mops.report.facts import Facts, damage_of
from mops.report.head import head
from mops.report.outputs import best_courses, outputs
from mops.report.render import render
from mops.settings import Settings
from programs import environment
from waiting import until

from .report_lab import MODEL, WEIGHTS, design, layers_of, submit

EQUAL = """
def equal(params, replicates):
    return 0.1 + 0.2 if params["policy"] == "a" else 0.3
"""


def csv_of(page: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a figure's data."""
    found = re.search(rf'href="data:text/csv;charset=utf-8;base64,([^"]+)" download="{re.escape(name)}"', page)
    assert found is not None, f"there is no {name}"
    return list(csv.DictReader(io.StringIO(base64.b64decode(found[1]).decode())))


@pytest.fixture(scope="module")
def html(partial_page: Path) -> str:
    return partial_page.read_text()


def test_the_head_says_what_ran_what_failed_and_what_to_do(html: str, partial: Job) -> None:
    assert "24 simulations failed (30 %)" in html
    assert '<span class="state warning">partial</span>' in html
    assert "After a repair, run the failed sets again, in a new job that takes over all other results." in html
    assert "Repair the code at model.py:10 in run" in html
    assert "model:run" in html
    assert os.uname().nodename in html


def test_sets_without_any_loss_are_counted(html: str) -> None:
    """12 sets failed as a whole, and have no row of losses."""
    assert "28 of 40 parameter sets have all losses; 12 lack one." in html
    assert "12 of 40 parameter sets (30 %) lack a loss. 24 simulations failed (30 %)." in html
    assert "The weighted sum of losses of 28 of 40 parameter sets; 12 lack it." in html
    assert "12 not run because a simulation failed" in html


def test_points_of_a_pair_are_the_sets_of_the_job_in_the_colours_of_their_losses(html: str, partial: Job) -> None:
    rows = csv_of(html, "waves-weighted-sum-of-losses-over-beta-and-rate.csv")
    best = partial.best(100, weights=WEIGHTS).to_arrow().to_pylist()
    assert [(float(row["x"]), float(row["y"]), float(row["loss"])) for row in rows] == [
        (row["beta"], row["rate"], row["loss"]) for row in best
    ]
    losses = [row["loss"] for row in best]
    limits = shade_limits(scored_of(data_of(partial), weights=WEIGHTS))
    assert limits[-1] == pytest.approx(np.quantile(losses, 0.75), rel=0.005)
    (figure,) = re.findall(r"<h3>Weighted sum of losses over beta and rate</h3>.*?</figure>", html, re.DOTALL)
    assert all(f">{limit:.3g}</text>" in figure for limit in limits), "the legend"


def test_without_weights_each_loss_ranks_the_sets(partial: Job) -> None:
    """Regression: the report added losses of different units without a word."""
    page = render(partial)
    assert "Each loss ranks the sets, because the losses have no weights: fit.last, fit.beta." in page
    assert "sum of losses" not in page.replace("by a weighted sum", "")
    for label in ("fit.last", "fit.beta"):
        best = partial.best(100, weights={label: 1.0}).to_arrow().to_pylist()
        rows = csv_of(page, f"waves-best-by-{label}.csv")
        assert [int(row["group"]) for row in rows] == [row["group"] for row in best]
        assert re.search(rf"Best set \w+: {label} ", page)


def test_each_cause_has_its_count_its_range_and_its_traceback(html: str) -> None:
    assert "ValueError: beta 0.7125 is too large" in html
    assert "24 simulations in 12 parameter sets" in html
    assert "beta: 0.7125 to 0.9875 (all sets: 0.0125 to 0.9875)" in html
    assert "Traceback (most recent call last)" in html


def test_the_shares_of_failures_are_those_of_the_job(html: str) -> None:
    rows = [row for row in csv_of(html, "waves-failures-over-beta.csv") if row["cause"] == "0"]
    assert sum(int(row["failed"]) for row in rows) == 12
    assert sum(int(row["sets"]) for row in rows) == 40
    assert all(row["share"] == ("1" if float(row["low"]) > 0.7 else "0") for row in rows if float(row["high"]) < 0.7)


def test_the_course_of_the_best_sets_is_that_of_their_outputs(html: str, partial: Job) -> None:
    rows = csv_of(html, "waves-cases-of-the-best-sets-daily.csv")
    (row,) = [row for row in rows if row["sets"] == "best" and row["x"] == "19"]
    best = partial.best(10, weights=WEIGHTS).to_arrow()["param_id"].to_pylist()
    values = partial.outputs("daily", where={"day": 19, "param_id": best}, columns=["cases"]).to_pandas()["cases"]
    assert int(row["n"]) == len(values) == 20
    assert float(row["high90"]) == pytest.approx(values.quantile(0.95))


def test_failures_are_100_percent_only_if_all_fail() -> None:
    texts = [percent_of(n, 1_000) for n in (1, 10, 300, 990, 991, 999, 1_000)]
    assert texts == ["less than 1 %", "1 %", "30 %", "99 %", "more than 99 %", "more than 99 %", "100 %"]


def test_names_of_a_study_may_be_those_that_figures_use(odd: Job, odd_page: Path) -> None:
    page = odd_page.read_text()
    rows = csv_of(page, "odd-best.csv")
    assert [int(row["set.rank"]) for row in rows] == list(range(1, 29))
    assert [(int(row["param.rank"]), float(row["rank"])) for row in rows] == [(40 - i, 2.0) for i in range(28)]
    assert [int(row["is_best"]) for row in rows] == [i % 3 for i in range(28)]
    measures = set(sensitivity_of(measured_of(data_of(odd))).table["measure"].to_pylist())
    assert measures == {
        *("rank", "summary.peak", "summary.low"),
        *("last daily.cases", "summary.peak ('peak' of output 'summary')"),
    }


def test_a_spreadsheet_runs_no_text_of_a_figures_data_and_gets_exact_numbers(tmp_path: Path) -> None:
    """A text parameter such as =HYPERLINK(...) would run when a reader of the report opens its data."""
    texts = ["=1+1", "-2+3+cmd|'/c calc'!A1", "@x", "\tx", "\rx", "+x", "\uff1dx", "-1.5e-3", "+.5", "plain", "a=b", ""]
    sets = [{"beta": -0.1 * i, "@text": text} for i, text in enumerate(texts, 1)]
    page = render(submit(tmp_path, sets, settings=Settings(slots=2)), weights=WEIGHTS)
    found = {int(row["group"]): row for row in csv_of(page, "waves-best.csv")}
    run = [f"'{text}" for text in texts[:7]]
    assert [found[i]["'@text"] for i in range(len(texts))] == [*run, *texts[7:]]
    assert [float(found[i]["beta"]) for i in range(len(texts))] == [one["beta"] for one in sets]


def test_the_figures_have_the_data_that_the_job_keeps(tmp_path: Path) -> None:
    def figures_and_notes(job: Job) -> str:
        section = outputs(Facts.of(job))
        assert section is not None
        figures = [str(one.spec) for part in section.parts if isinstance(part, Gallery) for one in part.figures]
        return "\n".join([*figures, *(str(part.data) for part in section.parts if isinstance(part, Block))])

    (tmp_path / "mops.toml").write_text('[[observed]]\noutput = "daily"\nx = "day"\ny = "cases"\nfile = "cases.csv"\n')
    (tmp_path / "cases.csv").write_text("day,cases\n3,1\n6,2.5\n")
    assert "data: cases.csv" in figures_and_notes(submit(tmp_path, design(40)[:4]))
    (tmp_path / "cases.csv").write_text("day,n\n3,1\n")
    assert "data: cases.csv" in figures_and_notes(mops.open_job("waves", tmp_path / "storage"))
    with pytest.raises(UsageError, match="the data have no column 'cases'"):
        submit(tmp_path, design(40)[:4], name="later")
    (tmp_path / "cases.csv").write_text("day,cases\n2024-01-31,1\n")
    later = figures_and_notes(submit(tmp_path, design(40)[:4], name="later"))
    assert "The figures have no data: the column 'day' of the data has the type date32[day] (cases.csv" in later


def test_data_of_a_late_column_are_shown_and_a_note_names_data_that_fit_no_figure(tmp_path: Path) -> None:
    model = """
def run(params, seed):
    days = [0, 1, 2]
    columns = {name: [params["beta"] * day for day in days] for name in ("a", "b", "c", "late")}
    return {"daily": {"day": days, **columns, "place": ["x", "y", "z"]}}

def fit(params, replicates):
    return 1.0
"""
    (tmp_path / "model.py").write_text(model)
    (tmp_path / "data.csv").write_text("day,late,place,nothing,a\n1,0.25,1,1,1\n")
    named = (("daily", "day", "late"), ("daily", "day", "place"), ("daily", "day", "nothing"), ("daily", "a", "late"))
    entries = [f'[[observed]]\noutput = "{o}"\nx = "{x}"\ny = "{y}"\nfile = "data.csv"\n' for o, x, y in named]
    (tmp_path / "mops.toml").write_text("\n".join([*entries, entries[0], entries[0].replace("daily", "weekly")]))
    section = outputs(Facts.of(submit(tmp_path, design(4))))
    assert section is not None
    first = next(part for part in section.parts if isinstance(part, Gallery)).figures[0]
    assert first.title.startswith("late")
    points = layers_of(first)[-1]
    assert points["mark"]["type"] == "point"
    assert [(row["x"], row["y"]) for row in points["rows"]] == [(1, 0.25)]
    what = "No figure shows the data of data.csv for"
    assert [part.data for part in section.parts if isinstance(part, Block)] == [
        f"{what} 'place' of 'daily' along 'day'.",
        f"{what} 'nothing' of 'daily' along 'day'.",
        f"{what} 'late' of 'daily' along 'a'.",
        f"{what} 'late' of 'daily' along 'day'.",
        f"{what} 'late' of 'weekly' along 'day'.",
    ]


def test_more_than_two_divisions_have_a_figure_each_with_the_same_axis(tmp_path: Path) -> None:
    sets = [one | {"policy": "abc"[i % 3]} for i, one in enumerate(design(30))]
    job = submit(tmp_path, sets)
    section = outputs(Facts.of(job))
    assert section is not None
    figures = next(part for part in section.parts if isinstance(part, Gallery)).figures
    assert [figure.title for figure in figures] == [f"cases (daily), policy = {policy}" for policy in "abc"]
    axes = [layer["encoding"]["y"]["scale"] for figure in figures for layer in figure.spec["layer"]]
    assert all(axis == axes[0] for axis in axes)
    rows = job.outputs("daily").to_pandas().merge(job.params().to_pandas()[["param_id", "policy"]], on="param_id")
    expected = rows.groupby(["policy", "day"])["cases"].median()
    for figure in figures:
        policy = figure.title[-1]
        assert figure.data["median"].to_pylist() == pytest.approx(expected[policy].tolist())
    upper = rows.groupby(["policy", "day"])["cases"].quantile(0.95).max()
    assert axes[0]["domain"][1] == pytest.approx(upper)


def test_the_head_says_the_best_set_and_the_fixed_parameters(tmp_path: Path) -> None:
    sets = [one | {"rate": 1.5, "policy": "ab"[i % 2]} for i, one in enumerate(design(12))]
    job = submit(tmp_path, sets)
    best = job.losses().to_pandas().groupby("param_id")["loss"].agg(["sum", "count"]).query("count == 2")["sum"]
    params = job.params().to_pandas().set_index("param_id")
    top = head(Facts.of(job, weights=WEIGHTS))
    (answer,) = top.answers
    identity = best.idxmin()
    beta, policy = params.loc[identity, ["beta", "policy"]]
    found = re.fullmatch(r"Best set (\w+): weighted sum of losses (\S+) at beta (\S+), policy (\w)\.", answer.text)
    assert found is not None, answer.text
    assert identity.startswith(found[1])
    assert float(found[2]) == pytest.approx(best.min(), rel=1e-2)
    assert (float(found[3]), found[4]) == (pytest.approx(beta, rel=1e-2), policy)
    assert ("fixed parameters", "rate = 1.5") in top.about
    one = head(Facts.of(submit(tmp_path, sets[:1], name="one")))
    text = f"beta {sets[0]['beta']:.4g}, rate 1.5, policy a."
    assert one.answers[0].text.endswith(text), "a single set is not the best of any"
    assert one.answers[0].text.startswith("Set ")
    assert ("parameters", f"beta = {sets[0]['beta']:.4g}, rate = 1.5, policy = a") in one.about


def damaged(job: Job, folder: str, n: int | None = None) -> Path:
    """Change the first bytes of the pages in the first part of a table; None: all of them."""
    path = min((folder_of(job.files.url, job.name) / folder).glob("*.parquet"))
    content = bytearray(path.read_bytes())
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little") if n is None else 4 + n
    content[4:end] = bytes(byte ^ 0x5A for byte in content[4:end])
    path.write_bytes(content)
    return path


def test_damaged_pages_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    job = submit(tmp_path, design(40))
    damaged(job, "failures")
    for read in (
        job.causes().to_arrow,
        job.failures().to_arrow,
        lambda: job.dataset("failures").to_table(),
        lambda: render(job),
    ):
        with pytest.raises(CorruptRecord, match="a committed part of job 'waves' is damaged") as found:
            read()
        assert found.value.hint.endswith("mops jobs verify waves")


def test_changed_text_that_is_no_text_any_more_is_damage_and_not_a_defect_of_mops(tmp_path: Path) -> None:
    job = submit(tmp_path, design(40))
    bad = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    with pytest.raises(UnicodeDecodeError):
        damage_of(bad, data_of(job))
    path = damaged(job, "failures", 1)
    where = f"{job.record.paths.root}/failures/{path.name}"
    assert damage_of(bad, data_of(job)).where == f"{where}: its SHA-256 differs from the committed one"


def test_the_best_sets_and_the_data_fit_on_the_axis_and_all_sets_need_not(tmp_path: Path) -> None:
    """Of an epidemic, the greatest of all sets once pressed the best sets and the data to the bottom."""
    (tmp_path / "mops.toml").write_text('[[observed]]\noutput = "daily"\nx = "day"\ny = "cases"\nfile = "cases.csv"\n')
    (tmp_path / "cases.csv").write_text("day,cases\n3,1\n6,-2.5\n")
    job = submit(tmp_path, design(40))
    course = Course("daily", "day", ("cases",))
    facts = Facts.of(job)
    (figure,) = best_courses(
        facts, scored_of(data_of(job), weights=WEIGHTS), course, fans_of(facts.data, course, by=False), 10, "whole"
    )
    best = job.best(10, weights=WEIGHTS).to_arrow()["param_id"].to_pylist()
    every = job.outputs("daily").to_pandas()
    by_day = every[every["param_id"].isin(best)].groupby("day")["cases"]
    expected = [min(by_day.quantile(0.05).min(), -2.5), by_day.quantile(0.95).max()]
    scales = [layer["encoding"]["y"]["scale"] for layer in figure.spec["layer"]]
    assert len(scales) == 5
    assert scales[0]["domain"] == pytest.approx(expected)
    assert all(scale == scales[0] for scale in scales)
    assert every.groupby("day")["cases"].quantile(0.95).max() > expected[1]
    assert figure.caption.endswith(
        "The vertical axis fits the 10 sets with the least weighted sum of losses and the data; the grey band is cut "
        "off."
    )


def test_only_a_band_beyond_the_axis_is_called_cut_off(partial: Job) -> None:
    """The caption compared the band with the least and the greatest value, and the axis ends at rounder ones."""
    by_day = partial.outputs("daily").to_pandas().groupby("day")["cases"]
    low, high = by_day.quantile(0.05).min(), by_day.quantile(0.95).max()
    facts, scored = Facts.of(partial), scored_of(data_of(partial), weights=WEIGHTS)
    found = set()
    for n_best in (5, 10, 20, 27, 28):
        course = Course("daily", "day", ("cases",))
        every = fans_of(facts.data, course, by=False)
        (figure,) = best_courses(facts, scored, course, every, n_best, "whole")
        ends = figure.spec["layer"][0]["encoding"]["y"]["scale"]["domain"]
        is_cut = low < ends[0] or high > ends[1]
        assert ("cut off" in figure.caption) == is_cut
        found.add(is_cut)
    assert found == {True, False}


def test_texts_have_points_and_all_their_names_and_few_sets_a_tick_each(tmp_path: Path) -> None:
    """A line between texts suggests an order. Vega left out every other name, and wrote the ticks 0, 1, 1, 2, 2."""
    design = [{"beta": 0.1 + 0.01 * i, "policy": f"policy {i % 6} of a town"} for i in range(36)]
    page = render(submit(tmp_path, design), weights=WEIGHTS)
    (profile,) = re.findall(r"<h3>Profile of policy</h3>.*?</figure>", page, re.DOTALL)
    assert "mark-line" not in profile
    assert profile.count(">policy ") == 6
    few = render(submit(tmp_path, [{"beta": 0.4, "policy": name} for name in "ab"], "few"))
    (ticks,) = re.findall(r"<h3>Distribution of the loss &#39;fit.beta&#39;</h3>.*?</figure>", few, re.DOTALL)
    assert re.findall(r">(\d+)</text>", ticks) == ["0", "0", "1", "2"], "the loss, then the sets"


def test_equal_losses_have_no_best_set(tmp_path: Path) -> None:
    """A report of a constant loss showed the first ten sets as the best, against all sets."""
    (tmp_path / "model.py").write_text(MODEL + EQUAL)
    job = submit(tmp_path, design(60)[:40], fields={"targets": ["model:equal"]})
    page = render(job)
    assert "All 40 sets with a loss have the same loss, 0.3, so none of them is the best." in page
    assert "of the best sets" not in page
    assert "with the least" not in page
    table = pd.DataFrame(csv_of(page, "waves-distribution-of-the-loss-equal.csv"))
    assert table["n"].tolist() == ["40"], "losses that differ by rounding are one"


def test_every_figure_has_a_caption_data_and_a_text_for_those_who_do_not_see_it(html: str) -> None:
    figures = re.findall(r"<figure.*?</figure>", html, re.DOTALL)
    assert len(figures) > 8
    for figure in figures:
        assert "undefined" not in figure
        assert re.search(r"<figcaption>\s*\S+.*Data \(CSV\)</a>", figure, re.DOTALL), figure[:300]
        assert re.search(r'<svg[^>]* role="img" aria-label="[^"]{20,}"', figure), figure[:300]


def test_names_and_messages_of_a_study_stay_text(tmp_path: Path) -> None:
    """A parameter's name, a message or an output's name once could have brought its own script into the page."""
    evil = "</script><script>window.hacked=1</script><img src=x onerror=alert(1)>"
    (tmp_path / "model.py").write_text(
        f"EVIL = {evil!r}\n"
        "def run(params, seed):\n"
        "    if params[EVIL] > 5:\n"
        "        raise ValueError(EVIL)\n"
        "    return {EVIL.replace('/', ''): {'day': [1, 2], EVIL: [params[EVIL], 2.0]}}\n"
        "def fit(params, replicates):\n"
        "    return {EVIL: params[EVIL], 'b': 1.0}\n"
    )
    page = render(submit(tmp_path, [{evil: float(i), "text": evil * (i % 2)} for i in range(12)]))
    assert "hacked" in page
    assert "<img src=x" not in page
    assert len(re.findall("<script", page)) == 3  # the script of the page, and the chart of each loss as JSON


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A job whose two sets wait at the gates ``0`` and ``1``."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    gates, pids = [tmp_path / name for name in "01"], []
    for gate in gates:
        gate.touch()
    sets = [{"beta": 0.1, "gate": str(gates[0])}, {"beta": 0.2, "gate": str(gates[1])}]
    job = submit(
        tmp_path / "project",
        sets,
        wait=False,
        settings=Settings(slots=1, batch_size=1, checkpoint_seconds=1),
        on_detach=lambda _job, runner: pids.append(runner.pid),
    )
    yield job
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_running_job_has_a_report_of_what_is_committed(running: Job, tmp_path: Path) -> None:
    page = render(running)
    assert "0 of 4 simulations have finished" in page
    assert "No parameter set has all losses yet." in page
    (tmp_path / "0").unlink()
    until(lambda: running.status().groups == 1 and running.status().live)
    page = render(running)
    assert "2 of 4 simulations have finished" in page
    assert "mops jobs watch waves" in page
    assert "cases (daily)" in page
    assert "1 of 2 sets have run so far." in page


def test_a_job_in_which_every_simulation_failed_says_why_and_has_no_maps(tmp_path: Path) -> None:
    page = render(submit(tmp_path, design(40)[30:]))
    assert "Every simulation failed: ValueError: beta 0.7625 is too large at model.py:10 in run." in unescape(page)
    assert '<span class="state bad">every simulation failed</span>' in page
    assert "Failures over" not in page
    assert "No parameter set has all losses." in page
    assert "List the results." not in page


def test_a_missing_library_is_named_with_its_extra(partial: Job, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['vl_convert'] = None; import mops.cli.start as s; "
        f"sys.argv = ['mops', 'jobs', 'report', 'waves', '--storage', {partial.files.url!r}]; s.main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=60
    )
    assert ran.returncode == 2
    assert "a report needs the library vl_convert" in ran.stderr
    assert "pip install 'mops-runner[plots]'" in ran.stderr
    assert list(tmp_path.iterdir()) == []
