"""Polls for a condition that a test needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    what: Callable[[], T], patience_s: float = 60.0, *, look_every_s: float = 0.02, said: Callable[[], str] = lambda: ""
) -> T:
    """Return ``what()`` as soon as it is true. After ``patience_s`` fail, with the text of ``said()``.

    Between two calls is at least four times the time of the last call, which leaves processors to what runs.
    """
    deadline = time.monotonic() + patience_s
    while True:
        began = time.monotonic()
        if found := what():
            return found
        assert time.monotonic() < deadline, f"waited {patience_s:g} s for nothing\n{said()}"
        time.sleep(min(max(look_every_s, 4 * (time.monotonic() - began)), 1.0))
