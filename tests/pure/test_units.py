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
    text = "a" * 50 + "b" * 1000 + "c" * 50
    assert shortened_in_middle(text, 50) == f"{'a' * 10} [... of 1,100 characters ...] {'c' * 9}"
    assert len(shortened_in_middle(text, 51)) == 51
    assert shortened_in_middle(text, 1100) == text
