"""Decides when a child process asks to be replaced: after so many simulations, or when its memory has grown.

Runs in children: the standard library only.
"""

from __future__ import annotations

import gc
import os
import time

from mops.system.heap import resident_bytes, trim_heap
from mops.system.lifeline import can_adopt
from mops.system.process_tree import ended_children_of
from mops.units import bytes_text

_LOOK_SECONDS = 0.02
_MOST_ENDED = 64  # each has a process number, of which a container may have a thousand


class ReplacementPolicy:
    """Watches what simulations do to their process.

    Parameters
    ----------
    max_simulations
        Replace the process after this many; 0: any number.
    max_growth_bytes
        Replace the process when it has grown by more since its first simulation; 0: any growth.
    """

    def __init__(self, max_simulations: int, max_growth_bytes: int):
        self._max_simulations, self._max_growth = max_simulations, max_growth_bytes
        self._n = 0
        self._first_bytes = 0
        self._looked_at = 0.0
        self._retirement_size = 0
        self.size_bytes = 0
        """Resident bytes of the process at the last look; 0: it has run nothing, or may have any size."""
        self.reason = ""
        """Why the process should be replaced, for people; empty: it need not be."""
        self.code = ""
        """The same in one word: ``simulations``, ``growth``, ``size`` or ``zombies``."""

    def retire_at(self, size_bytes: int) -> None:
        """Ask for a replacement when the process has this size between two simulations; 0: at no size."""
        self._retirement_size = size_bytes
        self._check_retirement_size()

    def _check_retirement_size(self) -> None:
        if self._retirement_size and self.size_bytes >= self._retirement_size:
            size = bytes_text(self.size_bytes)
            self.code, self.reason = "size", f"it takes {size}, which leaves a simulation too little memory"

    def finished(self, held_bytes: int) -> None:
        """Count a simulation; from time to time, look at what simulations have left in the process.

        Parameters
        ----------
        held_bytes
            Results that the process still holds and will hand over. They do not count as growth.
        """
        self._n += 1
        if self._max_simulations and self._n >= self._max_simulations:
            self.code, self.reason = "simulations", f"it has run {self._n} simulations"
            return
        now = time.monotonic()
        if self._n > 1 and now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        # This process adopts what its simulations leave. It cannot wait for those that end, because it cannot tell them
        # from the model's own children, whose exit status the model takes. The reaper waits for them once this process
        # has ended; else the system would run out of process numbers.
        if can_adopt() and _has_zombie() and (n_ended := ended_children_of(os.getpid())) > _MOST_ENDED:
            self.code, self.reason = "zombies", f"its simulations have left {n_ended} ended processes"
        if self._max_growth and not self.reason:
            self._look_at_size(held_bytes)

    def _look_at_size(self, held_bytes: int) -> None:
        self.size_bytes = resident_bytes() - held_bytes
        if self._n == 1:
            self._first_bytes = self.size_bytes
        if self.size_bytes - self._first_bytes > self._max_growth:
            gc.collect()
            trim_heap()
            self.size_bytes = resident_bytes() - held_bytes
            growth = self.size_bytes - self._first_bytes
            if growth > self._max_growth:
                self.code, self.reason = "growth", f"it has grown by {bytes_text(growth)} since its first simulation"
        if not self.reason:
            self._check_retirement_size()


def _has_zombie() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return False
