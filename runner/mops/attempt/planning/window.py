"""How many groups may be in flight: as set, fewer after memory ran out, and more again while it does not. Pure."""

from __future__ import annotations

import math

from mops.storage.live_record import Live

GROWTH = 1.1
"""What a window becomes by a batch without trouble."""


FULL = 0.8
"""A runner that was killed with more than so much of its memory in use is taken to have run out of it."""


def start_after(live: Live | None, *, ended: bool, oom: bool = False) -> int | None:
    """Return what an attempt begins with: half of what the one before had, if that ran out of memory; None: all.

    Parameters
    ----------
    live
        The last sign of life of the attempt before; None: it left none.
    ended
        Whether that attempt has an end: then nothing killed it.
    oom
        Whether its pod ended for memory, however much of it was in use at that sign of life.
    """
    if live is None or ended or not live.window:
        return None
    return max(live.window // 2, 1) if oom or live.memory_bytes > FULL * live.limit_bytes else None


class Window:
    """The most groups in flight at this moment.

    Parameters
    ----------
    most
        MODELOPS_JOB_BATCH_SIZE.
    start
        What to begin with, if that is less.
    """

    def __init__(self, most: int, start: int | None = None):
        self._most, self._cap = most, start
        self._halved = False

    @property
    def size(self) -> int:
        """Groups that may be in flight, at least one."""
        return self._most if self._cap is None else min(self._most, self._cap)

    def halve(self) -> int:
        """Take half of it, after a process ran out of memory; return what it is now."""
        self._cap = max(self.size // 2, 1)
        self._halved = True
        return self._cap

    def batch_done(self) -> None:
        """Let it grow by a tenth, if a batch has gone through since it was halved last."""
        if self._cap is not None and not self._halved:
            self._cap = math.ceil(self._cap * GROWTH)
            if self._cap >= self._most:
                self._cap = None
        self._halved = False

    def allow(self, most: int) -> None:
        """Have another most; what memory allowed last is not passed for it."""
        self._most = most
