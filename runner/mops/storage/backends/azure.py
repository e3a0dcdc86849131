"""Files in Azure Blob storage, and what the errors of its client mean."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.fs
from azure.core import exceptions as azure
from fsspec.asyn import sync
from fsspec.core import url_to_fs

from mops.errors import UsageError
from mops.storage.backends.base import (
    BUSY,
    FAULTS_BY_STATUS,
    NO_CONTAINER,
    REFUSED,
    SILENT,
    UNKNOWN,
    Data,
    Entry,
    Fault,
    RequestFailed,
    Spool,
    T,
    whole_bytes,
)

FAULTS_BY_CODE = {
    "ContainerNotFound": NO_CONTAINER,
    "ContainerBeingDeleted": NO_CONTAINER,
    "ResourceNotFound": NO_CONTAINER,
    "ServerBusy": BUSY,
    "InternalError": BUSY,
    "OperationTimedOut": BUSY,
}
# These classes count more than an error's status. The first match counts.
FAULTS_BY_CLASS = (
    (azure.ServiceRequestError, SILENT),
    (azure.ServiceResponseError, SILENT),
    (azure.IncompleteReadError, SILENT),
    (azure.DecodeError, SILENT),
)


class AzureBlobs:
    """A container of Azure Blob storage. adlfs finds the credentials, and serves pyarrow.

    Requests go to the Azure client below adlfs. It uploads up to 64 MiB in one Put Blob, and more as blocks that
    become visible with one Put Block List. Both can be conditional. The client's own retries (3, after 15, 18 and
    24 s) are off, because they would multiply with those of mops.
    """

    def __init__(self, url: str):
        try:
            self._fs, path = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        except ValueError as bad:
            raise UsageError(
                "the environment has no usable credentials for Azure Blob storage",
                where=url,
                hint="set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and a key",
            ) from bad
        self._container, _, self._root = path.strip("/").partition("/")

    def put_new(self, path: str, data: Data) -> bool:
        try:
            self._upload(path, data, overwrite=False)
        except RequestFailed as failed:
            # There are other conflicts too, such as a container that is being deleted.
            if failed.code != "BlobAlreadyExists":
                raise
            return False
        return True

    def put(self, path: str, data: Data) -> None:
        self._upload(path, data, overwrite=True)

    def _upload(self, path: str, data: Data, *, overwrite: bool) -> None:  # False sends If-None-Match: *
        whole = whole_bytes(data)
        self._ask(self._blob(path).upload_blob, whole, length=len(whole), overwrite=overwrite, max_concurrency=4)

    def get(self, path: str, start: int = 0, stop: int | None = None) -> bytes | None:
        part = {} if stop is None else {"offset": start, "length": stop - start}

        async def download() -> bytes:
            stream = await self._blob(path).download_blob(max_concurrency=4, retry_total=0, **part)
            return bytes(await stream.readall())

        return self._unless_absent(lambda: self._wait(download))

    def size(self, path: str) -> int | None:
        found = self._unless_absent(lambda: self._ask(self._blob(path).get_blob_properties))
        return None if found is None else int(found.size)

    def list(self, folder: str) -> list[Entry]:
        async def entries() -> list[Entry]:
            blobs = self._fs.service_client.get_container_client(self._container).list_blobs(
                name_starts_with=f"{self._key(folder)}/".lstrip("/"), include=["metadata"], retry_total=0
            )
            # An account with a hierarchical namespace lists its folders among the blobs.
            return [
                Entry(self._path(blob.name), blob.size)
                async for blob in blobs
                if (blob.metadata or {}).get("hdi_isfolder") != "true"
            ]

        return list(self._wait(entries))

    def folders(self, folder: str) -> set[str]:
        async def names() -> set[str]:
            found = self._fs.service_client.get_container_client(self._container).walk_blobs(
                name_starts_with=f"{self._key(folder)}/".lstrip("/"), delimiter="/", retry_total=0
            )
            return {item.name[:-1].rpartition("/")[2] async for item in found if item.name.endswith("/")}

        return set(self._wait(names))

    def prune(self, folder: str) -> None:
        pass  # folders are only parts of names

    def remove(self, path: str) -> None:
        self._unless_absent(lambda: self._ask(self._blob(path).delete_blob))

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        return pyarrow.fs.PyFileSystem(_Handler(self._fs)), f"{self._container}/{self._key(path)}"

    def spool(self, descriptor: int | None = None) -> Spool:
        return Spool(None, descriptor)

    def _ask(self, call: Callable[..., Any], *args: object, **options: object) -> Any:
        return self._wait(call, *args, retry_total=0, **options)

    def _wait(self, call: Callable[..., Any], *args: object, **options: object) -> Any:
        """Wait for what a coroutine function returns. RequestFailed: the client raised an error."""
        try:
            return sync(self._fs.loop, call, *args, **options)
        except azure.AzureError as error:
            raise request_failed(error) from error

    def _unless_absent(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except RequestFailed as failed:
            # A 404 without this code means that the container is missing.
            if failed.code != "BlobNotFound":
                raise
            return None

    def _blob(self, path: str) -> Any:
        return self._fs.service_client.get_blob_client(self._container, self._key(path))

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._root, path) if part)

    def _path(self, key: str) -> str:
        return key.removeprefix(f"{self._root}/") if self._root else key


class _Handler(pyarrow.fs.FSSpecHandler):  # type: ignore[misc]
    """Opens blobs for Arrow. A blob that is removed while it is read is a file that does not exist."""

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(_Blob(self.fs.open(path, mode="rb"), path), mode="r")


class _Blob(io.RawIOBase):
    """A blob that adlfs has opened. adlfs translates the error for a missing blob only when it opens one."""

    def __init__(self, blob: Any, path: str):
        self._file, self._path = blob, path

    def read(self, size: int = -1) -> bytes:
        try:
            return bytes(self._file.read(size))
        except azure.ResourceNotFoundError as removed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path) from removed

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


def request_failed(error: azure.AzureError) -> RequestFailed:
    """Return an error of the client in the form that other modules know."""
    return RequestFailed(azure_fault_of(error), _in_brief(error), _code_of(error))


def azure_fault_of(error: azure.AzureError) -> Fault:
    """Return the meaning of an error."""
    for kind, fault in FAULTS_BY_CLASS:
        if isinstance(error, kind):
            return fault
    default = REFUSED if isinstance(error, azure.ClientAuthenticationError) else UNKNOWN
    by_status = FAULTS_BY_STATUS.get(getattr(error, "status_code", None) or 0, default)
    return FAULTS_BY_CODE.get(_code_of(error) or "", by_status)


def _code_of(error: azure.AzureError) -> str | None:
    code = getattr(error, "error_code", None)
    return None if code is None else str(getattr(code, "value", code))


def _in_brief(error: azure.AzureError) -> str:
    status = getattr(error, "status_code", None)
    return " ".join(str(part) for part in (type(error).__name__, status, _code_of(error)) if part)
