"""Waits for a condition: polls it, tells when a log line is due (every 30 s), and stops on request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

LOG_SECONDS = 30.0  # between two log lines of a wait


class Poll(NamedTuple):
    """One check of the condition."""

    waited_s: float  # since the first poll
    log_is_due: bool  # whether the caller should log what it waits for


def polls(
    every_s: float,
    timeout_s: float = math.inf,
    *,
    stopped: Callable[[], bool] = lambda: False,
    # ends early if it is the ``wait`` of an event or of a condition variable
    pause: Callable[[float], object] = time.sleep,
    log_at_once: bool = False,  # else the first log line is due after 30 seconds
) -> Iterator[Poll]:
    """Yield for each check of a condition, in a ``for`` loop; end when the time is over or a stop is requested."""
    started = time.monotonic()
    logged_at = -math.inf if log_at_once else started
    # There is always a first poll, and one more at or after the end of ``timeout_s``.
    while True:
        now = time.monotonic()
        log_is_due = now - logged_at >= LOG_SECONDS
        if log_is_due:
            logged_at = now
        yield Poll(now - started, log_is_due)
        if stopped() or time.monotonic() - started > timeout_s:
            return
        pause(every_s)
        if stopped():
            return
