"""Hints for names that are unknown."""

from __future__ import annotations

import os

import pytest

from mops.errors import UsageError, check_text_path, known_name, nearest, similar


def test_the_nearest_name_ignores_upper_and_lower_case(subtests: pytest.Subtests) -> None:
    for name, known, near in [
        ("infect", ["day", "infected"], "infected"),
        ("BETA", ["beta", "gamma"], "beta"),
        ("beta", ["Beta", "Gamma"], "Beta"),  # names of a model may have upper case, and a user types without it
        ("day", ["beta"], None),
        ("day", [], None),
    ]:
        with subtests.test(str((name, known, near))):
            assert nearest(name, known) == near


def test_similar_names_ignore_upper_and_lower_case_and_come_most_similar_first() -> None:
    known = ["tides", "Waves-10", "WAVES-1", "waves-1", "waves-200"]
    assert similar("waves-1", known, 3) == ["WAVES-1", "waves-1", "Waves-10"]
    assert similar("storm", known, 3) == []


def test_names_must_be_as_similar_as_the_caller_wants() -> None:
    assert nearest("retry", ["retries"]) == "retries"
    assert nearest("retry", ["retries"], 0.75) is None


def test_a_hint_has_the_nearest_name_or_what_the_caller_says_or_all_names() -> None:
    assert known_name("runing", ["running", "failed"]) == "did you mean 'running'?"
    assert known_name("x", ["running", "failed"], "the table has 2 columns") == "the table has 2 columns"
    assert known_name("x", ["running", "failed"]) == "use one of running, failed"


def test_a_path_that_is_not_utf8_is_refused_by_name() -> None:
    """Regression: the record of the job could not be written, with an error of Python."""
    check_text_path("/srv/caf\u00e9", "the project folder")
    with pytest.raises(UsageError) as refused:
        check_text_path(os.fsdecode(b"/srv/caf\xe9"), "the project folder")
    assert str(refused.value) == (
        "the project folder cannot be used: its name is not UTF-8 text\n  at: '/srv/caf\\udce9'\nhint: rename it"
    )
