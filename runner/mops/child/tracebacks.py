"""Turns a user's exception into a type, a message and a traceback without the frames of mops."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

from mops.study.output_schema import InvalidOutput

_MESSAGE_LIMIT = 2_000

_TRACEBACK_LIMIT = 8_000

_NOT_THE_USERS = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen importlib")


def describe(error: BaseException, *, keep_frames: bool = False) -> dict[str, str]:
    """Return type, message and the user's part of the traceback, even if ``str(error)`` raises.

    Parameters
    ----------
    keep_frames
        Whether the frames keep their variables, for a debugger.
    """
    what = "".join(traceback.format_exception_only(error)).strip()
    try:
        trace = _users_traceback(error, keep_frames=keep_frames)
    except Exception as failed:  # noqa: BLE001 - methods of the model's exception class may raise anything
        trace = f"(no traceback: {type(failed).__name__} while it was written)"
    if (n_dropped := len(trace) - _TRACEBACK_LIMIT) > 0:  # keep the first cause, and the exception itself
        half = _TRACEBACK_LIMIT // 2 - 50
        trace = f"{trace[:half]}\n... ({n_dropped + 100} characters left out)\n{trace[-half:]}"
    return {"message": _text(what[:_MESSAGE_LIMIT]), "traceback": _text(trace)}


def _users_traceback(error: BaseException, *, keep_frames: bool) -> str:
    """Return what Python would print, with causes, contexts, notes and grouped exceptions, without frames of mops."""
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
        # A local name that holds the exception makes a cycle: its tables would wait for the garbage collector.
        if not keep_frames:
            traceback.clear_frames(error.__traceback__)
        pairs = [(error.__cause__, part.__cause__), (error.__context__, part.__context__)]
        if isinstance(error, BaseExceptionGroup):
            pairs += zip(error.exceptions, part.exceptions or (), strict=False)
        todo += [(inner, its) for inner, its in pairs if inner is not None and its is not None]
    return "".join(told.format())


def _text(found: str) -> str:
    """Return text that can be stored, without lone surrogates, which stand for bytes in the names of files."""
    return found.encode(errors="backslashreplace").decode()


def failure_of(error: BaseException, *, keep_frames: bool = False) -> dict[str, str]:
    """Return reason, message and traceback of a simulation that raised; ``keep_frames`` as for :func:`describe`."""
    if isinstance(error, InvalidOutput):
        return {"reason": "invalid_output", "message": _text(str(error)[:_MESSAGE_LIMIT]), "traceback": ""}
    return {"reason": "error"} | describe(error, keep_frames=keep_frames)
