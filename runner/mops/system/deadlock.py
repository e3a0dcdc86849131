"""Tells whether a process waits for a lock that nothing can release, as the kernel sees it."""

from __future__ import annotations

import platform
from pathlib import Path

from mops.system.process_tree import children_of

_FUTEX = {"x86_64": "202", "aarch64": "98", "riscv64": "98", "ppc64le": "221", "s390x": "238"}.get(platform.machine())
_PRIVATE = 0x80  # FUTEX_PRIVATE_FLAG: no other process can have the lock


def is_deadlocked(pid: int) -> bool:
    """Tell whether a process waits without a timeout for a lock of its memory, and has no other thread.

    A process with children is in no deadlock, because they may do its work. Return False also if the kernel does not
    tell: only Linux does, and only about processes that this process may trace (proc(5), /proc/pid/syscall).
    """
    folder = Path("/proc", str(pid))
    try:
        n_threads = len(list((folder / "task").iterdir()))
        call, *arguments = (folder / "syscall").read_text().split()
    except OSError:
        return False
    if call != _FUTEX or n_threads > 1 or children_of(pid):
        return False
    _, operation, _, timeout, *_ = (int(argument, 16) for argument in arguments)  # futex(2); timeout is a pointer
    return bool(operation & _PRIVATE) and timeout == 0
