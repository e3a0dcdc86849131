"""Files in a local folder."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from mops.storage.backends.base import Data, Entry, Spool
from mops.system.folders import usual_mode

if TYPE_CHECKING:
    import pyarrow.fs


# A deletion may have just removed the empty folder of a path, or a temporary file.
_again = retry(retry=retry_if_exception_type(FileNotFoundError), stop=stop_after_attempt(3), reraise=True)


class LocalFolder:
    """A folder. Needs hard links, and an fsync that makes data durable."""

    def __init__(self, root: Path):
        self._root = root

    @_again
    def put_new(self, path: str, data: Data) -> bool:
        final = self._root / path
        with _written_beside(final, data) as temporary:
            try:
                os.link(temporary, final)
                created = True
            except FileExistsError:
                created = False
            # An existing file too must be durable before a caller decides anything by it.
            _sync_folder(final.parent)
        return created

    @_again
    def put(self, path: str, data: Data) -> None:
        final = self._root / path
        with _written_beside(final, data) as temporary:
            temporary.replace(final)
            _sync_folder(final.parent)

    def get(self, path: str, start: int = 0, stop: int | None = None) -> bytes | None:
        try:
            return (self._root / path).read_bytes()[start:stop]
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def size(self, path: str) -> int | None:
        try:
            found = (self._root / path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if stat.S_ISDIR(found.st_mode) else found.st_size

    def list(self, folder: str) -> list[Entry]:
        found = []
        for path in _walk(str(self._root / folder)):
            with suppress(FileNotFoundError):
                found.append(Entry(Path(path).relative_to(self._root).as_posix(), Path(path).stat().st_size))
        return found

    def folders(self, folder: str) -> set[str]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._root / folder) as entries:
            return {entry.name for entry in entries if entry.is_dir() and any(_walk(entry.path))}
        return set()

    def prune(self, folder: str) -> None:
        _prune(self._root / folder)

    def remove(self, path: str) -> None:
        with suppress(NotADirectoryError):
            (self._root / path).unlink(missing_ok=True)

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        from pyarrow.fs import LocalFileSystem  # noqa: PLC0415 - Arrow takes 0.3 s, and records need none

        return LocalFileSystem(), str(self._root / path)

    def spool(self, descriptor: int | None = None) -> Spool:
        if descriptor is not None:  # the model may have changed the mask of its process; an access list may add rights
            os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) | usual_mode())
        return Spool(self._root, descriptor)


@contextmanager
def _written_beside(final: Path, data: Data) -> Iterator[Path]:
    """Write a durable temporary file into the folder of ``final``; remove it after the body."""
    temporary = final.with_name(f".{final.name}.{os.urandom(8).hex()}.tmp")
    try:
        _make_folder(final.parent)
        _write(temporary, data)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, data: Data) -> None:
    if isinstance(data, Spool) and data.link(path):
        return
    with path.open("xb") as file:
        file.writelines(data if isinstance(data, Spool) else [data])
        file.flush()
        os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make the folder's entries durable: an fsync of a file does not cover its name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _walk(folder: str) -> Iterator[str]:
    """Yield the path of each file, without those that writers left or that vanish. ``os.walk`` would hide errors."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _walk(entry.path)
            elif not _is_temporary(entry.name):
                yield entry.path


def _is_temporary(name: str) -> bool:
    """Tell whether a file is written at this moment, or was left by a killed writer."""
    return name.startswith(".") and name.endswith(".tmp")


def _prune(folder: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        with os.scandir(folder) as entries:
            inner = [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in entries]
        for one, is_folder in inner:
            if is_folder:
                _prune(one)
            elif _is_temporary(one.name):  # if its writer lives, it writes again
                one.unlink(missing_ok=True)
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
