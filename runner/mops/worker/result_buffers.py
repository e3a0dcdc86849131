"""The result buffers in this process: read from children, and counted until their last reader frees them.

There is one count, because this process has one memory, and a count for each task. Before a pool starts a task, it
waits until its job's buffers leave room. The drain check reads which buffers are left.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from mops.child.buffers import map_buffer
from mops.units import bytes_text
from mops.waiting import polls

logger = logging.getLogger(__name__)

# Smaller buffers are copied: a mapped one costs a descriptor (mmap keeps a duplicate until Python 3.13), and a worker
# with many slots and short simulations would have thousands of them in one open checkpoint.
COPY_BELOW_BYTES = 1 << 20

_POLL_SECONDS = 1.0
_changed = threading.Condition(threading.RLock())
"""Guards the count. Re-entrant: a finalizer may run in a thread that holds it."""
_bytes_of: Counter[str] = Counter()


def take(fd: int, name: str) -> pa.Buffer | None:
    """Read a buffer and close its descriptor; None if it is empty. It counts until nothing refers to it."""
    size = os.fstat(fd).st_size
    content: np.ndarray[Any, Any] | mmap.mmap | None
    if size < COPY_BELOW_BYTES:
        content = np.empty(size, np.uint8)
        try:
            os.preadv(fd, [content.data], 0)
        finally:
            os.close(fd)
    else:
        content = map_buffer(fd)
    if content is None or not size:
        return None
    _count(name, size)
    weakref.finalize(content, _count, name, -size)
    return pa.py_buffer(content)


def _count(name: str, change: int) -> None:
    with _changed:
        _bytes_of[name] += change
        if not _bytes_of[name]:
            del _bytes_of[name]
        _changed.notify_all()


def held_bytes(mark: str = "") -> int:
    """Return the bytes of the buffers whose names contain ``mark``."""
    with _changed:
        return sum(n_bytes for name, n_bytes in _bytes_of.items() if mark in name)


def held_names() -> set[str]:
    """Return the names of all buffers."""
    with _changed:
        return set(_bytes_of)


def wait_for_room(limit_bytes: int, stopping: Callable[[], bool], job: str, mark: str = "") -> None:
    """Wait while buffers take more than ``limit_bytes``, unless ``stopping``; log it every 30 s."""
    # Only buffers with the mark count: a job does not wait for another job's runner. Buffers of unfinished groups count
    # too: the runner frees them when it has put them on disk, without waiting for the rest of their group.
    with _changed:
        for poll in polls(_POLL_SECONDS, stopped=stopping, pause=_changed.wait):
            n_bytes = held_bytes(mark)
            if n_bytes <= limit_bytes:
                return
            if poll.log_is_due:
                message = "%s: waiting to start simulations: %s of results are not fetched yet (limit %s)"
                logger.warning(message, job, bytes_text(n_bytes), bytes_text(limit_bytes))


def wake() -> None:
    """Make waiting tasks check again whether to stop."""
    with _changed:
        _changed.notify_all()
