"""Starts a reaper and a child process before a job needs them, while the command imports what it needs itself.

A child process imports numpy and pyarrow, which takes as long as the command's own imports. The first pool of this
process takes the reaper. If the pool's first child has the same interpreter and variables as the early child, it is
that one. bench/start.py: two parameter sets take 14 % less time.
"""

from __future__ import annotations

import atexit
import logging
import os

from mops.worker.environment.interpreter import child_command
from mops.worker.environment.variables import environment
from mops.worker.reaper.client import Reaper, can_reap

logger = logging.getLogger(__name__)

_early: list[tuple[int, Reaper]] = []
"""The reaper, if none has taken it, and the process that started it: a fork of that process must not use it."""


def start_early(n_threads: int) -> None:
    """Start a reaper and a child process, and do not wait for them.

    Parameters
    ----------
    n_threads
        Threads that a simulation may use.
    """
    if _early or not can_reap():
        return
    try:
        reaper = Reaper()
    except OSError as refused:  # the pool's own start reports it if it lasts
        logger.debug("no child process starts early: %r", refused)
        return
    _early.append((os.getpid(), reaper))
    atexit.register(_close)
    try:
        reaper.prepare(child_command(None), environment({}, n_threads=n_threads, python=None))
    except OSError as ended:
        logger.debug("no child process starts early: %r", ended)


def take_reaper() -> Reaper:
    """Return the reaper that has started early, once; else a new one."""
    reaper = _taken()
    if reaper is not None and reaper.lives:
        return reaper
    if reaper is not None:
        reaper.close()
    return Reaper()


def _taken() -> Reaper | None:
    try:
        pid, reaper = _early.pop()
    except IndexError:
        return None
    return reaper if pid == os.getpid() else None


def _close() -> None:
    """Close the reaper if no pool has taken it."""
    if (reaper := _taken()) is not None:
        reaper.close()
