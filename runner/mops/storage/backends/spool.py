"""Large data outside of memory: a file without a name, which the kernel removes after its last use."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mops.errors import StorageError
from mops.storage.backends.faults import refused
from mops.system.folders import nameless_file

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE_BYTES = 1 << 20


class Spool:
    """Data that is written once and read any number of times.

    It lies in the folder ``storage`` from the start, where :meth:`link` gives it a name. Without a folder, or if the
    file system has no files without a name, it lies in the folder of temporary files. ``descriptor`` is a file with the
    data, which the spool closes; None: a new file. A file that is not in the folder gets no name.

    StorageError: no room, no access or no descriptor is left.
    """

    def __init__(self, storage: Path | None = None, descriptor: int | None = None):
        self._storage = storage
        with self._told():
            if descriptor is None and storage is not None:
                descriptor = nameless_file(storage)
        self._storage = storage if descriptor is not None else None
        with self._told():
            # Closed with its last user.
            self._file = tempfile.TemporaryFile() if descriptor is None else os.fdopen(descriptor, "w+b")  # noqa: SIM115

    def write(self, data: Any) -> None:
        """Add to the content."""
        with self._told():
            self._file.write(data)
            self._file.flush()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content in pieces, from the start; one reader at a time."""
        self._file.seek(0)
        return iter(lambda: self._file.read(_PIECE_BYTES), b"")

    def read(self) -> bytes:
        """Return the whole content."""
        self._file.seek(0)
        return self._file.read()  # joined pieces would take twice the memory

    def opened(self) -> pa.NativeFile:
        """Return the content as a file for reading at any position."""
        import pyarrow as pa  # noqa: PLC0415 - Arrow takes 0.3 s, and records need none

        self._file.seek(0)
        return pa.PythonFile(self._file, mode="r")

    def mapped(self) -> mmap.mmap:
        """Return the content as memory that the kernel reads from the file when needed. It must not be empty."""
        with self._told():
            return mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)

    def link(self, path: Path) -> bool:
        """Give the content a name in the storage without a copy; False: it cannot have one, so copy it.

        The content is durable then, but not the folder's entry.
        """
        if self._storage is None:
            return False
        descriptor = self._file.fileno()
        try:
            # Python follows symbolic links only if src_dir_fd is set; the system ignores its value here (bpo-37612).
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
        except OSError:  # the copy succeeds, or raises a better error
            return False
        os.fsync(descriptor)  # after the link: btrfs does not log files without a name
        return True

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._storage:
                raise refused(error, str(self._storage)) from error
            raise StorageError(
                f"a temporary file cannot be written ({error.strerror or error})",
                where=tempfile.tempdir or os.environ.get("TMPDIR", "/tmp"),  # noqa: S108 - named, not written to
                hint="free space there, or set TMPDIR to another folder",
            ) from error
