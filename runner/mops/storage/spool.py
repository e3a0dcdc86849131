"""Large data that takes no memory: written to a temporary file that has no name, read back as mapped pages."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from typing import IO

import pyarrow as pa

from mops.errors import StorageError


def mapped(write: Callable[[IO[bytes]], object]) -> pa.Buffer:
    """Return what ``write`` writes; the file is gone when the buffer is.

    Raises
    ------
    StorageError
        There is no room in the folder of temporary files.
    """
    try:
        with tempfile.TemporaryFile() as file:
            write(file)
            file.flush()
            if not file.tell():  # no pages to map
                return pa.py_buffer(b"")
            return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as bad:
        raise StorageError(
            f"a temporary file cannot be written ({bad.strerror})",
            where=tempfile.gettempdir(),
            hint="make room there, or set TMPDIR to another folder",
        ) from bad
