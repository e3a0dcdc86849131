"""Signals that ask a process to end, and the actions of this process's signals."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals with which machines, batch systems and closed terminals stop a job. Its next runner continues it."""


def signals_with_default_action(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return the signals that this process neither ignores nor handles."""
    # The kernel knows. signal.getsignal does not see handlers of C code, such as those of faulthandler.register.
    status = Path("/proc/self/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigIgn:", "SigCgt:"))]
    return [number for number in numbers if not any(mask >> (number - 1) & 1 for mask in masks)]
