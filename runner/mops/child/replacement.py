"""Decides when a child process asks to be replaced: after so many simulations, or for what they have left in it.

Runs in children: the standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import resource
from pathlib import Path

from mops.system.clock import monotonic
from mops.system.process_memory import kept_bytes, trim_heap
from mops.system.process_tree import children_of
from mops.units import bytes_text

_LOOK_SECONDS = 0.02
_EACH = 8  # simulations
# Above those that run after the first simulation. An ended process has a number too, of which a container may have a
# thousand.
_MOST_PROCESSES = 32
_MOST_THREADS = 64  # a thread pool of Python has up to 32


class ReplacementPolicy:
    """Watches what simulations do to their process."""

    def __init__(self, max_simulations: int, max_growth_bytes: int, temporary: Path):
        # 0: any number, any growth since the first simulation. `temporary` is the folder of this process.
        self._max_simulations, self._max_growth = max_simulations, max_growth_bytes
        self._n = 0
        self._first_bytes = self._first_threads = self._first_processes = 0
        self._most_descriptors = 0
        self._first_free: dict[str, int | None] = dict.fromkeys(("/dev/shm", str(temporary)))  # noqa: S108 - only measured
        self._looked_at = 0.0
        self._retirement_size = 0
        self.size_bytes = 0  # at the last look, without files; 0: it has run nothing, or may have any size
        self.reason = ""  # why the process should be replaced, for people; empty: it need not be
        self.code = ""  # the same in one word of mops.worker.slots.REPLACED_BETWEEN_SIMULATIONS

    def retire_at(self, size_bytes: int) -> None:
        """Ask for a replacement when the process has this size between two simulations; 0: at no size."""
        self._retirement_size = size_bytes
        self._check_retirement_size()

    def _check_retirement_size(self) -> None:
        if self._retirement_size and self.size_bytes >= self._retirement_size:
            size = bytes_text(self.size_bytes)
            self.code, self.reason = "size", f"it takes {size}, which leaves a simulation too little memory"

    def finished(self, held_bytes: int) -> None:
        """Count a simulation, and sometimes look at what is left; results to hand over do not count as growth."""
        self._n += 1
        if self._max_simulations and self._n >= self._max_simulations:
            self.code, self.reason = "simulations", f"it has run {self._n} simulations"
            return
        # Often, because a short simulation may open many files; not after each, because this takes 1 us.
        if self._n % _EACH == 1 and (lowest := _lowest_free_descriptor()) >= self._most_descriptors:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if self._n == 1:
                self._most_descriptors = (lowest + limit) // 2
            else:
                self.code = "descriptors"
                self.reason = f"its simulations have left files open: {min(lowest, limit)} of at most {limit}"
        now = monotonic()
        if self._n > 1 and now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        self._look_at_leftovers()
        if self._max_growth and not self.reason:
            self._look_at_size(held_bytes)

    def _look_at_leftovers(self) -> None:
        # This process adopts what its simulations leave. It cannot wait for those that end, because it cannot tell them
        # from the model's own children, whose exit status the model takes. The reaper waits for them once this process
        # has ended; else the system would run out of process numbers.
        n_threads, processes = _n_threads(), children_of(os.getpid()) if _has_child() else []
        if self._n == 1:  # a pool may stay, but no process that has ended belongs to one
            self._first_threads, self._first_processes = n_threads, sum(map(_is_alive, processes))
        more_threads, more_processes = n_threads - self._first_threads, len(processes) - self._first_processes
        if more_processes > _MOST_PROCESSES:
            self.code, self.reason = "processes", f"its simulations have left {more_processes} processes"
        elif more_threads > _MOST_THREADS:
            self.code, self.reason = "threads", f"its simulations have left {more_threads} threads"
        for folder, first in self._first_free.items():
            free = _free_bytes(folder)
            if first is None or free is None:
                self._first_free[folder] = free
            elif free < first // 2:
                self.code = "files"
                self.reason = f"the free space of {folder} has halved to {bytes_text(free)} since it started"

    def _look_at_size(self, held_bytes: int) -> None:
        self.size_bytes = kept_bytes() - held_bytes
        if self._n == 1:
            self._first_bytes = self.size_bytes
        if self.size_bytes - self._first_bytes > self._max_growth:
            gc.collect()
            trim_heap()
            self.size_bytes = kept_bytes() - held_bytes
            growth = self.size_bytes - self._first_bytes
            if growth > self._max_growth:
                self.code, self.reason = "growth", f"it has grown by {bytes_text(growth)} since its first simulation"
        if not self.reason:
            self._check_retirement_size()


def _has_child() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _is_alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # its parent has waited for it now
        return False


def _n_threads() -> int:
    try:
        return Path("/proc/self/task").stat().st_nlink - 2
    except OSError:
        return 0


def _lowest_free_descriptor() -> int:
    try:  # a lower bound of the number of open descriptors, in 0.5 us
        free = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 0)
    except OSError as refused:
        return 1 << 30 if refused.errno == errno.EMFILE else 0  # 0: the model has closed descriptor 0
    os.close(free)
    return free


def _free_bytes(folder: str) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:  # there is none
        return None
    return found.f_bavail * found.f_frsize
