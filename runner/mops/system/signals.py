"""Signals that end a process: of the kernel when another process ends (the lifeline), and of those who stop jobs.

Also processes that adopt orphans. docs/internals/decisions.md has the reasons and the alternatives. The reaper imports
this: standard library only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_PR_SET_CHILD_SUBREAPER = 36

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals with which machines, batch systems and closed terminals stop a job. Its next runner continues it."""


def tie(lifeline_fd: int, group: int) -> None:
    """Let the kernel kill a process group, which keeps one end of a socket open, when the other end closes."""
    # No process writes to the socket, so the only event is the close of the other end. The kernel reports the close by
    # the signal that F_SETSIG sets (fcntl(2)). SIGKILL needs no code in the group.
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -group)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def readable(fd: int, within_s: float | None = 0.0) -> bool:
    """Wait until a descriptor has data or reaches its end; return False if the time (None: no limit) runs out first."""
    poller = select.poll()  # select(2) takes no descriptor above 1,023
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if within_s is None else within_s * 1000))


def die_with_parent(lifeline_fd: int) -> None:
    """Let the kernel kill this process group when the parent's end of the lifeline closes."""
    tie(lifeline_fd, os.getpgrp())
    if readable(lifeline_fd):  # the parent's end has closed before the call of tie
        os._exit(1)


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle signals while the body runs. Only the main thread may call this."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def signals_with_default_action(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return the signals that this process neither ignores nor handles."""
    # The kernel knows. signal.getsignal does not see handlers of C code, such as those of faulthandler.register.
    status = Path("/proc/self/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigIgn:", "SigCgt:"))]
    return [number for number in numbers if not any(mask >> (number - 1) & 1 for mask in masks)]
