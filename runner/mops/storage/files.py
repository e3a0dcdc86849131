"""Files in a local folder, in memory, or in Azure Blob storage: the only module that knows which.

Paths are relative to the storage's root and separated by ``/``. What a path means is paths.py's and log.py's.
A fault of the storage becomes an error of ours in :meth:`Files._answered`, by the tables in faults.py.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import random
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs
from azure.core import exceptions as azure
from fsspec.asyn import sync
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

from mops.errors import StorageUnavailable, UsageError, path_refused
from mops.storage.backends.faults import code_of, fault_of, in_brief, refused
from mops.storage.backends.spool import Spool

AT_ONCE = 64
"""Requests that one call may have under way. At 20 ms each, thousands of records are read in seconds."""

Data: TypeAlias = bytes | bytearray | memoryview | pa.Buffer | Spool
"""A file's content."""

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A file in a listing; ``size`` in bytes."""

    path: str
    size: int


Entries: TypeAlias = list[Entry]  # in classes with a method of that name, `list` is the method


@dataclass(frozen=True)
class Retry:
    """How often transient faults are met with another try.

    Parameters
    ----------
    first_s, longest_s
        The first pause and the longest; each is twice the one before, less a random part of up to a half.
    total_s
        Seconds after the first try at which none is begun any more.
    sleep, clock, jitter
        ``time.sleep``, a monotonic clock (s), and a source of random numbers in [0, 1).
    """

    first_s: float = 0.1
    longest_s: float = 10.0
    total_s: float = 120.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random

    def attempts(self) -> Iterator[int]:
        """Count the tries: 1 at once, each further one after a pause, until the time is used up."""
        start, pause_s = self.clock(), self.first_s
        for attempt in itertools.count(1):
            yield attempt
            wait_s = pause_s * (1 - self.jitter() / 2)
            if self.clock() - start + wait_s > self.total_s:
                return
            self.sleep(wait_s)
            pause_s = min(2 * pause_s, self.longest_s)


PATIENT = Retry()
BRIEF = Retry(longest_s=2.0, total_s=6.0)


class Backend(Protocol):
    """One kind of storage. Each call is tried once; what it raises is in the tables of faults."""

    def put_new(self, path: str, data: Data) -> bool:
        """As :meth:`Files.put_new`."""

    def put(self, path: str, data: Data) -> None:
        """As :meth:`Files.put`."""

    def get(self, path: str) -> bytes | None:
        """Return a file's bytes; None: absent."""

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None: absent."""

    def list(self, folder: str) -> list[Entry]:
        """As :meth:`Files.list`, in any order."""

    def folders(self, folder: str) -> set[str]:
        """As :meth:`Files.folders`."""

    def scraps(self, folder: str, age_s: float) -> Entries:
        """As :meth:`Files.scraps`, in any order."""

    def prune(self, folder: str) -> None:
        """As :meth:`Files.prune`."""

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        """As :meth:`Files.arrow`."""

    def free_bytes(self) -> int | None:
        """As :meth:`Files.free_bytes`."""

    def spool(self) -> Spool:
        """As :meth:`Files.spool`."""


class Files:
    """Files under one root.

    Parameters
    ----------
    backend
        The storage; usually it comes from :meth:`open`.
    url
        The root, as errors name it.
    retry
        How transient faults are met.
    """

    def __init__(self, backend: Backend, url: str, retry: Retry = PATIENT):
        self._backend, self.url, self._retry = backend, url, retry

    @classmethod
    def open(cls, url: str, *, retry: Retry = PATIENT) -> Files:
        """Open a storage; nothing is sent yet.

        Parameters
        ----------
        url
            A folder, ``file:///folder``, ``memory://name`` or ``abfs://container/prefix``. Credentials come
            from the environment: ``AZURE_STORAGE_CONNECTION_STRING``, or what else adlfs reads.
        retry
            How transient faults are met.

        Raises
        ------
        UsageError
            mops does not write to this kind of storage, or the environment holds no credentials for it.
        """
        canonical = canonical_url(url)
        match canonical.partition("://"):
            case (folder, "", _):
                return cls(_Local(Path(folder)), canonical, retry)
            case ("memory", _, name):
                return cls(_Memory(name), canonical, retry)
        return cls(_Azure(canonical), canonical, retry)

    def brief(self) -> Files:
        """Return the same files for who waits at a terminal: given up after seconds, where a job has minutes."""
        return Files(self._backend, self.url, BRIEF)

    def put_new(self, path: str, data: Data) -> bool:
        """Create a file, whole or not at all, unless it exists; durable on return.

        Returns
        -------
        bool
            True: created by this call. False: it exists, perhaps through this very call, when an answer was
            lost and the request sent again: who needs to know compares the contents.

        Raises
        ------
        StorageUnavailable
            No answer in time; the request may still take effect, at any later moment.
        StorageError
            The storage refuses, or is full.
        """
        return self._answered(path, lambda: self._backend.put_new(path, data))

    def put(self, path: str, data: Data) -> None:
        """Create or overwrite a file; readers see the old bytes or the new. Durable on return.

        Raises
        ------
        StorageError
            The storage refuses, is out of reach, or is full.
        """
        self._answered(path, lambda: self._backend.put(path, data))

    def get(self, path: str) -> bytes:
        """Return a file's bytes.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        StorageError
            The storage refuses, or is out of reach.
        """
        return self._present(path, self._get(path))

    def reader(self, path: str) -> pa.NativeFile:
        """Return a file for reading at any position: itself where it is local, else a temporary copy without a name.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        StorageError
            The storage refuses, or is out of reach, or there is no room for the copy.
        """
        filesystem, inner = self.arrow(path)
        if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
            self.size(path)  # raises what is to be raised
            return pa.OSFile(inner)
        copy = Spool()
        copy.write(self.get(path))
        return copy.opened()

    def get_many(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of files, None for an absent one; :data:`AT_ONCE` requests at a time.

        Raises
        ------
        StorageError
            The storage refuses, or is out of reach.
        """
        return _at_once(self._get, paths)

    def size(self, path: str) -> int:
        """Return a file's size in bytes; raises as :meth:`get`."""
        return self._present(path, self._answered(path, lambda: self._backend.size(path)))

    def list(self, folder: str) -> list[Entry]:
        """Return every file below a folder ("": the root), by path; none when there is no such folder.

        Raises
        ------
        StorageError
            The storage refuses, or is out of reach.
        """
        found = self._answered(folder, lambda: self._backend.list(folder))
        return sorted(found, key=lambda entry: entry.path)

    def folders(self, folder: str) -> Sequence[str]:
        """Return the names of the folders directly below a folder ("": the root) that hold files, in order.

        What lies in them is not looked through: this is quick where :meth:`list` would bring millions of files.

        Raises
        ------
        StorageError
            The storage refuses, or is out of reach.
        """
        return sorted(self._answered(folder, lambda: self._backend.folders(folder)))

    def scraps(self, folder: str, age_s: float) -> Sequence[Entry]:
        """Return what killed writers left below a folder, which :meth:`list` does not show; by path.

        Parameters
        ----------
        age_s
            Only what nobody has written to for so many seconds.

        Raises
        ------
        StorageError
            The storage refuses, or is out of reach.
        """
        found = self._answered(folder, lambda: self._backend.scraps(folder, age_s))
        return sorted(found, key=lambda entry: entry.path)

    def prune(self, folder: str) -> None:
        """Remove a folder and those in it, as far as no file is left in them.

        Raises
        ------
        StorageError
            The storage refuses, or is out of reach.
        """
        self._answered(folder, lambda: self._backend.prune(folder))

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; one that is absent already is fine.

        Raises
        ------
        StorageError
            The storage refuses, or is out of reach; some files may be gone.
        """
        _at_once(lambda path: self._answered(path, lambda: self._backend.remove(path)), paths)

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        """Return a pyarrow file system and the path in it, for ``pyarrow.dataset`` and ``pyarrow.parquet``.

        What is read through it is retried by the storage's own client, not by ours.
        """
        return self._backend.arrow(path)

    def spool(self) -> Spool:
        """Return an empty spool for a file that is to be put here: where the storage is a folder, in that folder."""
        return self._backend.spool()

    def free_bytes(self) -> int | None:
        """Return how many bytes there is room for; None where the storage cannot tell.

        Raises
        ------
        StorageError
            The storage refuses, or is out of reach.
        """
        return self._answered("", self._backend.free_bytes)

    def _get(self, path: str) -> bytes | None:
        return self._answered(path, lambda: self._backend.get(path))

    def _present(self, path: str, found: T | None) -> T:
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.url}/{path}")
        return found

    def _answered(self, path: str, call: Callable[[], T]) -> T:
        """Try a call until it is answered; its faults become ours here."""
        where = f"{self.url}/{path}"
        for attempt in self._retry.attempts():  # noqa: B007 - named in the message below
            try:
                return call()
            except (OSError, azure.AzureError) as error:
                fault, last = fault_of(error), error
                if not fault.transient:
                    raise refused(error, where) from error
        raise StorageUnavailable(
            f"{fault.what}, {attempt} times in a row ({in_brief(last)})", where=where, hint=fault.hint
        ) from last


def _whole(data: Data) -> bytes:
    return data.read() if isinstance(data, Spool) else bytes(data)


def _at_once(call: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    if len(paths) < 2:
        return [call(path) for path in paths]
    with ThreadPoolExecutor(min(AT_ONCE, len(paths)), "mops-files") as threads:
        return list(threads.map(call, paths))


def canonical_url(url: str) -> str:
    """Return a storage's one name, which :attr:`Files.url` is: an absolute folder, or a URL without a slash at its end.

    Raises
    ------
    UsageError
        mops does not write to this kind of storage.
    """
    scheme, separator, rest = url.partition("://")
    match scheme if separator else None:
        case None:
            return _folder(url)
        case "file" if rest.startswith("/"):
            return _folder(unquote(rest))
        case "memory":
            return f"memory://{rest.rstrip('/')}"
        case "abfs" | "abfss" | "az" if rest.strip("/") and "?" not in rest:
            return url.rstrip("/")
    raise _no_such_storage(scheme, url)


def _folder(path: str) -> str:
    """Return a folder's absolute path; what only a look at the storage tells (no access, a full disk) is told then."""
    try:
        absolute = Path(path).expanduser().absolute()
        absolute.stat()
    except OSError as bad:
        if bad.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise path_refused(path, "the storage's folder", bad) from bad
    except (ValueError, RuntimeError) as bad:  # a null character; a home folder that nobody has
        raise path_refused(path, "the storage's folder", bad) from bad
    return str(absolute)


def _no_such_storage(scheme: str, url: str) -> UsageError:
    offered = "a folder, file:///folder, memory://name or abfs://container/prefix"
    if scheme in {"abfs", "abfss", "az"} and "?" in url:
        return UsageError(
            "credentials do not belong into the URL",
            where=url.partition("?")[0],
            hint="set AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING",
        )
    if scheme in {"s3", "s3a", "gs", "gcs"}:
        return UsageError(f"{scheme}:// is untested with mops and refused", where=url, hint=f"use {offered}")
    return UsageError("mops does not know this kind of storage", where=url, hint=f"use {offered}")


class _Local:
    """A folder. Needs hard links, and an fsync that means it."""

    def __init__(self, root: Path):
        self._root = root

    def put_new(self, path: str, data: Data) -> bool:
        final = self._root / path
        with _written_beside(final, data) as temporary:
            try:
                os.link(temporary, final)
                created = True
            except FileExistsError:
                created = False
            # Also when it exists: what is decided on it must not outlive it.
            _sync_folder(final.parent)
        return created

    def put(self, path: str, data: Data) -> None:
        final = self._root / path
        with _written_beside(final, data) as temporary:
            temporary.replace(final)
            _sync_folder(final.parent)

    def get(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def size(self, path: str) -> int | None:
        try:
            found = (self._root / path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if stat.S_ISDIR(found.st_mode) else found.st_size

    def list(self, folder: str) -> list[Entry]:
        return [self._entry(path, found) for path, found in self._files(folder) if not _is_scrap(path)]

    def folders(self, folder: str) -> set[str]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._root / folder) as entries:
            return {entry.name for entry in entries if entry.is_dir() and any(_walk(entry.path))}
        return set()

    def scraps(self, folder: str, age_s: float) -> Entries:
        before = time.time() - age_s
        found = self._files(folder)
        return [self._entry(path, file) for path, file in found if _is_scrap(path) and file.st_mtime <= before]

    def prune(self, folder: str) -> None:
        _prune(self._root / folder)

    def _files(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        for path in _walk(str(self._root / folder)):
            with suppress(FileNotFoundError):
                yield path, Path(path).stat()

    def _entry(self, path: str, found: os.stat_result) -> Entry:
        return Entry(Path(path).relative_to(self._root).as_posix(), found.st_size)

    def remove(self, path: str) -> None:
        with suppress(NotADirectoryError):
            (self._root / path).unlink(missing_ok=True)

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        return pyarrow.fs.LocalFileSystem(), str(self._root / path)

    def free_bytes(self) -> int | None:
        there = next(folder for folder in (self._root, *self._root.parents) if folder.exists())
        found = os.statvfs(there)
        return found.f_bavail * found.f_frsize  # what others than root may use

    def spool(self) -> Spool:
        return Spool(self._root)


@contextmanager
def _written_beside(final: Path, data: Data) -> Iterator[Path]:
    """Write a temporary file into the folder of ``final``, durable; it is gone afterwards."""
    _make_folder(final.parent)
    temporary = final.with_name(f".{final.name}.{os.urandom(8).hex()}.tmp")
    try:
        if not (isinstance(data, Spool) and data.link(temporary)):
            with _created(temporary) as file:
                file.writelines(data if isinstance(data, Spool) else [data])
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _created(temporary: Path) -> BinaryIO:
    try:
        return temporary.open("xb")
    except FileNotFoundError:  # its folder was empty, and went with a job that was deleted just now
        _make_folder(temporary.parent)
        return temporary.open("xb")


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make the folder's entries durable; an fsync of a file says nothing about its name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _walk(folder: str) -> Iterator[str]:
    """Yield the path of each file; what vanishes is left out. ``os.walk`` would hide faults."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _walk(entry.path)
            else:
                yield entry.path


def _is_scrap(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".tmp")


def _prune(folder: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        with os.scandir(folder) as entries:
            inner = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for one in inner:
            _prune(one)
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


class _SharedMemory(MemoryFileSystem):  # type: ignore[misc]
    """fsspec's, but each reader has its own position: fsspec hands one file object to all."""

    cachable = False

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb":
            return io.BytesIO(self.cat_file(path))
        return super()._open(path, mode, **options)


class _Memory:
    """The process's memory, the same for all who open the same name; for trials and tests."""

    _lock = threading.Lock()

    def __init__(self, root: str):
        self._fs, self._root = _SharedMemory(), f"/{root.strip('/')}".rstrip("/")

    def put_new(self, path: str, data: Data) -> bool:
        with self._lock:
            if self._fs.isfile(f"{self._root}/{path}"):
                return False
            self._fs.pipe_file(f"{self._root}/{path}", _whole(data))
            return True

    def put(self, path: str, data: Data) -> None:
        with self._lock:
            self._fs.pipe_file(f"{self._root}/{path}", _whole(data))

    def get(self, path: str) -> bytes | None:
        with self._lock, suppress(FileNotFoundError):
            return bytes(self._fs.cat_file(f"{self._root}/{path}"))
        return None

    def size(self, path: str) -> int | None:
        data = self.get(path)
        return None if data is None else len(data)

    def list(self, folder: str) -> list[Entry]:
        with self._lock:  # fsspec's walk looks at each file a moment after it made its list of them
            found = self._fs.find(f"{self._root}/{folder}", detail=True)
        return [Entry(path.removeprefix(f"{self._root}/"), info["size"]) for path, info in found.items()]

    def folders(self, folder: str) -> set[str]:
        below = f"{folder}/".lstrip("/")
        # A "folder" that is a file lists itself.
        inner = [entry.path.removeprefix(below) for entry in self.list(folder) if entry.path.startswith(below)]
        return {path.partition("/")[0] for path in inner if "/" in path}

    def scraps(self, folder: str, age_s: float) -> Entries:
        return []  # a file is written at once

    def prune(self, folder: str) -> None:
        pass  # folders are only parts of names

    def remove(self, path: str) -> None:
        with self._lock, suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{path}")

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(self._fs)), f"{self._root}/{path}"

    def free_bytes(self) -> int | None:
        return None

    def spool(self) -> Spool:
        return Spool()


class _Azure:
    """A container of Azure Blob storage. adlfs finds the credentials, and serves pyarrow.

    Requests go to the Azure client below adlfs: an upload of up to 64 MiB is one Put Blob there, a larger one
    becomes visible with one Put Block List, and either can be conditional. The client's own retries (3, after
    15, 18 and 24 s) are off: they would multiply with ours.
    """

    def __init__(self, url: str):
        try:
            self._fs, path = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        except ValueError as bad:
            raise UsageError(
                "the environment holds no usable credentials for Azure Blob storage",
                where=url,
                hint="set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and a key",
            ) from bad
        self._container, _, self._root = path.strip("/").partition("/")

    def put_new(self, path: str, data: Data) -> bool:
        try:
            self._upload(path, data, overwrite=False)
        except azure.ResourceExistsError as error:
            # The client calls other conflicts so too, such as a container that is being deleted.
            if code_of(error) != "BlobAlreadyExists":
                raise
            return False
        return True

    def put(self, path: str, data: Data) -> None:
        self._upload(path, data, overwrite=True)

    def _upload(self, path: str, data: Data, *, overwrite: bool) -> None:
        """Send ``If-None-Match: *`` unless ``overwrite``."""
        whole = _whole(data)
        self._ask(self._blob(path).upload_blob, whole, length=len(whole), overwrite=overwrite, max_concurrency=4)

    def get(self, path: str) -> bytes | None:
        async def download() -> bytes:
            stream = await self._blob(path).download_blob(max_concurrency=4, retry_total=0)
            return bytes(await stream.readall())

        return self._unless_absent(lambda: sync(self._fs.loop, download))

    def size(self, path: str) -> int | None:
        found = self._unless_absent(lambda: self._ask(self._blob(path).get_blob_properties))
        return None if found is None else int(found.size)

    def list(self, folder: str) -> list[Entry]:
        async def entries() -> list[Entry]:
            blobs = self._fs.service_client.get_container_client(self._container).list_blobs(
                name_starts_with=f"{self._key(folder)}/".lstrip("/"), include=["metadata"], retry_total=0
            )
            return [Entry(self._path(blob.name), blob.size) async for blob in blobs if not _is_folder(blob)]

        return list(sync(self._fs.loop, entries))

    def folders(self, folder: str) -> set[str]:
        async def names() -> set[str]:
            found = self._fs.service_client.get_container_client(self._container).walk_blobs(
                name_starts_with=f"{self._key(folder)}/".lstrip("/"), delimiter="/", retry_total=0
            )
            return {item.name[:-1].rpartition("/")[2] async for item in found if item.name.endswith("/")}

        return set(sync(self._fs.loop, names))

    def scraps(self, folder: str, age_s: float) -> Entries:
        return []  # a blob is there whole or not at all

    def prune(self, folder: str) -> None:
        pass  # folders are only parts of names

    def remove(self, path: str) -> None:
        self._unless_absent(lambda: self._ask(self._blob(path).delete_blob))

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(self._fs)), f"{self._container}/{self._key(path)}"

    def free_bytes(self) -> int | None:
        return None

    def spool(self) -> Spool:
        return Spool()

    def _ask(self, call: Callable[..., Any], *args: object, **options: object) -> Any:
        return sync(self._fs.loop, call, *args, retry_total=0, **options)

    def _unless_absent(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except azure.ResourceNotFoundError as error:
            # Not any 404: without its container nothing is absent, everything is wrong.
            if code_of(error) != "BlobNotFound":
                raise
            return None

    def _blob(self, path: str) -> Any:
        return self._fs.service_client.get_blob_client(self._container, self._key(path))

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._root, path) if part)

    def _path(self, key: str) -> str:
        return key.removeprefix(f"{self._root}/") if self._root else key


def _is_folder(blob: Any) -> bool:
    """Accounts with a hierarchical namespace list their folders among the blobs."""
    return (blob.metadata or {}).get("hdi_isfolder") == "true"
