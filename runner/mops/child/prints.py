"""Says in a child's output which simulation or target printed what follows.

Text that bypasses ``sys.stdout`` and ``sys.stderr``, such as that of other programs, causes no such line. Runs in
children: the standard library only.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys

from mops.study.ids_and_seeds import short_id

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
        # Shared and not detached: a handler of logging may have the stream from before.
        now = _Output(
            before.buffer,
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
