"""Objects that wait on disk instead of in memory, in one file without a name.

Large buffers (Arrow, numpy) are read back as mapped memory, whose pages the kernel can reclaim at any time. Small
ones are copied, because each mapping holds a file descriptor until its last buffer is released.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mops.storage.backends.spool import Spool

SLACK_BYTES = 64 << 20
"""The file is rewritten when removed objects take as many bytes as the others, and this much more."""

COPIED_BYTES = 4 << 20
"""Objects that are read together are copied if they take less than this."""

_ALIGN = 64  # Arrow's recommended alignment


@dataclass
class Shelved:
    """Where an object is in the file: start and length of its pickle, then of each of its buffers."""

    extents: list[tuple[int, int]]

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(length + -length % _ALIGN for _, length in self.extents)


class ResultShelf:
    """Keeps objects on disk until they are removed. Thread-safe.

    All objects are in one file, because a process may have few file descriptors and mappings, and there may be very
    many objects. The file takes at most about twice the bytes of its objects (:data:`SLACK_BYTES`).

    Parameters
    ----------
    spool
        Returns an empty file.
    """

    def __init__(self, spool: Callable[[], Spool], slack_bytes: int = SLACK_BYTES):
        self._new_file, self._slack_bytes = spool, slack_bytes
        self._lock = threading.Lock()
        self._file: Spool | None = None
        self._there: dict[int, Shelved] = {}
        self._size = self._live_bytes = 0

    @property
    def file_bytes(self) -> int:
        """Bytes of the file, including those of removed objects."""
        return self._size

    def put(self, value: object) -> Shelved:
        """Write an object.

        Raises
        ------
        StorageError
            The disk has no room. The shelf cannot be used after that.
        """
        buffers: list[pickle.PickleBuffer] = []
        description = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        with self._lock:
            shelved = Shelved([self._append(data) for data in (description, *(buffer.raw() for buffer in buffers))])
            self._there[id(shelved)] = shelved
            self._live_bytes += shelved.nbytes
        return shelved

    def read(self, shelved: Iterable[Shelved]) -> list[Any]:
        """Return objects. Their buffers stay valid after the objects are removed."""
        with self._lock:
            wanted = list(shelved)
            if not wanted:
                return []
            assert self._file is not None
            content = memoryview(self._file.mapped())
            copied = sum(one.nbytes for one in wanted) < COPIED_BYTES
            return [_load(content, one.extents, copied=copied) for one in wanted]

    def remove(self, shelved: Iterable[Shelved]) -> None:
        """Remove objects, and rewrite the file if that frees enough."""
        with self._lock:
            for one in shelved:
                del self._there[id(one)]
                self._live_bytes -= one.nbytes
            if self._there and self._size <= 2 * self._live_bytes + self._slack_bytes:
                return
            # The old file lives until its last mapped buffer is released.
            before, self._file, self._size = self._file, None, 0
            if self._there and before is not None:
                content = memoryview(before.mapped())
                for kept in self._there.values():
                    kept.extents = [self._append(content[start : start + length]) for start, length in kept.extents]

    def _append(self, data: Any) -> tuple[int, int]:
        if self._file is None:
            self._file = self._new_file()
        start, length = self._size, memoryview(data).nbytes
        self._file.write(data)
        self._file.write(b"\0" * (-length % _ALIGN))
        self._size += length + -length % _ALIGN
        return start, length


def _load(content: memoryview, extents: list[tuple[int, int]], *, copied: bool) -> Any:
    description, *buffers = (content[start : start + length] for start, length in extents)
    held = [pa.py_buffer(bytes(buffer) if copied else buffer) for buffer in buffers]
    return pickle.loads(description, buffers=held)  # noqa: S301 - the shelf wrote it
