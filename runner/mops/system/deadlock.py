"""Tells whether a process waits for a lock that nothing can release, as the kernel sees it."""

from __future__ import annotations

import platform
from pathlib import Path

from mops.system.process_tree import children_of

_FUTEX = {"x86_64": "202", "aarch64": "98", "riscv64": "98", "ppc64le": "221", "s390x": "238"}.get(platform.machine())
_PRIVATE = 0x80  # FUTEX_PRIVATE_FLAG: no other process can have the lock


def is_deadlocked(pid: int) -> bool:
    """Tell whether each thread of a process waits without a timeout for a lock of the process.

    A process with children is in no deadlock, because they may do its work. Return False also if the kernel does not
    tell: only Linux does, and only about processes that this process may trace (proc(5), /proc/pid/syscall).
    """
    try:
        calls = [(thread / "syscall").read_text().split() for thread in Path("/proc", str(pid), "task").iterdir()]
    except OSError:
        return False
    return bool(calls) and all(map(_waits_for_lock, calls)) and not children_of(pid)


def _waits_for_lock(call: list[str]) -> bool:
    """Tell whether a thread waits for a lock without a timeout, from the number and arguments of its system call."""
    if call[0] != _FUTEX:
        return False
    _, operation, _, timeout, *_ = (int(argument, 16) for argument in call[1:])  # futex(2); timeout is a pointer
    return bool(operation & _PRIVATE) and timeout == 0
