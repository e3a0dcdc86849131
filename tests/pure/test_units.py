"""Texts for people."""

from __future__ import annotations

import pytest

from mops.units import age, number, printable, rate, shortened, shortened_in_middle


def test_a_long_text_is_cut_after_a_word(subtests: pytest.Subtests) -> None:
    for text, expected in [
        ("one two", "one two"),
        ("one two three", "one two..."),
        ("one twothree", "one..."),
        ("onetwothreefour", "onetwot..."),
    ]:
        with subtests.test(str((text, expected))):
            assert shortened(text, 10) == expected


def test_a_slow_rate_is_one_per_minute_or_per_hour(subtests: pytest.Subtests) -> None:
    for per_second, expected in [
        (1234.5, "1,234/s"),
        (12.4, "12/s"),
        (2.5, "2.5/s"),
        (0.1, "0.1/s"),
        (0.0999, "6.0/min"),
        (0.04, "2.4/min"),
        (1 / 60, "1.0/min"),
        (0.01, "36/h"),
        (0.0001, "0.4/h"),
        (0.00001, "0.036/h"),
        (0.0, "0/s"),
    ]:
        with subtests.test(str((per_second, expected))):
            assert rate(per_second) == expected


def test_a_long_text_is_shortened_in_the_middle() -> None:
    text = "a" * 50 + "b" * 1000 + "c" * 50
    assert shortened_in_middle(text, 50) == f"{'a' * 10} [... of 1,100 characters ...] {'c' * 9}"
    assert len(shortened_in_middle(text, 51)) == 51
    assert shortened_in_middle(text, 1100) == text


def test_an_estimate_has_three_digits(subtests: pytest.Subtests) -> None:
    for value, expected in [
        (22_414_321.0, "22,400,000"),
        (100_000.0, "100,000"),
        (1234.5, "1,230"),
        (999.6, "1,000"),
        (153.2, "153"),
        (1.5, "1.50"),
        (0.0123456, "0.0123"),
        (-0.5, "-0.500"),
        (0.0, "0"),
        (1.23456e-7, "1.23e-07"),
        (2.5e12, "2.5e+12"),
        (float("inf"), "inf"),
    ]:
        with subtests.test(str((value, expected))):
            assert number(value) == expected


def test_foreign_text_loses_what_a_terminal_would_obey(subtests: pytest.Subtests) -> None:
    for text, expected in [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab"),
        ("\x1b]0;a title without an end\nb", "\nb"),
        ("\x1b[2J\x9b31mc", "c"),
        ("\x1b(Ba\x1b7b\x1bc", "ab"),
        ("a\x00b\x7f\x85\x1b", "ab"),
        ("a\tb\r\nc\n", "a\tb\nc\n"),
        (" 10 %\r 20 %\r\n 1 %\r 2 %", " 20 %\n 2 %"),
        ("an emoji \U0001f468\u200d\U0001f469, é, 中", "an emoji \U0001f468\u200d\U0001f469, é, 中"),
    ]:
        with subtests.test(str((text, expected))):
            assert printable(text) == expected


def test_an_age_has_its_largest_unit(subtests: pytest.Subtests) -> None:
    for seconds, text in [
        (0, "0 minutes"),
        (-5, "0 minutes"),
        (3599, "59 minutes"),
        (3600, "1 hour"),
        (86400, "1 day"),
        (45.9 * 86400, "45 days"),
    ]:
        with subtests.test(seconds=seconds, text=text):
            assert age(seconds) == text
