"""Reads JSON files that users write, and reports the place of everything that is not strict JSON."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mops.errors import Problem, StudyError, UsageError, path_refused
from mops.study.checks import json_path, shown, text_fault

_OTHER_LANGUAGES = {".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".json5": "JSON5", ".jsonc": "JSON with comments"}
_MAYBE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_COMMENTS = ("//", "/*", "#")
_JSON_WORDS = {"True": "true", "False": "false", "None": "null"}
_PYTHON_WORD = re.compile(r"(True|False|None)\b")
_SPACE = re.compile(r"[ \t\n\r]*")


def read_text(path: Path, what: str) -> str:
    """Return a file's text, without a byte order mark; ``what`` is the file for errors: ``study`` or ``space``."""
    where = str(path)
    if language := _OTHER_LANGUAGES.get(path.suffix.lower()):
        raise UsageError(
            f"this {what} file is {language}, and mops reads JSON",
            where=where,
            hint=f"convert it to {path.stem}.json; in Python, mops.submit takes a dict",
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = f"name a {what} file, like {what}.json"
        raise UsageError(f"this {what} file does not exist", where=where, hint=hint) from None
    except IsADirectoryError:
        hint = f"name the {what}.json in it"
        raise UsageError(f"this is a folder, not a {what} file", where=where, hint=hint) from None
    except PermissionError:
        raise UsageError(f"this {what} file is not readable", where=where, hint="check its owner and mode") from None
    except UnicodeDecodeError as bad:
        where += f", byte {bad.start}"
        raise StudyError(f"the {what} file is not UTF-8 text", [], where=where, hint="save it as UTF-8") from None
    except (OSError, ValueError) as bad:
        raise path_refused(path, f"this {what} file", bad) from None


class Elements:
    """The elements of an array in a strict JSON text, decoded again in each iteration."""

    # A list of 100,000 parameter sets is 90 MB of Python objects. The process keeps that memory after it frees them.
    # bench/tricks.py, check of a list: -14 % of memory, and 11 % more CPU time.
    def __init__(self, text: str, start: int, n: int):
        self._text, self._start, self._n = text, start, n

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[object]:
        return islice((element for element, _ in _elements(self._text, self._start, json.JSONDecoder())), self._n)


def read_json(text: str, *, where: str, what: str = "study", apart: str | None = None) -> object:
    """Read strict JSON: no duplicate keys, no NaN or Infinity, no lone surrogates. StudyError lists all problems."""
    # An array under the key ``apart`` of the file's object becomes Elements.
    if apart is not None and (members := _members(text, apart)) is not None:
        return members
    marks: list[_Mark] = []
    problems: list[Problem] = []
    found: object = None
    try:
        found = _decoder(marks).decode(text)
        if marks or _MAYBE_SURROGATE.search(text):
            problems = list(_marked(found, "$"))
    except json.JSONDecodeError as bad:
        problems = [_unreadable(bad)]
    except ValueError as bad:  # an integer beyond Python's limit of digits
        problems = [Problem("$", f"a number is too long: {bad}")]
    except RecursionError:
        problems = [Problem("$", "lists and objects are nested too deeply")]
    if problems:
        kind = "strict JSON" if marks else "JSON"
        raise StudyError(f"the {what} file is not {kind}", shown(problems), where=where)
    return found


def _unreadable(bad: json.JSONDecodeError) -> Problem:
    """Return what is wrong where the reading ended; of JSON's relatives, the habit that JSON does not have."""
    text, at, message = bad.doc, bad.pos, bad.msg
    before = len(text[:at].rstrip()) - 1
    if text.startswith(_COMMENTS, at):
        message = "JSON has no comments; remove it"
    elif text.startswith(("}", "]"), at) and text.startswith(",", before):
        at, message = before, "the last entry has a comma after it; remove the comma"
    elif text.startswith("'", at):
        message = "JSON has double quotes and no single quotes"
    elif found := _PYTHON_WORD.match(text, at):
        message = f"{found[0]} is Python; write {_JSON_WORDS[found[0]]}"
    place = json.JSONDecodeError("", text, at)
    return Problem(f"line {place.lineno}, column {place.colno}", message)


def _members(text: str, apart: str) -> dict[str, object] | None:
    """Decode an object without the array under one key; None: the text is not an object in strict JSON."""
    # The caller then decodes the whole text, which finds the problems.
    marks: list[_Mark] = []
    decoder = _decoder(marks)
    found: dict[str, object] = {}
    try:
        here = _after(text, 0, "{")
        while True:
            key, here = decoder.raw_decode(text, _space(text, here))
            here = _space(text, _after(text, here, ":"))
            if key == apart and text.startswith("[", here):
                value, here = _skipped(text, here, decoder)
            else:
                value, here = decoder.raw_decode(text, here)
            if not isinstance(key, str) or key in found:
                return None
            found[key] = value
            if text.startswith("}", here := _space(text, here)):
                break
            here = _after(text, here, ",")
    except (ValueError, RecursionError):
        return None
    is_all = _space(text, here + 1) == len(text) and not marks and not _MAYBE_SURROGATE.search(text)
    return found if is_all else None


def _skipped(text: str, here: int, decoder: json.JSONDecoder) -> tuple[object, int]:
    """Decode each element of the array that begins here once; return the elements and the place after the array."""
    start = _space(text, here + 1)
    if text.startswith("]", start):
        return [], start + 1
    [(n, (_, here))] = deque(enumerate(_elements(text, start, decoder), 1), maxlen=1)
    return Elements(text, start, n), _after(text, here, "]")


def _elements(text: str, here: int, decoder: json.JSONDecoder) -> Iterator[tuple[object, int]]:
    """Yield each element of an array with the place after the element, while commas follow."""
    while True:
        element, here = decoder.raw_decode(text, here)
        yield element, here
        if not text.startswith(",", here := _space(text, here)):
            return
        here = _space(text, here + 1)


def _space(text: str, here: int) -> int:
    return found.end() if (found := _SPACE.match(text, here)) else here


def _after(text: str, here: int, sign: str) -> int:
    """Return the place after a sign, which must come next."""
    here = _space(text, here)
    if not text.startswith(sign, here):
        raise json.JSONDecodeError(f"Expecting {sign!r}", text, here)
    return here + 1


@dataclass(frozen=True)
class _Mark:
    """Marks a place in decoded JSON where the text was not strict. Its path is known only after decoding."""

    message: str
    inside: object = None


def _decoder(marks: list[_Mark]) -> json.JSONDecoder:
    """Return a decoder that puts a mark where the text is not strict."""

    def mark(message: str, inside: object = None) -> _Mark:
        marks.append(_Mark(message, inside))
        return marks[-1]

    def unique(pairs: list[tuple[str, object]]) -> object:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        return mark(f"the key {twice!r} appears twice; keep one", found)

    return json.JSONDecoder(
        parse_constant=lambda name: mark(f"{name} is not JSON; write a finite number"), object_pairs_hook=unique
    )


def _marked(value: object, path: str) -> Iterator[Problem]:
    match value:
        case _Mark():
            yield Problem(path, value.message)
            yield from _marked(value.inside, path)
        case dict():
            for key, inner in value.items():
                yield from _marked(key, path)
                yield from _marked(inner, json_path(path, key))
        case list():
            for i, inner in enumerate(value):
                yield from _marked(inner, f"{path}[{i}]")
        case str() if fault := text_fault(value):
            yield Problem(path, fault)
