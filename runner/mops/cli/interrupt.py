"""Handles Ctrl-C during imports."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process while the body imports modules.

    Imports take up to a second. A KeyboardInterrupt there would print a traceback, or an import would swallow it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
