"""The files of one storage, in any backend: paths, retries, errors.

Paths are relative to the storage's root and separated by ``/``. paths.py and joblog/ say what they mean.
:meth:`Files._answered` retries and translates the errors of a backend, by the tables in backends/.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tenacity import RetryError, Retrying

from mops.errors import InternalError, StorageUnavailable, UsageError, absolute, check_text_path, path_refused
from mops.storage.backends.base import (
    BRIEF,
    PATIENT,
    Backend,
    Data,
    Entry,
    Put,
    RemoteFile,
    RequestFailed,
    Spool,
    T,
    fault_of,
    in_brief,
    refused,
    whole_bytes,
)
from mops.storage.backends.local import LocalFolder

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs

AT_ONCE = 64  # requests that one call sends at a time: at 20 ms each, it reads thousands of records in seconds
_CREDENTIALS = re.compile(r"^[^/@]*:.*@|\?.*", re.DOTALL)  # after the scheme: NAME:KEY@ (a key may have slashes), ?KEY


class Files:
    """Files under one root; ``url`` is the root, for errors.

    If the storage refuses, is full, or is out of reach, methods raise :class:`mops.errors.StorageError`.
    If it does not answer in time, they raise its subclass :class:`mops.errors.StorageUnavailable`.
    """

    def __init__(self, backend: Backend, url: str, retrying: Retrying = PATIENT):
        self._backend, self.url, self._retrying = backend, url, retrying
        self.folder = url if "://" not in url else None  # of the storage on this machine; None: it is not a folder

    @classmethod
    def open(cls, url: str, *, retrying: Retrying = PATIENT) -> Files:
        """Open a storage; mops sends no request yet.

        Parameters
        ----------
        url
            A folder, ``file:///folder``, ``memory://name``, ``s3://bucket/prefix``, ``gs://bucket/prefix`` or
            ``abfs://container/prefix``. Credentials come from the environment: ``AWS_ACCESS_KEY_ID``,
            ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_CONNECTION_STRING``, or others that obstore and adlfs
            read.

        Raises
        ------
        UsageError
            mops does not write to this kind of storage, or the environment holds no credentials for it.
        """
        canonical = canonical_url(url)
        scheme, separator, name = canonical.partition("://")
        backend: Backend
        if not separator:
            backend = LocalFolder(Path(canonical))
        elif scheme == "memory":
            from mops.storage.backends.memory import ProcessMemory  # noqa: PLC0415 - fsspec and Arrow take 0.1 s

            backend = ProcessMemory(name)
        elif scheme in ("s3", "gs"):
            from mops.storage.backends.buckets import BucketObjects  # noqa: PLC0415 - as above

            backend = BucketObjects(canonical)
        else:  # what is left: `canonical_url` has refused all other schemes
            from mops.storage.backends.azure import AzureBlobs  # noqa: PLC0415 - its client takes 0.15 s

            backend = AzureBlobs(canonical)
        return cls(backend, canonical, retrying)

    def brief(self) -> Files:
        """Return the same files for a caller who cannot wait: mops gives up after seconds instead of minutes."""
        return Files(self._backend, self.url, BRIEF)

    def put_new(self, path: str, data: Data) -> Put:
        """Create a file, whole or not at all, unless it exists. The file is durable on return.

        If the storage loses an answer, mops repeats the request, and the answer is ``SAME``. Only ``OTHER`` means that
        the file is not the caller's. After StorageUnavailable, the request may still take effect at any later moment.
        """

        def put() -> Put:
            if self._backend.put_new(path, data):
                return Put.CREATED
            there = self._backend.get(path)
            if there is None:  # it cannot be read yet, or someone has just removed it
                raise TimeoutError(errno.ETIMEDOUT, "the file exists and cannot be read")
            return Put.SAME if there == whole_bytes(data) else Put.OTHER

        return self._answered(path, put)

    def create(self, path: str, data: Data) -> None:
        """Create a file of whose path only this process knows; InternalError: another process has written it."""
        if self.put_new(path, data) is Put.OTHER:
            what = "another process has written a file that belongs to this one"
            raise InternalError(what, where=f"{self.url}/{path}", hint="report this; the results are unharmed")

    def put(self, path: str, data: Data) -> None:
        """Create or overwrite a file. Readers see the old bytes or the new. The file is durable on return."""
        self._answered(path, lambda: self._backend.put(path, data))

    def get(self, path: str) -> bytes:
        """Return a file's bytes; FileNotFoundError: the file does not exist."""
        return self._present(path, self._get(path))

    def reader(self, path: str) -> pa.NativeFile:
        """Open a file for reading at any position: the file itself if it is local, else the pieces that are read.

        FileNotFoundError: the file does not exist. Later reads raise StorageError, too.
        """
        import pyarrow as pa  # noqa: PLC0415 - Arrow takes 0.3 s, and records need none
        from pyarrow.fs import LocalFileSystem  # noqa: PLC0415 - as above

        def load(start: int, stop: int) -> bytes:
            return self._present(path, self._answered(path, lambda: self._backend.get(path, start, stop)))

        filesystem, inner = self.arrow(path)
        size = self.size(path)  # raises if the file does not exist
        if isinstance(filesystem, LocalFileSystem):
            return pa.OSFile(inner)
        return pa.PythonFile(RemoteFile(size, load), mode="r")

    def get_many(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of each file, None for an absent file; :data:`AT_ONCE` requests at a time."""
        return _at_once(self._get, paths)

    def size(self, path: str) -> int:
        """Return a file's size in bytes; FileNotFoundError: the file does not exist."""
        return self._present(path, self._answered(path, lambda: self._backend.size(path)))

    def list(self, folder: str) -> list[Entry]:
        """Return every file below a folder ("": the root), sorted by path; none: the folder does not exist."""
        found = self._answered(folder, lambda: self._backend.list(folder))
        return sorted(found, key=lambda entry: entry.path)

    def folders(self, folder: str) -> Sequence[str]:
        """Return the sorted names of the folders directly below a folder ("": the root) that hold files.

        The storage does not list their files: this is quick where :meth:`list` would return millions.
        """
        return sorted(self._answered(folder, lambda: self._backend.folders(folder)))

    def prune(self, folder: str) -> None:
        """Remove a folder and the folders in it, unless they hold files. What killed writers left is removed."""
        self._answered(folder, lambda: self._backend.prune(folder))

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files, those that exist. After an error, some are removed."""
        _at_once(lambda path: self._answered(path, lambda: self._backend.remove(path)), paths)

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        """Return a pyarrow file system and the path in it. The storage's own client retries reads through it."""
        return self._backend.arrow(path)

    def spool(self, descriptor: int | None = None) -> Spool:
        """Return a spool for a later :meth:`create`, which lies in the storage's folder if it has one.

        ``descriptor`` is a file with the content; None: a new, empty file.
        """
        return self._backend.spool(descriptor)

    def _get(self, path: str) -> bytes | None:
        return self._answered(path, lambda: self._backend.get(path))

    def _present(self, path: str, found: T | None) -> T:
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.url}/{path}")
        return found

    def _answered(self, path: str, call: Callable[[], T]) -> T:
        where = f"{self.url}/{path}"
        try:
            return self._retrying(call)
        except RetryError as gave_up:
            n_calls, error = gave_up.last_attempt.attempt_number, gave_up.last_attempt.exception()
            assert isinstance(error, OSError | RequestFailed)
            fault = fault_of(error)
            raise StorageUnavailable(
                f"{fault.what}, {n_calls} times in a row ({in_brief(error)})", where=where, hint=fault.hint
            ) from error
        except (OSError, RequestFailed) as error:
            raise refused(error, where) from error


def _at_once(call: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    if len(paths) < 2:
        return [call(path) for path in paths]
    with ThreadPoolExecutor(min(AT_ONCE, len(paths)), "mops-files") as threads:
        return list(threads.map(call, paths))


def canonical_url(url: str) -> str:
    """Return the only spelling of a storage's URL: an absolute folder, or a URL without a slash at its end.

    UsageError: mops does not write to this kind of storage.
    """
    scheme, separator, rest = url.partition("://")
    match scheme if separator else None:
        case None if re.match("[a-z][a-z0-9]+:/", url):
            what = "a URL has '://' after the kind of its storage"
        case None:
            return _folder(url)
        case "file" if rest.startswith("/"):
            return _folder(unquote(rest))
        case "memory":
            return f"memory://{rest.rstrip('/')}"
        case _ if _CREDENTIALS.search(rest):
            raise UsageError(
                "the URL contains credentials",
                where=f"{scheme}://{_CREDENTIALS.sub('...', rest)}",
                hint="set AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, AWS_ACCESS_KEY_ID "
                "or GOOGLE_APPLICATION_CREDENTIALS",
            )
        case "abfs" | "abfss" | "az" | "s3" | "gs" if rest.strip("/"):
            return url.rstrip("/")
        case _:
            what = "mops does not know this kind of storage"
    hint = (
        "use a folder, file:///folder, memory://name, s3://bucket/prefix, gs://bucket/prefix or abfs://container/prefix"
    )
    raise UsageError(what, where=_CREDENTIALS.sub("...", url) if separator else url.partition(":")[0], hint=hint)


def _folder(path: str) -> str:
    try:  # missing access and full disks show up at the first use of the storage
        found = absolute(Path(path).expanduser())
        found.stat()
    except OSError as bad:
        if bad.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise path_refused(path, "the storage's folder", bad) from bad
    except (ValueError, RuntimeError) as bad:  # a null character, or ~user of an unknown user
        raise path_refused(path, "the storage's folder", bad) from bad
    check_text_path(found, "the storage's folder")
    return str(found)
