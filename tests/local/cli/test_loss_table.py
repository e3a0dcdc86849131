"""The losses that ``mops jobs status`` shows, on terminals of all widths and in pipes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from mops.cli.status import loss_fields, print_losses
from mops.jobs.figure_data import BestSet, LossSpread, LossSummary
from mops.jobs.status import JobState
from mops.storage.files import Files

from .command_lab import CommandLab

ANSI = re.compile(r"\x1b\[[0-9;]*m")
SPREADS = [
    LossSpread("loss", "weighted sum of losses", 100_000, -1.2345e300, 0.0123456, 1.2e300),
    LossSpread("deaths.root_mean_square", "deaths.root_mean_square", 99_999, 0.0, 12.5, 123456.0),
]
BEST = [
    BestSet(one * 5, group, loss, "peak")
    for one, group, loss in (("3f2a9c0d1b7e", 7, 1.0), ("5b1d9c0d1b7e", 2, 2.0), ("77aa9c0d1b7e", 1, 4.0))
]
PAGE = Path(__file__).parents[3] / "docs/explanation/what-mops-prints.md"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LINES", "30")


def printed(capsys: Captured, best: list[BestSet]) -> list[str]:
    print_losses(SPREADS, best)
    return ANSI.sub("", capsys.readouterr().out).splitlines()


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))


def test_the_tables_fit_a_terminal_and_keep_all_figures(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    for width in range(40, 201):
        with monkeypatch.context() as patch:
            on_terminal(patch, width)
            lines = printed(capsys, BEST)
        assert all(cell_len(line) <= width for line in lines), width
        text = "\n".join(lines)
        for one in BEST:
            assert re.search(rf"^{one.param_id[:12]} +{one.loss:g}\b", text, re.MULTILINE), width
        assert ("━" in text) == (width >= 60), width
        if width >= 60:
            figures = {"-1.234e+300", "0.01235", "1.2e+300", "100,000", "12.5", "1.235e+05"}
            assert figures <= set(text.split()), width
        else:
            assert "…" not in text, width


def test_the_page_shows_the_tables(capsys: Captured) -> None:
    spreads = [
        LossSpread("final_size", "final_size", 1000, 0.0123, 0.8105, 15.2),
        LossSpread("peak", "peak", 992, 0.0009, 0.4713, 8.94),
    ]
    ids = ("3f2a9c0d1b7e", "b81c02f7a94d", "0c5de19a7731", "77aa4b20c9f6", "e2906d3f5b18")
    least = {"final_size": (0.0123, 0.0271, 0.0277, 0.0402, 0.0615), "peak": (0.0009, 0.0013, 0.0021, 0.0034, 0.0055)}
    best = [BestSet(one, 0, loss, by) for by, some in least.items() for one, loss in zip(ids, some, strict=True)]
    print_losses(spreads, best)
    assert f"```text{chr(10)}{capsys.readouterr().out.lstrip()}```\n" in PAGE.read_text()


def test_a_bar_begins_at_zero_or_at_the_least_negative_loss(capsys: Captured) -> None:
    lines = printed(capsys, BEST)[-4:]
    assert lines[0].endswith("0 to 4")
    assert [line.count("━") for line in lines[1:]] == [6, 12, 24]
    negative = printed(capsys, [BestSet("a" * 64, 0, -2.0, "fit"), BestSet("b" * 64, 1, -1.0, "fit")])[-3:]
    assert negative[0].endswith("-2 to -1")
    assert [line.count("━") for line in negative[1:]] == [0, 24]
    assert "━" not in printed(capsys, [BestSet("a" * 64, 0, 0.0, "fit")])[-1]
    assert (
        printed(capsys, [BestSet("a" * 64, 0, -1e308, "fit"), BestSet("b" * 64, 1, 1e308, "fit")])[-1].count("━") == 24
    )
    assert printed(capsys, [])[-1] == "no parameter set has a loss"


def test_an_output_without_block_characters_has_no_bars(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    shown = lab.run("jobs", "status", job, "--losses", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.isascii()
    assert "best sets" in shown.out


def test_a_job_with_losses(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    status = lab.run("jobs", "status", job)
    assert re.search(rf"^losses +mops jobs status {job} .*--losses$", status.out, re.MULTILINE)
    assert re.search(r"^finished +4 of 4 simulations\ndurable +4 of 4 finished$", status.out, re.MULTILINE)
    shown = lab.run("jobs", "status", job, "--losses").out
    assert re.search(r"^losses +2$", shown, re.MULTILINE)
    assert re.search(r"^score +2 +2 +3 +4$", shown, re.MULTILINE)
    assert [line.count("━") for line in shown.splitlines()[-2:]] == [12, 24]
    best = lab.run("jobs", "results", job, "--best", "5", "--json").json
    assert lab.run("jobs", "status", job, "--losses", "--json").json["losses"] == {
        "n_losses": 2,
        "spreads": [{"label": "loss", "title": "score", "n": 2, "least": 2.0, "median": 3.0, "greatest": 4.0}],
        "best": [{name: row[name] for name in ("param_id", "group", "loss")} | {"ranked_by": "score"} for row in best],
    }


def test_a_job_without_losses(lab: CommandLab) -> None:
    assert lab.submit("--name", "bare").code == 0
    assert "losses" not in lab.run("jobs", "status", "bare").out
    assert re.search(r"^losses +0$", lab.run("jobs", "status", "bare", "--losses").out, re.MULTILINE)
    losses = lab.run("jobs", "status", "bare", "--losses", "--json").json["losses"]
    assert losses == {"n_losses": 0, "spreads": [], "best": []}


def test_of_too_many_losses_status_names_the_command(finished: tuple[CommandLab, str]) -> None:
    job = JobState(Files.open(str(finished[0].storage)), finished[1])
    (_, n), (_, command) = loss_fields(job, job.status(), LossSummary(250_000, None, None))
    assert n == "250,000, too many to summarize here"
    assert re.fullmatch(r"mops jobs results done .*--best 5", command)
