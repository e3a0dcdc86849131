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

_LOOK_SECONDS = 0.02
_MOST_ENDED = 64  # each has a process number, of which a container may have a thousand


class ReplacementPolicy:
    """What a child has been through.

    Parameters
    ----------
    most_simulations
        After so many it is worn; 0: any number.
    most_growth_bytes
        It is worn when it has grown by more since its first simulation; 0: any growth.
    """

    def __init__(self, most_simulations: int, most_growth_bytes: int):
        self._most, self._most_growth = most_simulations, most_growth_bytes
        self._n = 0
        self._first_bytes = 0
        self._looked = 0.0
        self._most_bytes = 0
        self.size_bytes = 0
        """How large it was when it was looked at last; 0: it has run nothing, or may be of any size."""
        self.worn = ""
        """Why it is worn, for people; empty: it is not."""
        self.reason = ""
        """The same in one word: ``simulations``, ``growth``, ``size`` or ``zombies``."""

    def leave_at(self, most_bytes: int) -> None:
        """Have it leave when it is as large between two simulations; 0: at any size."""
        self._most_bytes = most_bytes
        if most_bytes and self.size_bytes >= most_bytes:
            self._leave_for_its_size()

    def _leave_for_its_size(self) -> None:
        self._wear_out("size", f"it takes {self.size_bytes >> 20:,} MiB, which leaves too little for a simulation")

    def _wear_out(self, reason: str, worn: str) -> None:
        self.reason, self.worn = reason, worn

    def finished(self, held_bytes: int) -> None:
        """Count a simulation, and look from time to time at what simulations have left in the process.

        Parameters
        ----------
        held_bytes
            Results that it holds at this moment, and will give up: no growth.
        """
        self._n += 1
        if self._most and self._n >= self._most:
            self._wear_out("simulations", f"it has run {self._n} simulations")
            return
        now = time.monotonic()
        if self._n > 1 and now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        self._look_for_zombies()
        if self._most_growth and not self.worn:
            self._look_at_size(held_bytes)

    def _look_for_zombies(self) -> None:
        """Leave before the system has no number for another process: the reaper takes those that have ended.

        This process gets the orphans of its simulations. It cannot wait for them: it cannot tell them from the model's
        own children, whose exit status is the model's to take.
        """
        if can_adopt() and _has_zombie() and (n_ended := ended_children_of(os.getpid())) > _MOST_ENDED:
            self._wear_out("zombies", f"its simulations have left {n_ended} processes that ended and nobody waited for")

    def _look_at_size(self, held_bytes: int) -> None:
        self.size_bytes = resident_bytes() - held_bytes
        if self._n == 1:
            self._first_bytes = self.size_bytes
        if self._too_large():
            gc.collect()
            trim_heap()
            self.size_bytes = resident_bytes() - held_bytes
            if self._too_large():
                growth = (self.size_bytes - self._first_bytes) >> 20
                self._wear_out("growth", f"it has grown by {growth:,} MiB since its first simulation")
        if not self.worn and self._most_bytes and self.size_bytes >= self._most_bytes:
            self._leave_for_its_size()

    def _too_large(self) -> bool:
        return self.size_bytes - self._first_bytes > self._most_growth


def _has_zombie() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return False
