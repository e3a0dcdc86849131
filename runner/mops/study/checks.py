"""What the checks of a user's files share: rules for names, values and seeds, and the collection of problems.

docs/reference/study.md has the rules.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mops.errors import Problem

Value = bool | int | float | str
Params = dict[str, Value]

SEED = "seed"  # the column of a file of parameter sets that has the seed of each row
SEED_LIMIT = 2**64
SEED_RIGHT = "an integer from 0 to 2^64 - 1"
EXACT = 2**53  # floats hold all integers up to this one
WHOLE_KINDS = ("int", "large", "big")  # the kinds of integers: up to 2^53, up to 64 bits, and beyond
WRAPPED = '{"params": {...}, "seed": 7}'

_PROBLEMS_SHOWN = 20
_PLACES_SHOWN = 5


@dataclass
class Checks:
    """Collects problems, and notes on valid content that the user may not have meant."""

    # Checks keeps what it shows and only counts the rest: a file with a million wrong rows needs no more memory.
    n_problems: int = 0
    _first: list[Problem] = field(default_factory=list)
    _noted: dict[str, list[str]] = field(default_factory=dict)  # the first places of each note
    _n_noted: Counter[str] = field(default_factory=Counter)

    def add(self, path: str, message: str) -> None:
        """Add a problem."""
        self.n_problems += 1
        if len(self._first) < _PROBLEMS_SHOWN:
            self._first.append(Problem(path, message))

    def note(self, path: str, message: str) -> None:
        """Add a note. The same message at many places is one warning."""
        self._n_noted[message] += 1
        if self._n_noted[message] <= _PLACES_SHOWN:
            self._noted.setdefault(message, []).append(path)

    def shown(self) -> list[Problem]:
        """Return the first problems, and a last problem that counts the rest."""
        more = self.n_problems - len(self._first)
        return self._first + ([Problem("$", f"and {more:,} more problems")] if more else [])

    def warnings(self) -> tuple[str, ...]:
        """Return each note with its places."""
        texts = []
        for message, places in self._noted.items():
            more = self._n_noted[message] - len(places)
            texts.append(f"{', '.join(places)}{f' and {more:,} more' if more else ''}: {message}")
        return tuple(texts)


def shown(problems: Sequence[Problem]) -> list[Problem]:
    """Return the first of these problems, and a last problem that counts the rest."""
    checks = Checks()
    for problem in problems:
        checks.add(problem.path, problem.message)
    return checks.shown()


def json_path(path: str, key: str) -> str:
    """Return the JSON path of an object's key."""
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{json.dumps(key)}]"


def json_text(value: object) -> str:
    """Name a JSON value as its writer would."""
    match value:
        case None:
            return "null"
        case bool() | int() | float():
            return json.dumps(value)
        case str():
            return repr(value) if len(value) <= 40 else repr(value[:37] + "...")
        case list():
            return "an empty list" if not value else "a list"
        case dict():
            return "an object"
    return type(value).__name__


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
