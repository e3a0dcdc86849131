"""Processes that end with another one by a signal from the kernel, whatever they are at, and those that get orphans.

docs/decisions.md has the reasons, and what else was thought of.
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
    """Tell whether this system's kernel can do it: Linux."""
    return hasattr(fcntl, "F_SETSIG")


def tie(lifeline_fd: int, group: int) -> None:
    """Have a process group killed as soon as the other end of a socket closes.

    Nothing is ever sent on the socket, so the only event on it is the other end's close. The kernel reports that by
    the signal set with ``F_SETSIG`` (fcntl(2)): with SIGKILL no code has to run in the group.

    Parameters
    ----------
    lifeline_fd
        This end, which a process of the group keeps open.
    group
        The process group.
    """
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -group)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)


@functools.cache
def can_watch() -> bool:
    """Tell whether the kernel shows the end of a process by a descriptor (pidfd_open(2)): Linux 5.3 or newer.

    The kernel is asked: Python has the function wherever it was compiled for it, while gVisor does not know the call,
    and an old seccomp profile of Docker forbids it.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except AttributeError:
        return False
    except OSError as refused:
        return refused.errno in (errno.EMFILE, errno.ENFILE)  # there is no room now for what it knows
    return True


def can_adopt() -> bool:
    """Tell whether this system's kernel gives orphans to another process than the first: Linux."""
    return sys.platform == "linux"


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent has ended (prctl(2)); Linux only."""
    if can_adopt():
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def readable(fd: int, within_s: float | None = 0.0) -> bool:
    """Wait until something can be read of a descriptor, its end too; return whether that came in time.

    Not by select(2), which takes no descriptor above 1,023.

    Parameters
    ----------
    within_s
        Seconds to wait; None: for ever.
    """
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if within_s is None else within_s * 1000))


def die_with_parent(lifeline_fd: int) -> None:
    """Let the kernel kill this process group as soon as the parent's end of the lifeline closes.

    No code of ours has to run, which a thread that waits for end-of-file would need (the model may hold the GIL for
    ever). Elsewhere than on Linux such a thread is what there is.
    """
    if can_tie():
        tie(lifeline_fd, os.getpgrp())
        if readable(lifeline_fd):  # it closed before we asked for the signal
            os._exit(1)
        return

    def wait() -> None:
        os.read(lifeline_fd, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
