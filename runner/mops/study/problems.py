"""Collects the problems of a file that a user wrote, and notes on what the user may not have meant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from mops.errors import Problem

_PROBLEMS_SHOWN = 20
_PLACES_SHOWN = 5


@dataclass
class _Note:
    """The first places of a note, and their number."""

    places: list[str] = field(default_factory=list)
    n: int = 0


@dataclass
class Checks:
    """Collects problems, and notes on valid content that the user may not have meant."""

    # Checks keeps what it shows and only counts the rest: a file with a million wrong rows needs no more memory.
    n_problems: int = 0
    _first: list[Problem] = field(default_factory=list)
    _notes: dict[str, _Note] = field(default_factory=dict)

    def add(self, path: str, message: str) -> None:
        """Add a problem."""
        self.n_problems += 1
        if len(self._first) < _PROBLEMS_SHOWN:
            self._first.append(Problem(path, message))

    def note(self, path: str, message: str) -> None:
        """Add a note. The same message at many places is one warning."""
        noted = self._notes.setdefault(message, _Note())
        noted.n += 1
        if len(noted.places) < _PLACES_SHOWN:
            noted.places.append(path)

    def shown(self) -> list[Problem]:
        """Return the first problems, and a last problem that counts the rest."""
        more = self.n_problems - len(self._first)
        return self._first + ([Problem("$", f"and {more:,} more problems")] if more else [])

    def warnings(self) -> tuple[str, ...]:
        """Return each note with its places."""
        texts = []
        for message, noted in self._notes.items():
            more = noted.n - len(noted.places)
            places = ", ".join(noted.places) + (f" and {more:,} more" if more else "")
            texts.append(f"{places}: {message}")
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
