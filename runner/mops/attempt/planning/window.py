"""How many groups may be in flight: fewer after memory ran out, and more again later. Pure."""

from __future__ import annotations

import math

from mops.storage.live_record import Live

GROWTH = 1.1
"""The growth of a halved window after each batch without trouble."""

FULL = 0.8
"""If a killed runner used more than this fraction of its memory, mops assumes that it ran out of memory."""


def start_size(live: Live | None, *, ended: bool, oom: bool = False) -> int | None:
    """Return the window of an attempt whose predecessor ran out of memory: half of the predecessor's; else None.

    Parameters
    ----------
    live
        The previous attempt's last sign of life; None: it left none.
    ended
        Whether the log has an end of that attempt, which means that it was not killed.
    oom
        Whether its pod was killed for memory. Then the memory in the sign of life does not matter.
    """
    if live is None or ended or not live.window:
        return None
    return max(live.window // 2, 1) if oom or live.memory_bytes > FULL * live.limit_bytes else None


class Window:
    """The most groups in flight.

    Parameters
    ----------
    most
        MODELOPS_JOB_BATCH_SIZE.
    start
        The size to begin with, if it is smaller.
    """

    def __init__(self, most: int, start: int | None = None):
        self._most, self._cap = most, start
        self._halved = False

    @property
    def size(self) -> int:
        """Groups that may be in flight, at least one."""
        return self._most if self._cap is None else min(self._most, self._cap)

    def halve(self) -> int:
        """Halve the window, after a process ran out of memory; return its size."""
        self._cap = max(self.size // 2, 1)
        self._halved = True
        return self._cap

    def batches_committed(self, n: int = 1) -> None:
        """Grow by a tenth for each batch, unless the window was halved since the last one, or is smaller anyway.

        It stays halved below a limit that is smaller now: the limit may grow when more is measured.
        """
        if self._cap is not None and self._cap < self._most and not self._halved:
            self._cap = math.ceil(self._cap * GROWTH**n)
        self._halved = False

    def set_most(self, most: int) -> None:
        """Change the upper limit. A halved window stays halved."""
        self._most = most
