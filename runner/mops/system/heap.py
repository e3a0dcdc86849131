"""How much memory a process has, and how it gives free memory back. Child processes import this."""

from __future__ import annotations

import ctypes
import os

from mops.system.process_tree import read_proc

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | str = "self") -> int:
    """Return a process's resident memory; 0: the process has ended, or the system has no /proc."""
    try:
        return int(read_proc(f"{pid}/statm").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def kept_bytes(pid: int | str = "self") -> int:
    """Return a process's resident memory without pages of mapped files, which the kernel can drop; 0: as above."""
    sizes = status_bytes(pid)
    return max(sizes.get("VmRSS", 0) - sizes.get("RssFile", 0), 0)  # Linux before 4.5 does not tell RssFile


def status_bytes(pid: int | str) -> dict[str, int]:
    """Return the sizes that the kernel tells of a process (proc(5), status); empty: as above."""
    try:
        return sizes_in(read_proc(f"{pid}/status").decode(errors="replace"))
    except OSError:
        return {}


def sizes_in(text: str) -> dict[str, int]:
    """Return the sizes in a text of the kernel, in bytes, from lines such as ``VmRSS:  5 kB``."""
    lines = (line.split() for line in text.splitlines() if line.endswith(" kB"))
    return {words[0][:-1]: int(words[1]) << 10 for words in lines}


def trim_heap() -> bool:
    """Give freed memory back to the system; return False if the C library cannot (only glibc can)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # musl and others lack this function
        return False
    return True
