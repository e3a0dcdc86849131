"""How much memory a process has, and how it gives free memory back. Child processes import this."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | str = "self") -> int:
    """Return a process's resident memory; 0: the process has ended, or the system has no /proc."""
    try:
        return int(Path("/proc", str(pid), "statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def trim_heap() -> bool:
    """Give freed memory back to the system; return False if the C library cannot (only glibc can)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # musl and others lack this function
        return False
    return True
