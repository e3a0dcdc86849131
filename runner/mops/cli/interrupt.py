"""Ctrl-C while something is imported."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Give Ctrl-C its plain meaning while something is imported in the body.

    That takes up to a second. An interrupt in it would show a traceback of somebody's import, or be swallowed by one;
    so the process is gone, as a shell user expects.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
