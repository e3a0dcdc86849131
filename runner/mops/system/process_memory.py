"""The memory and the CPU time of processes and their descendants, and how a process gives free memory back.

Linux has the figures in /proc. On other systems the missing figures are unknown, and mops limits nothing by them.
Child processes import this: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

from mops.system.process_tree import read_proc, tree

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CONFIRM_SECONDS = 0.1
_CONFIRM_SHARE = 20  # a twentieth of the time at most


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


def peak_bytes(pid: int) -> int:
    """Return the highest resident memory of a process since :func:`reset_peak`; 0: the process has ended."""
    return status_bytes(pid).get("VmHWM", 0)


def file_bytes(pid: int) -> int:
    """Return the resident pages of the files that a process maps; 0: the process has ended, or Linux before 4.5."""
    return status_bytes(pid).get("RssFile", 0)


def reset_peak(pid: int) -> None:
    """Let :func:`peak_bytes` count from now (proc(5), clear_refs); other systems count from the process's start."""
    with contextlib.suppress(OSError):
        Path("/proc", str(pid), "clear_refs").write_text("5")


def tree_bytes(*pids: int) -> int:
    """Return the resident memory of processes and their descendants; a shared page counts for each process."""
    return sum(map(resident_bytes, {found for pid in pids for found in tree(pid)}))


def own_bytes(*pids: int, template: int | None = None) -> int | None:
    """Return the memory of processes and their descendants, with shared pages counted once; None: unknown."""
    # Private pages count whole, and shared pages by parts (the proportional set size). Pages that a process shares with
    # the template that forked it count for the template: they stay when the process ends. Pages of mapped files do not
    # count, because the kernel can write them back and drop them; those of tmpfs and memfd count.
    try:
        found = [_counted(one) for one in {found for pid in pids for found in tree(pid)}]
    except OSError:  # the kernel does not tell: Linux before 4.14, or a process of another user
        return None
    private, parts = sum(one[0] for one in found), sum(one[1] for one in found)
    return max(private, parts - (kept_bytes(template) if template is not None else 0))


def _counted(pid: int) -> tuple[int, int]:
    """Return a process's private bytes, and all its bytes with shared pages by parts; (0, 0): the process has ended."""
    try:
        text = read_proc(f"{pid}/smaps_rollup").decode()
    except (FileNotFoundError, ProcessLookupError):
        if resident_bytes(pid):
            raise
        return 0, 0
    return without_files(sizes_in(text))


def without_files(rollup: dict[str, int]) -> tuple[int, int]:
    """Return the private bytes and the proportional set size of a smaps_rollup, without pages of files."""
    # The kernel does not tell how many private pages belong to files. So the first figure may include pages of a file
    # that are not written back yet, at most as many as the process shares of the memory that counts.
    names = ("Private_Dirty", "Private_Clean", "Pss", "Pss_File")
    dirty, clean, parts, files = (rollup.get(name, 0) for name in names)  # without any: the process ends now
    return min(max(dirty + clean - files, dirty), parts - files), parts - files


class Usage:
    """The memory of processes, measured cheaply, and exactly once the cheap figure exceeds a limit."""

    # Resident memory takes 20 us to read, and counts a shared page for each process: four children that are forked from
    # a process of 300 MiB seem to use 1.2 GiB more. It also counts pages of mapped files, which the kernel can drop. To
    # count each page once, and no such page, takes milliseconds. So mops does that only while resident memory is above
    # the limit, and repeats it because processes stop sharing pages that they write to.

    def __init__(self) -> None:
        self._left_out_bytes = 0
        self._again_at = 0.0
        self.resident_peak_bytes = 0
        """The highest resident memory so far; a shared page counts for each process, and files count."""
        self.is_exact = False
        """Whether the last measurement above a limit counted shared pages once and left out files."""

    def look(self, limit_bytes: int, resident: Callable[[], int], exact: Callable[[], int | None]) -> int:
        """Return the bytes in use. A figure above the limit is exact if the kernel offers the exact figure."""
        resident_bytes = resident()
        self.resident_peak_bytes = max(self.resident_peak_bytes, resident_bytes)
        supposed = max(resident_bytes - self._left_out_bytes, 0)
        if supposed <= limit_bytes and (resident_bytes <= limit_bytes or time.monotonic() < self._again_at):
            return supposed
        began = time.monotonic()
        found = exact()
        now = time.monotonic()
        self._again_at = now + max(_CONFIRM_SECONDS, _CONFIRM_SHARE * (now - began))
        self.is_exact = found is not None
        found = resident_bytes if found is None else min(found, resident_bytes)
        self._left_out_bytes = resident_bytes - found
        return found


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its descendants so far."""
    ticks = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):  # the process has ended
            fields = read_proc(f"{process}/stat").rpartition(b")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
