"""A stored file that is not on this machine, as a file for reading: the pieces of it that are read."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable

_PIECE_BYTES = 4 << 20
_PIECES_KEPT = 4


class RemoteFile(io.RawIOBase):
    """Loads a piece of a file when it is read, and keeps the last few. The file has ``size`` bytes and does not change.

    ``load`` returns the bytes from a position up to another one.
    """

    def __init__(self, size: int, load: Callable[[int, int], bytes]):
        self._size, self._load, self._position = size, load, 0
        self._kept = functools.lru_cache(_PIECES_KEPT)(self._piece)

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._position + size, self._size)
        found = []
        while self._position < stop:
            number, skipped = divmod(self._position, _PIECE_BYTES)
            piece = self._kept(number)
            found.append(piece[skipped : skipped + stop - self._position])
            self._position += len(found[-1])
        return b"".join(found)

    def _piece(self, number: int) -> bytes:
        start, stop = number * _PIECE_BYTES, min((number + 1) * _PIECE_BYTES, self._size)
        piece = self._load(start, stop)
        if len(piece) != stop - start:
            raise OSError(f"bytes {start} to {stop} of {self._size} are missing")
        return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
