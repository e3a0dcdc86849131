"""The log lines above the live progress."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mops.cli import terminal
from mops.errors import UsageError
from mops.verdicts import Report


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


def test_texts_with_colons_and_brackets_appear_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """'target score:end: error' had a picture in it, because rich replaces the name of an emoji between colons."""
    terminal.error(UsageError("target score:end: KeyError: '[bold]'"))
    terminal.say("note: m:x: 1 set")
    terminal.data_table(["only m:x:", "[red]loss"], [[":end:", "[bold]"]])
    shown = capsys.readouterr()
    assert shown.err == "error: target score:end: KeyError: '[bold]'\nnote: m:x: 1 set\n"
    assert shown.out.split() == ["only", "m:x:", "[red]loss", ":end:", "[bold]"]
