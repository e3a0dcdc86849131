"""Large data that takes no memory: a temporary file that has no name, and is gone when nobody holds it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO

import pyarrow as pa

from mops.errors import StorageError

_PIECE_BYTES = 1 << 20


class Spool:
    """What was written once, to be read any number of times.

    Parameters
    ----------
    write
        Writes the content; called once, at once.

    Raises
    ------
    StorageError
        There is no room in the folder of temporary files.
    """

    def __init__(self, write: Callable[[IO[bytes]], object]):
        try:
            # Closed when this object and every reader are gone.
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
            write(self._file)
            self._file.flush()
        except OSError as bad:
            raise StorageError(
                f"a temporary file cannot be written ({bad.strerror})",
                where=tempfile.gettempdir(),
                hint="make room there, or set TMPDIR to another folder",
            ) from bad

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content in pieces, from the start; one reader at a time."""
        self._file.seek(0)
        return iter(lambda: self._file.read(_PIECE_BYTES), b"")

    def opened(self) -> pa.NativeFile:
        """Return the content as a file for reading at any position."""
        self._file.seek(0)
        return pa.PythonFile(self._file, mode="r")
