"""The texts of user code: which simulation or target has printed what follows, and what an exception says.

Prints that bypass ``sys.stdout`` and ``sys.stderr``, such as those of other programs, get no heading. The class of an
exception is user code: its text, notes, causes and attributes may raise anything, or have any type. An exception that
cannot be described in full is described in part, because its simulation has failed as ``error`` all the same. Runs in
children: the standard library and pyarrow only.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mops.child.buffers import Tables
from mops.study.ids_and_seeds import short_id
from mops.study.output_schema import InvalidOutput
from mops.units import counted, shortened_in_middle

_MESSAGE_LIMIT = 2_000
_TRACEBACK_LIMIT = 8_000
_OUTPUT_LIMIT = 2_000  # of each stream of a command
_COLUMNS_SHOWN = 20
_NOT_THE_USERS = (f"{Path(__file__).parents[1]}/", str(Path(importlib.__file__).parent), "<frozen importlib")

_HEADING = re.compile(r"^group \d+ \([0-9a-f]+\) (?:replicate \d+|target .+) printed:\n", re.MULTILINE)

_unnamed: tuple[int, str, int | str] | None = None  # what runs, if it has printed nothing yet
_is_line_open = False
_kept: list[object] = []  # a stream without a reference closes its descriptor


class _Output(io.TextIOWrapper):
    def write(self, text: str) -> int:
        global _unnamed, _is_line_open  # both streams lead to one pipe
        if text:
            if _unnamed is not None:
                (group, param_id, step), _unnamed = _unnamed, None
                flush_prints()  # or the end of an earlier text could follow
                what = f"target {step}" if isinstance(step, str) else f"replicate {step}"
                heading = f"group {group} ({short_id(param_id)}) {what} printed:\n"
                super().write(f"\n{heading}" if _is_line_open else heading)
            _is_line_open = not text.endswith("\n")
        return super().write(text)

    def detach(self) -> Any:
        self.flush()
        return self.buffer  # and keep it, for later simulations


# These stay open for later simulations if the model closes a stream that writes to them.


class _File(io.FileIO):
    def close(self) -> None:
        """Do nothing."""


class _Buffer(io.BufferedWriter):
    def close(self) -> None:
        self.flush()


def flush_prints() -> None:
    """Write out what user code has printed."""
    for stream in (sys.stdout, sys.stderr):  # the model may have put anything there
        with contextlib.suppress(Exception):
            stream.flush()


def replace_streams() -> None:
    """Let ``sys.stdout`` and ``sys.stderr`` name what prints, as soon as :func:`name_step` has said it."""
    for name in ("stdout", "stderr"):
        before = getattr(sys, name)
        before.flush()
        descriptor = _File(before.fileno(), "wb", closefd=False)
        descriptor.name = before.name
        now = _Output(
            descriptor if before.write_through else _Buffer(descriptor),  # PYTHONUNBUFFERED
            before.encoding,
            before.errors,
            line_buffering=before.line_buffering,
            write_through=before.write_through,
        )
        _kept.append(before)
        setattr(sys, name, now)
        setattr(sys, f"__{name}__", now)


def name_step(group: int, param_id: str, step: int | str) -> None:
    """Say what prints from now on: a replicate of a group, or a target by its name."""
    global _unnamed
    _unnamed = (group, param_id, step)


def without_headings(text: str) -> str:
    """Return what the model printed, which is the same in all simulations that fail alike."""
    return _HEADING.sub("", text)


def describe(error: BaseException, *, keep_frames: bool = False) -> dict[str, str]:
    """Return type, message and the user's part of the traceback; a debugger needs frames that keep their variables."""
    name = type.__getattribute__(type(error), "__qualname__")
    what = _first_that_succeeds(
        lambda: "".join(traceback.format_exception_only(error)).strip(),
        lambda: f"{name}: {error}",  # a SyntaxError whose line is bytes
        lambda: f"{name} (its text cannot be written)",
    )
    trace = _first_that_succeeds(
        lambda: _users_traceback(error, keep_frames=keep_frames),
        lambda: _users_frames(error, what, keep_frames=keep_frames),
        lambda: "(no traceback: it cannot be written)",
    )
    what = "\n".join([what, *_output_of_command(error)])
    return {
        "message": _text(shortened_in_middle(what, _MESSAGE_LIMIT)),
        "traceback": _text(shortened_in_middle(trace, _TRACEBACK_LIMIT)),  # the first cause, and the exception itself
    }


def _first_that_succeeds(*texts: Callable[[], str]) -> str:
    for text in texts[:-1]:
        with contextlib.suppress(BaseException):
            return text()
    return texts[-1]()


def _users_frames(error: BaseException, what: str, *, keep_frames: bool) -> str:
    """Return a traceback of only this exception, without a look at what its class has changed."""
    trace = vars(BaseException)["__traceback__"].__get__(error)
    frames = traceback.extract_tb(trace)
    if not keep_frames:
        traceback.clear_frames(trace)
    return "".join(["Traceback (most recent call last):\n", *_without_mops(frames).format(), what])


def _without_mops(frames: traceback.StackSummary) -> traceback.StackSummary:
    return traceback.StackSummary.from_list([one for one in frames if not one.filename.startswith(_NOT_THE_USERS)])


def _users_traceback(error: BaseException, *, keep_frames: bool) -> str:
    """Return what Python would print, without frames of mops, and what a command that failed has printed."""
    told = traceback.TracebackException.from_exception(error)
    todo, seen = [(error, told)], set()
    while todo:
        error, summary = todo.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        summary.stack = _without_mops(summary.stack)
        if output := _output_of_command(error):
            summary.__notes__ = [*(summary.__notes__ or ()), *output]
        # A local name that holds the exception makes a cycle: its tables would wait for the garbage collector.
        if not keep_frames:
            traceback.clear_frames(error.__traceback__)
        pairs = [(error.__cause__, summary.__cause__), (error.__context__, summary.__context__)]
        if isinstance(error, BaseExceptionGroup):
            pairs += zip(error.exceptions, summary.exceptions or (), strict=False)
        todo += [(inner, its) for inner, its in pairs if inner is not None and its is not None]
    return "".join(told.format())


def _output_of_command(error: BaseException) -> list[str]:
    """Return what a command of :mod:`subprocess` printed before it failed, if the model has captured it."""
    found: list[str] = []
    # Not isinstance, which would ask the exception too.
    if not issubclass(type(error), subprocess.CalledProcessError | subprocess.TimeoutExpired):
        return found
    for stream in ("stdout", "stderr"):
        with contextlib.suppress(BaseException):  # the model may have put anything there
            captured = getattr(error, stream)
            text = captured.decode(errors="replace") if isinstance(captured, bytes) else str(captured or "")
            if text.strip():
                lines = shortened_in_middle(text.strip(), _OUTPUT_LIMIT).splitlines()
                found.append("\n".join([f"{stream} of the command:", *(f"  {line}" for line in lines)]))
    return found


def _text(found: str) -> str:
    """Return text that can be stored, without lone surrogates, which stand for bytes in the names of files."""
    return found.encode(errors="backslashreplace").decode()


def failure_of(error: BaseException, *, keep_frames: bool = False) -> dict[str, str]:
    """Return reason, message and traceback of a simulation that raised."""
    if type(error) is InvalidOutput:
        message = _text(shortened_in_middle(str(error), _MESSAGE_LIMIT))
        return {"reason": "invalid_output", "message": message, "traceback": ""}
    return {"reason": "error"} | describe(error, keep_frames=keep_frames)


def failure_of_target(
    error: BaseException, params: Mapping[str, Any], replicates: Sequence[Tables], *, keep_frames: bool = False
) -> dict[str, str]:
    """Return reason, message and traceback of a target that raised; the message ends with what the target got."""
    failure = failure_of(error, keep_frames=keep_frames)
    given = f"the target got params {', '.join(params) or '(none)'} and {counted(len(replicates), 'replicate')}:"
    lines = [failure["message"], given]
    for name in dict.fromkeys(name for tables in replicates for name in tables):
        found = [tables[name] for tables in replicates if name in tables]
        sizes = [table.num_rows for table in found]
        rows = counted(sizes[0], "row") if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,} rows"
        columns = [f"{field.name} ({field.type})" for field in found[0].schema]
        more = len(columns) - _COLUMNS_SHOWN
        others = f" and {more} more" if more > 0 else ""
        lines.append(f"  {name}: {rows} of {', '.join(columns[:_COLUMNS_SHOWN])}{others}")
    return failure | {"message": _text(shortened_in_middle("\n".join(lines), _MESSAGE_LIMIT))}
