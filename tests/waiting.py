"""Waiting for what must happen: looking again and again, with patience, and with an error that says what was seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    what: Callable[[], T], patience_s: float = 60.0, *, look_every_s: float = 0.02, said: Callable[[], str] = lambda: ""
) -> T:
    """Return ``what()`` as soon as it is true; fail with ``said()`` if it never is.

    Between two looks there is twice the time of the last one too, which the process under test may need itself.
    """
    deadline = time.monotonic() + patience_s
    while True:
        began = time.monotonic()
        if found := what():
            return found
        assert time.monotonic() < deadline, f"waited {patience_s:g} s in vain\n{said()}"
        time.sleep(min(max(look_every_s, 2 * (time.monotonic() - began)), 1.0))
