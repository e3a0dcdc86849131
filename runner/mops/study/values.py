"""What a parameter may be called, and what value it and a seed may have. STUDY.md has the rules."""

from __future__ import annotations

import math

from mops.study.problems import json_text

Value = bool | int | float | str
Params = dict[str, Value]

SEED_LIMIT = 2**64
SEED_RIGHT = "an integer from 0 to 2^64 - 1"
WRAPPED = '{"params": {...}, "seed": 7}'


def name_fault(name: str) -> str | None:
    """Say what is wrong with a parameter's name; None: nothing."""
    if not name:
        return "a parameter's name is empty; give it one"
    return text_fault(name)


def value_fault(value: object) -> str | None:
    """Say what is wrong with a parameter's value; None: nothing."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{json_text(value)} is not a finite number; write one"
    if isinstance(value, str):
        return text_fault(value)
    if isinstance(value, int):
        return None
    if value is None:
        return "null is no value; leave the parameter out"
    nested = f"; a set with a seed of its own is {WRAPPED}" if isinstance(value, dict) else ""
    return f"{json_text(value)} cannot be a parameter; write a boolean, a number or a string{nested}"


def text_fault(text: str) -> str | None:
    """Say why a text has no UTF-8; None: it has."""
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, as "\ud800" in JSON: it has no UTF-8, and so no param_id
        return f"{text!a} holds half a character, which is no text; write it whole"
    return None


def is_seed(value: object) -> bool:
    """Tell whether a value is an integer that a simulation's own seed may be."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < SEED_LIMIT


def kind_of(value: Value) -> str:
    """Return what a value is: ``bool``, ``int``, ``big`` (an integer beyond 64 bits), ``float`` or ``str``."""
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return "big"
    return type(value).__name__
