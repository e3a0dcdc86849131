"""The contract of a backend: data in a spool, files that are read in pieces, listings, and what errors mean.

The meaning of an error says for how long mops repeats the call. azure.py has the tables for Azure, whose client takes
long to import.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_exponential, wait_random_exponential

from mops.errors import StorageError
from mops.system.folders import nameless_file

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs


Data: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer | Spool"

T = TypeVar("T")

_PIECE_BYTES = 1 << 20  # of a spool
_REMOTE_PIECE_BYTES = 4 << 20
_REMOTE_PIECES_KEPT = 4


class Put(Enum):
    """The answer to a request to create a file."""

    CREATED = "created"
    SAME = "same"  # the file has the same bytes: another process wrote them, or this one, and the answer was lost
    OTHER = "other"  # the file exists with other bytes


@dataclass(frozen=True)
class Entry:
    """A file in a listing; ``size`` in bytes."""

    path: str
    size: int


class Spool:
    """Large data outside of memory, written once and read any number of times: a file without a name.

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


class RemoteFile(io.RawIOBase):
    """Loads a piece of a file when it is read, and keeps the last few. The file has ``size`` bytes and does not change.

    ``load`` returns the bytes from a position up to another one.
    """

    def __init__(self, size: int, load: Callable[[int, int], bytes]):
        self._size, self._load, self._position = size, load, 0
        self._kept: dict[int, bytes] = {}  # the pieces, the last one that was read at the end

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._position + size, self._size)
        found = []
        while self._position < stop:
            number, skipped = divmod(self._position, _REMOTE_PIECE_BYTES)
            piece = self._piece(number)
            found.append(piece[skipped : skipped + stop - self._position])
            self._position += len(found[-1])
        return b"".join(found)

    def _piece(self, number: int) -> bytes:
        piece = self._kept.pop(number, None)
        if piece is None:
            start, stop = number * _REMOTE_PIECE_BYTES, min((number + 1) * _REMOTE_PIECE_BYTES, self._size)
            piece = self._load(start, stop)
            if len(piece) != stop - start:
                raise OSError(f"bytes {start} to {stop} of {self._size} are missing")
        self._kept[number] = piece
        if len(self._kept) > _REMOTE_PIECES_KEPT:
            del self._kept[next(iter(self._kept))]
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


class Backend(Protocol):
    """One kind of storage, with the methods of :class:`mops.storage.files.Files`. It makes each call once.

    Listings have any order. A backend raises OSError or :class:`RequestFailed`.
    """

    def put_new(self, path: str, data: Data) -> bool:
        """Create a file, whole or not at all, and durable; False: a file of this path exists."""

    def put(self, path: str, data: Data) -> None: ...

    def get(self, path: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return a file's bytes, or those from ``start`` up to ``stop``; None: absent."""

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None: absent."""

    def list(self, folder: str) -> list[Entry]: ...

    def folders(self, folder: str) -> set[str]: ...

    def prune(self, folder: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]: ...

    def spool(self, descriptor: int | None = None) -> Spool: ...


def whole_bytes(data: Data) -> bytes:
    """Return all of the data, read into memory."""
    return data.read() if isinstance(data, Spool) else bytes(data)


@dataclass(frozen=True)
class Fault:
    """The meaning of an error. mops retries after ``transient`` faults."""

    what: str
    hint: str
    transient: bool = False


class RequestFailed(Exception):
    """A storage that is not a folder refused a request, or did not answer; ``text`` is by the storage's client."""

    def __init__(self, fault: Fault, text: str, code: str | None):  # code None: the service itself has not answered
        super().__init__(text)
        self.fault, self.text, self.code = fault, text, code


SILENT = Fault(
    "the storage does not answer",
    "check the network and, for Azure, the account's name, then resume the job",
    transient=True,
)
BUSY = Fault("the storage is overloaded or has an internal fault", "resume the job later", transient=True)
_REFUSED_FOLDER = Fault("the storage refuses access", "check its owner and mode")
REFUSED = Fault(
    "the storage refuses access",
    "check the key or SAS token, the account's firewall, and your role 'Storage Blob Data Contributor'",
)
FULL = Fault("the storage is full", "free space or raise the quota, then resume the job")
NO_CONTAINER = Fault("the container or account does not exist", "create the container, or correct the storage's URL")
_READ_ONLY = Fault("the storage is read-only", "choose another folder with MODELOPS_STORAGE")
_NOT_A_FOLDER = Fault("a file and a folder have the same path", "move one of them, or choose another folder")
_NO_FOLDER = Fault("a folder of this path does not exist and cannot be made", "choose another folder")
_NO_LINKS = Fault(
    "the file system has no hard links or no fsync of folders, which commits need",
    "choose a folder on another file system",
)
_BROKEN = Fault("the file system reports an error", "check the disk (dmesg), then resume the job")
_NO_FILES = Fault("too many open files", "raise the limit: ulimit -n")
UNKNOWN = Fault("the storage answered with an error", "correct the cause that the brackets name, then resume the job")

FAULTS_BY_ERRNO = {
    errno.ENOENT: _NO_FOLDER,
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EISDIR: _NOT_A_FOLDER,
    errno.EEXIST: _NOT_A_FOLDER,
    errno.EACCES: _REFUSED_FOLDER,
    errno.EPERM: _REFUSED_FOLDER,
    errno.EROFS: _READ_ONLY,
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EFBIG: FULL,
    errno.EMLINK: _NO_LINKS,
    errno.EXDEV: _NO_LINKS,
    errno.EINVAL: _NO_LINKS,
    errno.ENOSYS: _NO_LINKS,
    errno.EOPNOTSUPP: _NO_LINKS,
    errno.EIO: _BROKEN,
    errno.EMFILE: _NO_FILES,
    errno.ENFILE: _NO_FILES,
    # Network file systems: a server that restarts, or a handle that the server has forgotten.
    errno.EAGAIN: BUSY,
    errno.EBUSY: BUSY,
    errno.ESTALE: BUSY,
    errno.EINTR: BUSY,
    errno.EHOSTDOWN: SILENT,
    errno.EHOSTUNREACH: SILENT,
    errno.ENETDOWN: SILENT,
    errno.ENETUNREACH: SILENT,
    errno.ENETRESET: SILENT,
}
# Statuses of HTTP, by which storages answer.
FAULTS_BY_STATUS = {
    401: REFUSED,
    403: REFUSED,
    404: NO_CONTAINER,
    408: SILENT,
    429: BUSY,
    500: BUSY,
    502: BUSY,
    503: BUSY,
    504: BUSY,
    507: FULL,
}
# These classes count more than an error's number.
FAULTS_BY_CLASS = ((TimeoutError, SILENT), (ConnectionError, SILENT))


def fault_of(error: OSError | RequestFailed) -> Fault:
    """Return the meaning of a storage's error."""
    if isinstance(error, RequestFailed):
        return error.fault
    by_class = next((fault for kind, fault in FAULTS_BY_CLASS if isinstance(error, kind)), None)
    return by_class or FAULTS_BY_ERRNO.get(error.errno or 0, UNKNOWN)


def is_transient(error: BaseException) -> bool:
    """Tell whether the same call may succeed later."""
    return isinstance(error, OSError | RequestFailed) and fault_of(error).transient


def refused(error: OSError | RequestFailed, where: str) -> StorageError:
    """Return the error to raise for a storage's error that is not transient."""
    fault = fault_of(error)
    return StorageError(f"{fault.what} ({in_brief(error)})", where=where, hint=fault.hint)


def in_brief(error: OSError | RequestFailed) -> str:
    """Return the storage's own text of an error."""
    if isinstance(error, RequestFailed):
        return error.text
    return error.strerror or type(error).__name__


def _retrying(longest_s: float, total_s: float) -> Retrying:
    # The first pause is 0.1 s, and each is twice as long as the one before, less a random part of up to a half. mops
    # makes no further call total_s after the first.
    half: dict[str, float] = {"multiplier": 0.05, "max": longest_s / 2}
    return Retrying(
        retry=retry_if_exception(is_transient),
        wait=wait_exponential(**half) + wait_random_exponential(**half),
        stop=stop_before_delay(total_s),
    )


PATIENT = _retrying(longest_s=10.0, total_s=120.0)  # for jobs
BRIEF = _retrying(longest_s=2.0, total_s=6.0)  # for a person who waits at a terminal
