"""Starts a reaper and a child process before a job needs them, while the command imports what it needs itself.

A child process imports numpy and pyarrow, which takes as long as the command's own imports. The first pool of this
process takes the reaper. If its children have the same interpreter and variables as the early child, that child becomes
its first one. If nothing takes them, both end with this process. bench/start.py: two parameter sets take 15 % less
time.
"""

from __future__ import annotations

import logging

from mops.worker.environment.interpreter import child_command
from mops.worker.environment.variables import environment
from mops.worker.reaper.client import Reaper, can_reap

logger = logging.getLogger(__name__)

_early: list[Reaper] = []


def start_early(n_threads: int) -> None:
    """Start a reaper and a child process, and do not wait for them.

    Parameters
    ----------
    n_threads
        Threads that a simulation may use.
    """
    if not can_reap():
        return
    try:
        reaper = Reaper()
        reaper.prepare(child_command(None), environment({}, n_threads=n_threads, python=None))
    except OSError as refused:  # the pool's own start reports it if it lasts
        logger.debug("no child process starts early: %r", refused)
    else:
        _early.append(reaper)


def take_reaper() -> Reaper:
    """Return the reaper that has started early, once; else a new one."""
    while _early:
        reaper = _early.pop()
        if reaper.lives:
            return reaper
        reaper.close()
    return Reaper()
