"""The parts that this process holds: read from the children, and not yet given up by whoever reads them.

One book for the process, as the memory is, with a count for each task. A pool waits on its own job's part
before it starts a task; the drain check reads whose parts they are. Pieces of half-done groups count as any part:
the runner gives them up when it has put them on disk, and does not wait for the rest of their group.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from mops.child.buffers import map_buffer
from mops.waiting import polls

logger = logging.getLogger(__name__)

COPY_BELOW_BYTES = 1 << 20
"""Smaller parts are copied. A mapped one costs a descriptor (mmap keeps a duplicate until Python 3.13), and a worker of
many slots with simulations of a fraction of a second would have thousands of them in one open checkpoint."""

_POLL_SECONDS = 1.0
_changed = threading.Condition(threading.RLock())  # re-entrant: a finalizer may run in a thread that is in here
_bytes_of: Counter[str] = Counter()


def take(fd: int, name: str) -> pa.Buffer | None:
    """Read a part and close its descriptor; None for an empty one. It counts until nothing refers to it any more.

    Parameters
    ----------
    name
        Whose part it is: the task's name for its parts.
    """
    size = os.fstat(fd).st_size
    content = _copied(fd, size) if size < COPY_BELOW_BYTES else map_buffer(fd)
    if content is None or not size:
        return None
    _count(name, size)
    weakref.finalize(content, _count, name, -size)
    return pa.py_buffer(content)


def _copied(fd: int, size: int) -> np.ndarray[Any, Any]:
    content = np.empty(size, np.uint8)
    try:
        os.preadv(fd, [content.data], 0)
    finally:
        os.close(fd)
    return content


def _count(name: str, change: int) -> None:
    with _changed:
        _bytes_of[name] += change
        if not _bytes_of[name]:
            del _bytes_of[name]
        _changed.notify_all()


def held_bytes(mark: str = "") -> int:
    """Return the bytes of all parts held.

    Parameters
    ----------
    mark
        Only of those whose names have this in them.
    """
    with _changed:
        return sum(n_bytes for name, n_bytes in _bytes_of.items() if mark in name)


def held_names() -> set[str]:
    """Return whose parts are held."""
    with _changed:
        return set(_bytes_of)


def wait_for_room(limit_bytes: int, stopping: Callable[[], bool], job: str, mark: str = "") -> None:
    """Wait while more than ``limit_bytes`` are held and nobody stops; say so every 30 s.

    Parameters
    ----------
    mark
        What the names of the parts that count have in them: a job does not wait for another one's runner.
    """
    with _changed:
        for poll in polls(_POLL_SECONDS, stopped=stopping, pause=_changed.wait):
            n_bytes = held_bytes(mark)
            if n_bytes <= limit_bytes:
                return
            if poll.log_is_due:
                message = "%s: waiting to start simulations: %d MiB of results are not fetched yet (limit %d MiB)"
                logger.warning(message, job, n_bytes >> 20, limit_bytes >> 20)


def wake() -> None:
    """Let whoever waits look again."""
    with _changed:
        _changed.notify_all()
