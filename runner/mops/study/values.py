"""Rules for names and values of parameters, and for seeds. See docs/reference/study.md."""

from __future__ import annotations

import math

from mops.study.problems import json_text

Value = bool | int | float | str
Params = dict[str, Value]

SEED = "seed"  # the column of a file of parameter sets that has the seed of each row
SEED_LIMIT = 2**64
SEED_RIGHT = "an integer from 0 to 2^64 - 1"
EXACT = 2**53  # floats hold all integers up to this one
WHOLE_KINDS = ("int", "large", "big")  # the kinds of integers: up to 2^53, up to 64 bits, and beyond
WRAPPED = '{"params": {...}, "seed": 7}'


def name_fault(name: str) -> str | None:
    """Return what is wrong with a parameter's name; None: nothing."""
    if not name:
        return "a parameter's name is empty; give it one"
    return text_fault(name)


def value_fault(value: object) -> str | None:
    """Return what is wrong with a parameter's value; None: nothing."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{json_text(value)} is not a finite number; write one"
    if isinstance(value, str):
        return text_fault(value)
    if isinstance(value, int):
        return None
    if value is None:
        return "null is not a value; leave the parameter out"
    nested = f"; a set with its own seed is {WRAPPED}" if isinstance(value, dict) else ""
    return f"{json_text(value)} cannot be a parameter; write a boolean, a number or a string{nested}"


def text_fault(text: str) -> str | None:
    """Return why a text has no UTF-8 form; None: it has one."""
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, like "\ud800" in JSON, has no UTF-8 form, and so no param_id
        return f"{text!a} has half a character (a lone surrogate); write all of it"
    return None


def is_seed(value: object) -> bool:
    """Tell whether a value may be a simulation's own seed."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < SEED_LIMIT


def kind_of(value: Value) -> str:
    """Return a value's kind: ``bool``, ``float``, ``str`` or one of :data:`WHOLE_KINDS`."""
    if isinstance(value, int) and not isinstance(value, bool) and not -EXACT <= value <= EXACT:
        return "large" if -(2**63) <= value < 2**63 else "big"
    return type(value).__name__
