"""Waits for a condition: polls it, tells when a log line is due (every 30 s), and stops on request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

LOG_SECONDS = 30.0
"""Seconds between two log lines of a wait."""


class Poll(NamedTuple):
    """One check of the condition.

    Parameters
    ----------
    waited_s
        Seconds since the first poll.
    log_is_due
        Whether the caller should log what it waits for.
    """

    waited_s: float
    log_is_due: bool


def polls(
    every_s: float,
    timeout_s: float = math.inf,
    *,
    stopped: Callable[[], bool] = lambda: False,
    pause: Callable[[float], object] = time.sleep,
    log_at_once: bool = False,
) -> Iterator[Poll]:
    """Yield for each check of a condition; end when the time is over or a stop is requested.

    The caller checks the condition in the body of a ``for`` loop and leaves the loop when the condition holds. There is
    always a first poll, and one more at or after the end of ``timeout_s``.

    Parameters
    ----------
    stopped
        Whether to stop waiting.
    pause
        Waits between two polls, for ``every_s`` seconds at most: the ``wait`` of an event or of a condition variable
        ends the pause early.
    log_at_once
        Whether the first log line is due at the first poll; else after 30 seconds.
    """
    started = time.monotonic()
    logged_at = -math.inf if log_at_once else started
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
