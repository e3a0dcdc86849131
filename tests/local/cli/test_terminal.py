"""The log lines above the live progress."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mops.cli import terminal
from mops.errors import UsageError
from mops.jobs.job import open_job
from mops.verdicts import Report

from .command_lab import MOPS, CommandLab
from .test_watch import Terminal

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
HOSTILE = """
import os, sys

TEXT = "\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07\\x1b]8;;http://x\\x1b\\\\link \\x1b[2J\\x9b2J\\x00bell\\x07"

def run(params, seed):
    sys.stdout.write(TEXT + " 10 %\\r" + TEXT + " 20 %\\n")
    sys.stdout.flush()
    os.write(2, b"\\x9b2J raw \\xff\\n")
    if params["x"] == 2:
        raise ValueError(TEXT + "\\rin the message")
    if params["x"] == 3:
        os._exit(3)
    return {"out": {"text": [TEXT]}}
"""
FLOOD = """
import os

def run(params, seed):
    for _ in range(params["n_megabytes"]):
        os.write(1, b"x" * 1_000_000)
    return {"out": {"n": [1]}}
"""


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("mops")
    before = found.handlers, found.level
    yield found
    found.handlers = before[0]
    found.setLevel(before[1])


@pytest.mark.parametrize(("verbose", "shown"), [(0, 6), (1, 9)])
def test_of_many_similar_deaths_only_the_first_five_are_shown(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], verbose: int, shown: int
) -> None:
    terminal.set_up_logging(verbose)
    for i in range(8):
        logger.warning("%s: %s", "job", Report("oom", f"simulation {i} is too large", "take less"))
    logger.warning("%s: %s", "job", Report("crashed", "another", "take less"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == shown
    assert lines[0] == "warning: job: oom: simulation 0 is too large; take less"
    assert lines[4].endswith("take less (more of these only in the job's log: mops jobs logs)")
    assert lines[-1].startswith("warning: job: crashed: another")


def test_json_has_no_nan_and_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: `NaN` and `Infinity`, which strict readers refuse."""
    terminal.data_json({"y": [math.nan, 1.5, (-math.inf, 2)], "d": {"z": math.inf}, "p": Path("a")})
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown == {"y": [None, 1.5, [None, 2]], "d": {"z": None}, "p": "a"}


def test_texts_with_colons_and_brackets_appear_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """'target score:end: error' had a picture in it, because rich replaces the name of an emoji between colons."""
    terminal.error(UsageError("target score:end: KeyError: '[bold]'"))
    terminal.say("note: m:x: 1 set")
    terminal.data_table(["only m:x:", "[red]loss"], [[":end:", "[bold]"]])
    shown = capsys.readouterr()
    assert shown.err == "error: target score:end: KeyError: '[bold]'\nnote: m:x: 1 set\n"
    assert shown.out.split() == ["only", "m:x:", "[red]loss", ":end:", "[bold]"]


@pytest.fixture
def hostile(lab: CommandLab) -> CommandLab:
    """A study whose model prints and raises escape sequences; one parameter set is good."""
    lab.write("model.py", HOSTILE)
    lab.write_study(parameter_sets=[{"x": 1}, {"x": 2}, {"x": 3}], n_replicates=1)
    return lab


def test_no_control_character_of_a_model_is_printed(hostile: CommandLab) -> None:
    """Regression: `mops jobs logs` could clear the screen, set the title of the terminal, or hide what it had shown."""
    said = [hostile.run("-v", "jobs", "submit", hostile.study, "--name", "job")]
    assert said[0].code == 3, said[0].err
    for verb in ("logs", "failures", "status", "watch", "results"):
        said.append(hostile.run("jobs", verb, "job"))
    said.append(hostile.run("jobs", "logs", "job", "--tail", "3"))
    hostile.write_study(parameter_sets=[{"x": 2}], n_replicates=1)
    check = hostile.run("study", "check", hostile.study)
    assert (check.code, "in the message" in check.err) == (1, True)
    for ran in (*said, check):
        assert not CONTROL.search(ran.out), ascii(ran.out)
        assert not CONTROL.search(ran.err), ascii(ran.err)
    log = said[1].out
    assert "red link bell 20 %\n" in log
    assert "10 %" not in log, "a terminal would show the last state of the line"
    assert "2J raw" in log


def test_a_terminal_gets_no_escape_sequence_of_a_model(hostile: CommandLab) -> None:
    """mops writes sequences to a terminal itself, so this looks for those of the model."""
    screen = Terminal(hostile, "jobs", "submit", hostile.study, "--name", "job")
    try:
        assert screen.end() == 3
    finally:
        screen.close()
    for sequence in ("\x1b]", "\x1b[2J", "\x9b", "\x00", "\x07"):
        assert sequence not in screen.raw


def test_a_simulation_that_prints_30_mb_costs_neither_rows_nor_memory(lab: CommandLab) -> None:
    lab.write("model.py", FLOOD)
    peaks = []
    for name, n_megabytes in (("quiet", 0), ("flood", 30)):
        lab.write_study(parameter_sets=[{"n_megabytes": n_megabytes}], n_replicates=1)
        command = [MOPS, "jobs", "submit", lab.study, "--name", name]
        pid = os.posix_spawn(MOPS, list(map(str, command)), lab.environment)
        _, status, usage = os.wait4(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        peaks.append(usage.ru_maxrss)  # KiB
        assert open_job(name, str(lab.storage)).outputs("out").to_arrow().num_rows == 1
    assert peaks[1] - peaks[0] < 15_000, "the runner keeps what a model prints"
    log = lab.run("jobs", "logs", "flood").out
    assert "bytes of output left out)" in log
    assert len(log) < 100_000
