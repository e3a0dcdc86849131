"""Texts for people."""

from __future__ import annotations

import pytest

from mops.units import shortened, shortened_in_middle


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two", "one two"),
        ("one two three", "one two..."),
        ("one twothree", "one..."),
        ("onetwothreefour", "onetwot..."),
    ],
)
def test_a_long_text_is_cut_after_a_word(text: str, expected: str) -> None:
    assert shortened(text, 10) == expected


def test_a_long_text_is_shortened_in_the_middle() -> None:
    assert shortened_in_middle("abcdefghij", 4) == "ab [6 characters left out] ij"
    assert shortened_in_middle("abcd", 4) == "abcd"
