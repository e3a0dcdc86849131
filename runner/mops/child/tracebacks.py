"""What a user's exception becomes: a type, a message and a traceback without the frames of mops."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

from mops.study.output_schema import InvalidOutput

_MESSAGE_LIMIT = 2_000

_TRACEBACK_LIMIT = 8_000

_NOT_THE_USERS = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen importlib")


def describe(error: BaseException) -> dict[str, str]:
    """Return type, message and the user's part of the traceback, whatever ``str(error)`` does."""
    what = "".join(traceback.format_exception_only(error)).strip()
    try:
        trace = _users_traceback(error)
    except Exception as failed:  # noqa: BLE001 - an exception of the model's own class, of which anything may raise
        trace = f"(no traceback: {type(failed).__name__} while it was written)"
    return {"message": _text(what[:_MESSAGE_LIMIT]), "traceback": _text(_middle_left_out(trace))}


def _users_traceback(error: BaseException) -> str:
    """Return what Python would print: causes, contexts, notes and the exceptions of a group, too; no frames of ours."""
    told = traceback.TracebackException.from_exception(error)
    todo, seen = [(error, told)], set()
    while todo:
        error, part = todo.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        part.stack = traceback.StackSummary.from_list(
            [frame for frame in part.stack if not frame.filename.startswith(_NOT_THE_USERS)]
        )
        # An exception that is kept in a local name has made a cycle: its tables would wait for the garbage collector.
        traceback.clear_frames(error.__traceback__)
        pairs = [(error.__cause__, part.__cause__), (error.__context__, part.__context__)]
        if isinstance(error, BaseExceptionGroup):
            pairs += zip(error.exceptions, part.exceptions or (), strict=False)
        todo += [(inner, its) for inner, its in pairs if inner is not None and its is not None]
    return "".join(told.format())


def _middle_left_out(text: str) -> str:
    """Return the start, where the first cause is, and the end, where the exception itself is."""
    n_dropped = len(text) - _TRACEBACK_LIMIT
    if n_dropped <= 0:
        return text
    half = _TRACEBACK_LIMIT // 2 - 50
    return f"{text[:half]}\n... ({n_dropped + 100} characters left out)\n{text[-half:]}"


def _text(found: str) -> str:
    """Return text that can be stored: without the lone surrogates that stand for bytes in the names of files."""
    return found.encode(errors="backslashreplace").decode()


def failure_of(error: BaseException) -> dict[str, str]:
    """Return reason, message and traceback of a simulation that raised."""
    if isinstance(error, InvalidOutput):
        return {"reason": "invalid_output", "message": _text(str(error)[:_MESSAGE_LIMIT]), "traceback": ""}
    return {"reason": "error"} | describe(error)
