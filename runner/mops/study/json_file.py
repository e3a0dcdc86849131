"""Reads JSON files that users write, and reports the place of everything that is not strict JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mops.errors import Problem, StudyError, UsageError, path_refused
from mops.study.checks import json_path, shown, text_fault

_OTHER_LANGUAGES = {".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".json5": "JSON5", ".jsonc": "JSON with comments"}
_MAYBE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_COMMENTS = ("//", "/*", "#")
_JSON_WORDS = {"True": "true", "False": "false", "None": "null"}
_PYTHON_WORD = re.compile(r"(True|False|None)\b")


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
    except PermissionError:
        raise UsageError(f"this {what} file is not readable", where=where, hint="check its owner and mode") from None
    except UnicodeDecodeError as bad:
        where += f", byte {bad.start}"
        raise StudyError(f"the {what} file is not UTF-8 text", [], where=where, hint="save it as UTF-8") from None
    except (OSError, ValueError) as bad:
        raise path_refused(path, f"this {what} file", bad, hint=f"name a {what} file, like {what}.json") from None


def read_json(text: str, *, where: str, what: str = "study") -> object:
    """Read strict JSON: no duplicate keys, no NaN or Infinity, no lone surrogates. StudyError lists all problems."""
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
