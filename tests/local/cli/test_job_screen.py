"""The screen of a running job, rendered for terminals of all widths, and on real ones."""

from __future__ import annotations

import functools
import io
import itertools
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from mops.cli.terminal import MOST_POINTS, RATE_SECONDS, Field, JobScreen, Rates, bar, fields_of, sparkline
from mops.storage.progress_record import BestLoss, FailureCause, Progress
from mops.verdicts import Counts

from .command_lab import CommandLab
from .test_watch import Terminal, terminals

__all__ = ["terminals"]  # a fixture

WIDTHS = range(40, 201)
LABELS = ("simulations", "elapsed", "rate", "memory", "durable", "best loss", "failures")
DETAILS = ("in flight",)
RATES = [3.0, 10.0, 18.0, 20.0, 21.0, 22.0, 21.0]
ORNAMENTS = "▁▂▃▄▅▆▇█━─"


def snapshot(**changes: Any) -> Progress:
    """Return the progress of a job with long figures, failures and losses."""
    fields: dict[str, Any] = {
        "at": 0.0,
        "job": "a-study-of-infections-with-a-long-name-261121-f0b5",
        "finished": Counts(1_612_345, 87_654, 100_000, 40, {"oom": 87_000, "invalid_output": 654}),
        "durable": Counts(1_572_000, 80_000),
        "total": 12_345_678,
        "rate": 12_345.6,
        "seconds_left": 862.3,
        "seconds": 400_000.0,
        "memory_bytes": 87_900 << 20,
        "peak_bytes": 90_300 << 20,
        "in_flight": 4_000,
        "slots": 2_000,
        "limit_bytes": 128 << 30,
        "next_commit_s": 12.2,
        "best": tuple(
            BestLoss(f"targets:{name}", name, loss, "3f2a9c0d1b7e" * 5)
            for name, loss in (("final_size", -0.0123456), ("peak_of_the_epidemic", 1.2e300), ("a", 1.0), ("b", 2.0))
        ),
        "causes": (
            FailureCause("oom", "used 534 MiB of its 512 MiB limit; set MODELOPS_JOB_SIM_MEMORY higher " * 3, 87_000),
            FailureCause("invalid_output", "列 'y' ist eine Zahl, und war vorher ein Text: 値が不正です " * 4, 654),
        ),
    }
    return Progress(**fields | changes)


def rendered(width: int, now: Progress | None = None, **options: Any) -> list[str]:
    now = now or snapshot()
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, soft_wrap=True, **options)
    console.print(JobScreen(f"{now.job}: running", list(fields_of(now, RATES, 0.0)), ["a line of the log " * 20]))
    return out.getvalue().splitlines()


@functools.cache
def plain(width: int) -> list[str]:
    """Return the screen without colours."""
    return rendered(width, force_terminal=False)


@pytest.mark.parametrize("colour", [False, True])
def test_at_every_width_no_line_is_wider_than_the_terminal_and_each_label_is_whole(colour: bool) -> None:
    options: dict[str, Any] = {"force_terminal": True, "color_system": "truecolor"}
    for width in WIDTHS[:: 10 if colour else 1]:
        screen = rendered(width, **options) if colour else plain(width)
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in screen]
        assert max(map(cell_len, lines)) <= width, width
        labels = [line[:13].rstrip() for line in lines]
        wanted = [*LABELS, *(DETAILS if width >= 60 else ())]
        assert [label for label in labels if label in wanted] == wanted, width
        assert any("\x1b[" in line for line in screen) == colour


def test_at_every_width_every_figure_is_whole() -> None:
    for width in WIDTHS:
        text = " ".join(line.strip() for line in plain(width))
        for figure in (
            "1,699,999 of 12,345,678",
            "87,654 failed",
            "10,645,679 left",
            "13 %",
            "111 h 06 min",
            "14 min 22 s to go",
            "85.8 GiB of 128.0 GiB",
            "1,652,000 of 1,699,999 finished",
            "next commit in 12 s",
            "-0.01235 final_size (3f2a9c0d1b7e)",
            "87,000 oom",
            "654 invalid_output",
        ):
            assert figure in text, (width, figure)


def test_failures_of_which_no_cause_is_shown_are_counted() -> None:
    """Regression: after a resume, "failures 14 error" stood above "1 x error" alone."""
    now = snapshot(finished=Counts(1, 14, verdicts={"error": 14}), causes=(FailureCause("error", "x is 3", 1),))
    assert [line.strip() for line in rendered(120, now) if "others" in line or " x error" in line] == [
        "1 x error: x is 3",
        f"13 others: mops jobs failures {now.job}",
    ]


def test_ornaments_need_a_wide_terminal() -> None:
    """Also on a terminal of 72 columns or more, an ornament never moves a figure to the next line."""
    for width in WIDTHS:
        text = "".join(plain(width))
        assert bool(set(ORNAMENTS) & set(text)) == (width >= 72), width
    lengths = {width: len(plain(width)) for width in WIDTHS}
    assert all(lengths[wide] <= lengths[narrow] for narrow, wide in itertools.pairwise(WIDTHS) if narrow >= 60)


def test_without_results_there_are_no_empty_fields() -> None:
    now = Progress(0.0, Counts(), "job", total=10, seconds=0.2)
    text = "\n".join(rendered(100, now))
    assert "0 of 10, 0 failed, 10 left, 0 %" in text
    assert "no rate yet" in text
    assert not re.search("memory|best loss|failures|next commit|to go|ends", text)


def test_a_job_shows_100_percent_only_when_nothing_is_left() -> None:
    def percent(good: int) -> str:
        return next(fields_of(Progress(0.0, Counts(good), "job", total=1000, rate=1.0, seconds=1.0), [], 0.0)).parts[-1]

    assert [percent(good) for good in (0, 999, 1000)] == ["0 %", "99 %", "100 %"]


def test_targets_with_several_losses_have_both_names() -> None:
    best = tuple(BestLoss("targets:fit", name, 1.0, "3f2a9c0d1b7e" * 5) for name in ("peak", "size"))
    (field,) = [one for one in fields_of(snapshot(best=best), [], 0.0) if one.label == "best loss"]
    assert field.parts == ["1 fit.peak (3f2a9c0d1b7e)", "1 fit.size (3f2a9c0d1b7e)"]


def test_a_figure_wider_than_the_terminal_continues_on_the_next_line() -> None:
    out = io.StringIO()
    Console(file=out, width=40).print(JobScreen("job", [Field("Kubernetes", ["pending: " + "x" * 60])]))
    assert out.getvalue().count("x") == 60
    assert max(map(len, out.getvalue().splitlines())) <= 40


def test_a_terminal_for_ascii_gets_no_ornaments() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    now = snapshot(causes=())
    Console(file=out, width=120).print(JobScreen(now.job, list(fields_of(now, RATES, 0.0))))
    out.flush()


PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "what-mops-prints.md"
SHOWN = Progress(
    0.0,
    Counts(612, 8, 61, 1, {"oom": 5, "error": 3}),
    "waves",
    Counts(572, 8),
    1000,
    21.3,
    65.0,
    879 << 20,
    903 << 20,
    4,
    2,
    seconds_left=17.8,
    limit_bytes=8 << 30,
    next_commit_s=12.0,
    best=(BestLoss("model:final_size", "final_size", 0.0123, "3f2a9c0d1b7e"),),
    causes=(
        FailureCause("oom", "used 534 MiB of its 512 MiB limit; set MODELOPS_JOB_SIM_MEMORY higher", 5),
        FailureCause("error", "ValueError: x is negative", 3),
    ),
)


@pytest.mark.parametrize("width", [80, 40])
def test_the_page_shows_the_screen_of_a_running_job(width: int) -> None:
    out = io.StringIO()
    fields = list(fields_of(SHOWN, [*RATES, 20.0, 21.0, 20.0, 22.0, 21.0], datetime(2026, 11, 25, 14, 30).timestamp()))
    Console(file=out, width=width, highlight=False).print(JobScreen("waves: running", fields))
    screen = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
    assert f"<!-- screen: {width} -->\n```text\n{screen}```\n" in PAGE.read_text()


# Rates


def test_a_sparkline_goes_from_zero_to_the_highest_of_the_last_values() -> None:
    assert sparkline([0, 1, 2], 12).strip() == "▁▅█"
    assert sparkline([9, 0, 1, 2], 3) == "▁▅█"
    assert sparkline([0, 0], 12).strip() == "▁▁"
    assert len(sparkline([], 12)) == len(sparkline(range(24), 12)) == 12


def test_a_bar_is_filled_by_its_share() -> None:
    assert [bar(share, 4) for share in (0, 0.5, 1, 2)] == ["────", "━━──", "━━━━", "━━━━"]


def test_a_rate_is_kept_every_five_seconds_for_two_minutes() -> None:
    rates = Rates()
    for second in range(200):
        rates.add("job", float(second), float(second))
    assert list(rates.kept)[-3:] == [189.0, 194.0, 199.0]
    assert len(rates.kept) == MOST_POINTS
    assert MOST_POINTS * RATE_SECONDS == 120
    rates.add("the next round of a calibration", 0.0, 7.0)
    assert list(rates.kept) == [7.0]


# Real terminals


SCORED = """
import os, time

def run(params, seed):
    while params["x"] == 3 and os.path.exists(os.environ["MOPS_TEST_GATE"]):
        time.sleep(0.02)
    if params["x"] == 2:
        raise ValueError("two is refused")
    return {"out": {"y": [params["x"]]}}

def score(params, replicates):
    return params["x"] / 4
"""


@pytest.mark.parametrize("columns", [40, 120])
def test_submit_shows_losses_and_failures_while_the_job_runs(
    lab: CommandLab, terminals: Callable[..., Terminal], columns: int
) -> None:
    gate = lab.root / "gate"
    gate.touch()
    settings = {
        "MODELOPS_JOB_SLOTS": "2",
        "MODELOPS_JOB_CHECKPOINT_SECONDS": "0",
    }  # no group waits in a task for another
    lab.environment |= {"MOPS_TEST_GATE": str(gate)} | settings
    lab.write("model.py", SCORED)
    lab.write_study(parameter_sets=[{"x": x} for x in (1, 2, 3)], n_replicates=1, targets=["model:score"])
    screen = terminals(lab, "jobs", "submit", lab.study, "--name", "job", columns=columns)
    screen.wait_for("job: running")
    screen.wait_for("2 of 3, 1 failed")
    screen.wait_for("best loss    0.25 score (")
    screen.wait_for("failures     1 error")
    screen.wait_for("1 x error: ValueError")
    assert ("▁" in screen.text or "█" in screen.text) == (columns == 120)
    gate.unlink()
    assert screen.end() == 3
    assert "partial in" in screen.text


def test_a_file_gets_no_control_codes_even_if_colours_are_forced(lab: CommandLab) -> None:
    ran = lab.submit("--name", "job", FORCE_COLOR="1")
    assert ran.code == 0
    assert "\x1b" not in ran.err
