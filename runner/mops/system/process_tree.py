"""The descendants of a process, and whether a process is deadlocked. Standard library only: the reaper imports it."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path


def read_proc(path: str) -> bytes:
    """Return a file of /proc, or raise OSError if the process has ended or the system has no /proc."""
    # Without the time of pathlib: mops reads such files many times a second.
    descriptor = os.open(f"/proc/{path}", os.O_RDONLY)
    try:
        read = b""
        while more := os.read(descriptor, 1 << 16):
            read += more
        return read
    finally:
        os.close(descriptor)


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for child in children_of(pid):
        yield from tree(child)


def children_of(pid: int) -> list[int]:
    """Return the children of a process, with those that have ended and were not waited for."""
    # The kernel lists each thread's children. A search of all processes takes a hundred times as long.
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as in read_proc
            with contextlib.suppress(OSError):  # the thread has ended, and other threads may have children
                found += map(int, read_proc(f"{pid}/task/{thread}/children").split())
    return found


_FUTEX = {"x86_64": "202", "aarch64": "98", "riscv64": "98", "ppc64le": "221", "s390x": "238"}.get(platform.machine())
_PRIVATE = 0x80  # FUTEX_PRIVATE_FLAG: no other process can have the lock


def is_deadlocked(pid: int) -> bool:
    """Tell whether each thread of a process waits without a timeout for a lock of the process."""
    try:
        calls = [(thread / "syscall").read_text().split() for thread in Path("/proc", str(pid), "task").iterdir()]
    except OSError:  # the kernel tells only of processes that this process may trace (proc(5), /proc/pid/syscall)
        return False
    # A process with children is in no deadlock, because they may do its work.
    return bool(calls) and all(map(_waits_for_lock, calls)) and not children_of(pid)


def _waits_for_lock(call: list[str]) -> bool:
    """Tell whether a thread waits for a lock without a timeout, from the number and arguments of its system call."""
    if call[0] != _FUTEX:
        return False
    _, operation, _, timeout, *_ = (int(argument, 16) for argument in call[1:])  # futex(2); timeout is a pointer
    return bool(operation & _PRIVATE) and timeout == 0
