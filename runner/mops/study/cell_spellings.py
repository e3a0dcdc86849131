"""Recognises booleans and numbers that a CSV cell does not write as JSON does, and invisible characters.

Spreadsheets, R and pandas write ``TRUE``, ``0,5`` or ``1 000``. mops reads a cell as JSON, so these would be text.
"""

from __future__ import annotations

import re
from typing import Literal

# What a text looks like. ``letter``: a boolean, if the column has both letters of a pair. ``code``: a number with zeros
# in front or with underscores, such as a postcode.
Look = Literal["bool", "letter", "number", "code", "missing", "text"]

_WORDS = frozenset(
    (
        *("true", "false", "yes", "no", "on", "off"),
        *("wahr", "falsch", "vrai", "faux", "verdadero", "falso", "vero", "verdadeiro"),  # of spreadsheets
    )
)
_LETTER_PAIRS = ({"t", "f"}, {"y", "n"})
_MISSING = frozenset(("na", "n/a", "#n/a", "<na>", "none", "nil", "."))
_SPACES = "\u0020\u00a0\u2009\u202f"
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_MINUS = str.maketrans(dict.fromkeys("\u2212\u2012\u2013\u2014\ufe63\uff0d", "-"))
_NUMBER = re.compile(
    r"[-+]?"
    rf"(?:[0-9]{{1,3}}(?:[,.'\u2019{_SPACES}][0-9]{{3}})+(?:[.,][0-9]*)?|[0-9]+[.,]?[0-9]*|[.,][0-9]+)"
    rf"(?:[eE][-+]?[0-9]+)?[{_SPACES}]?%?"
)
_CODE = re.compile(r"0\d+")


def invisible_in(text: str) -> str | None:
    """Return the first invisible character, as ``U+200B``; None: there is none."""
    found = _INVISIBLE.search(text)
    return None if found is None else f"U+{ord(found[0]):04X}"


def look_of(cell: str) -> Look:
    """Tell what a text that is not JSON looks like."""
    text = _INVISIBLE.sub("", cell).strip(_SPACES + "\t\r\n").translate(_MINUS)
    word = text.lower()
    if word in _WORDS:
        return "bool"
    if any(word in pair for pair in _LETTER_PAIRS):
        return "letter"
    if word in _MISSING or not word:
        return "missing"
    if _CODE.fullmatch(text):
        return "code"
    return "number" if _NUMBER.fullmatch(text) else "text"


def are_booleans(letters: set[str], *, has_words: bool) -> bool:
    """Tell whether a column of words and single letters has booleans: letters are, if both of a pair are there."""
    return letters in _LETTER_PAIRS or (has_words and not letters)
