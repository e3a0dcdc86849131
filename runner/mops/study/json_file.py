"""Reads JSON files that users write, strictly: what is not JSON, or not text, is said with its place."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mops.errors import Problem, StudyError, UsageError
from mops.study.problems import at, shown
from mops.study.values import text_fault

_MAYBE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_text(path: Path, what: str) -> str:
    """Return a file's text, without a byte order mark.

    Parameters
    ----------
    what
        What the file is to be, for errors: ``study`` or ``space``.

    Raises
    ------
    UsageError, StudyError
        There is no such file, it may not be read, or it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(
            f"there is no such {what} file", where=str(path), hint=f"name a {what} file, like {what}.json"
        ) from None
    except IsADirectoryError:
        raise UsageError(
            f"this is a folder, not a {what} file", where=str(path), hint=f"name the {what}.json in it"
        ) from None
    except PermissionError:
        raise UsageError(
            f"this {what} file may not be read", where=str(path), hint="look at its owner and mode"
        ) from None
    except UnicodeDecodeError as bad:
        raise StudyError(
            f"the {what} file is not UTF-8 text", [], where=f"{path}, byte {bad.start}", hint="save it as UTF-8"
        ) from None


def read_json(text: str, *, where: str, what: str = "study") -> object:
    """Read strict JSON: no duplicate keys, no NaN or Infinity, no half characters.

    Parameters
    ----------
    text
        The content of the file.
    where, what
        Name the file and what it is to be in errors.

    Raises
    ------
    StudyError
        It is none: every problem with its JSON path, or the line and column of the first that ends the reading.
    """
    marks: list[_Mark] = []
    problems: list[Problem] = []
    found: object = None
    try:
        found = _decoded(text, marks)
        if marks or _MAYBE_SURROGATE.search(text):
            problems = list(_marked(found, "$"))
    except json.JSONDecodeError as bad:
        problems = [Problem(f"line {bad.lineno}, column {bad.colno}", bad.msg)]
    except ValueError as bad:  # the one other that it raises: an integer beyond Python's limit of digits
        problems = [Problem("$", f"a number in it is too long: {bad}")]
    except RecursionError:
        problems = [Problem("$", "its lists and objects are nested too deeply")]
    if problems:
        raise StudyError(f"the {what} file is not JSON", shown(problems), where=where)
    return found


@dataclass(frozen=True)
class _Mark:
    """Stands in decoded JSON where the text was not strict: only the whole knows its path."""

    message: str
    inside: object = None


def _decoded(text: str, marks: list[_Mark]) -> object:
    def mark(message: str, inside: object = None) -> _Mark:
        marks.append(_Mark(message, inside))
        return marks[-1]

    def constant(name: str) -> _Mark:
        return mark(f"{name} is not JSON; write a finite number")

    def unique(pairs: list[tuple[str, object]]) -> object:
        found = dict(pairs)
        return found if len(found) == len(pairs) else mark(f"the key {_twice(pairs)!r} stands twice; keep one", found)

    return json.loads(text, parse_constant=constant, object_pairs_hook=unique)


def _twice(pairs: list[tuple[str, object]]) -> str:
    return Counter(key for key, _ in pairs).most_common(1)[0][0]


def _marked(value: object, path: str) -> Iterator[Problem]:
    match value:
        case _Mark():
            yield Problem(path, value.message)
            yield from _marked(value.inside, path)
        case dict():
            for key, inner in value.items():
                yield from _marked(key, path)
                yield from _marked(inner, at(path, key))
        case list():
            for i, inner in enumerate(value):
                yield from _marked(inner, f"{path}[{i}]")
        case str() if fault := text_fault(value):
            yield Problem(path, fault)
