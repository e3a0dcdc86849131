"""Processes that end when another process ends, by a signal from the kernel; and processes that adopt orphans.

docs/internals/decisions.md has the reasons and the alternatives.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import select
import signal
import sys
import threading

_PR_SET_CHILD_SUBREAPER = 36


def can_tie() -> bool:
    """Tell whether the kernel can signal the close of a socket, for :func:`tie` (Linux)."""
    return hasattr(fcntl, "F_SETSIG")


def tie(lifeline_fd: int, group: int) -> None:
    """Let the kernel kill a process group when the other end of a socket closes.

    No process writes to the socket, so the only event is the close of the other end. The kernel reports the close by
    the signal that ``F_SETSIG`` sets (fcntl(2)). SIGKILL needs no code in the group.

    Parameters
    ----------
    lifeline_fd
        The end of the socket that a process of the group keeps open.
    group
        The process group.
    """
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -group)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)


@functools.cache
def can_watch() -> bool:
    """Tell whether the kernel shows the end of a process by a descriptor (pidfd_open(2), Linux 5.3 or newer).

    Only the kernel knows: Python may have the function where gVisor lacks the call, or Docker forbids it.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except AttributeError:
        return False
    except OSError as refused:
        return refused.errno in (errno.EMFILE, errno.ENFILE)  # the kernel has the call and no free descriptor
    return True


def can_adopt() -> bool:
    """Tell whether the kernel can give orphans to a process other than process 1 (Linux)."""
    return sys.platform == "linux"


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends (prctl(2)); on other systems than Linux, do nothing."""
    if can_adopt():
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def readable(fd: int, within_s: float | None = 0.0) -> bool:
    """Wait until a descriptor has data or reaches its end; return False if the time runs out first.

    This uses poll(2), because select(2) takes no descriptor above 1,023.

    Parameters
    ----------
    within_s
        Seconds to wait; None: no limit.
    """
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if within_s is None else within_s * 1000))


def die_with_parent(lifeline_fd: int) -> None:
    """Let the kernel kill this process group when the parent's end of the lifeline closes.

    On other systems than Linux, a thread waits for the close. A model that holds the GIL stops that thread.
    """
    if can_tie():
        tie(lifeline_fd, os.getpgrp())
        if readable(lifeline_fd):  # the parent's end has closed before the call of tie
            os._exit(1)
        return

    def wait() -> None:
        os.read(lifeline_fd, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
