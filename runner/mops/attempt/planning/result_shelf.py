"""Objects that wait on disk instead of in memory, in one file without a name.

The buffers of large objects (Arrow, numpy) are read back mapped: the kernel can take their pages away at any time.
Small ones are copied, for each mapping takes a descriptor as long as somebody holds one of its buffers.
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
"""The file may hold so many bytes of removed objects, and as many again as the objects take, until it is rewritten."""

COPIED_BYTES = 4 << 20
"""Objects that are read at once and together take less are copied."""

_ALIGN = 64  # Arrow's recommended alignment


@dataclass
class Kept:
    """Where an object lies: the start and the length of its description, then of each of its buffers."""

    extents: list[tuple[int, int]]

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(length + -length % _ALIGN for _, length in self.extents)


class ResultShelf:
    """Keeps objects on disk until they are removed. Thread-safe.

    One file for all objects, since a process may have few descriptors and few mappings, and there may be very many
    objects. The file is rewritten when removed objects take more than half of it (and :data:`SLACK_BYTES`), so that it
    takes at most about twice the bytes of the objects in it.

    Parameters
    ----------
    spool
        Returns an empty file.
    """

    def __init__(self, spool: Callable[[], Spool], slack_bytes: int = SLACK_BYTES):
        self._new_file, self._slack_bytes = spool, slack_bytes
        self._lock = threading.Lock()
        self._file: Spool | None = None
        self._there: dict[int, Kept] = {}
        self._size = self._live_bytes = 0

    @property
    def file_bytes(self) -> int:
        """Bytes of the file, with those of removed objects that are still in it."""
        return self._size

    def put(self, value: object) -> Kept:
        """Write an object.

        Raises
        ------
        StorageError
            There is no room for it; the shelf is not to be used any more.
        """
        buffers: list[pickle.PickleBuffer] = []
        description = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        with self._lock:
            kept = Kept([self._append(data) for data in (description, *(buffer.raw() for buffer in buffers))])
            self._there[id(kept)] = kept
            self._live_bytes += kept.nbytes
        return kept

    def read(self, kept: Iterable[Kept]) -> list[Any]:
        """Return objects. Their buffers stay valid after they have been removed."""
        with self._lock:
            wanted = list(kept)
            if not wanted:
                return []
            assert self._file is not None
            content = memoryview(self._file.mapped())
            copied = sum(one.nbytes for one in wanted) < COPIED_BYTES
            return [_unpickled(content, one.extents, copied=copied) for one in wanted]

    def remove(self, kept: Iterable[Kept]) -> None:
        """Give up objects, and their room where that is worth a rewrite."""
        with self._lock:
            for one in kept:
                del self._there[id(one)]
                self._live_bytes -= one.nbytes
            if self._size > 2 * self._live_bytes + self._slack_bytes or not self._there:
                self._rewrite()

    def _append(self, data: Any) -> tuple[int, int]:
        if self._file is None:
            self._file = self._new_file()
        start, length = self._size, memoryview(data).nbytes
        self._file.write(data)
        self._file.write(b"\0" * (-length % _ALIGN))
        self._size += length + -length % _ALIGN
        return start, length

    def _rewrite(self) -> None:
        """Copy what is there to a new file; the old one ends with the last buffer that somebody still reads."""
        before, self._file, self._size = self._file, None, 0
        if not self._there or before is None:
            return
        content = memoryview(before.mapped())
        for kept in self._there.values():
            kept.extents = [self._append(content[start : start + length]) for start, length in kept.extents]


def _unpickled(content: memoryview, extents: list[tuple[int, int]], *, copied: bool) -> Any:
    description, *buffers = (content[start : start + length] for start, length in extents)
    held = [pa.py_buffer(bytes(buffer) if copied else buffer) for buffer in buffers]
    return pickle.loads(description, buffers=held)  # noqa: S301 - our own
