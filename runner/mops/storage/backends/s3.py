"""Objects in S3 and in storages that speak its language, and what the errors of the client (obstore) mean."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import obstore
import pyarrow.fs
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.fsspec import FsspecStore
from obstore.store import S3Store

from mops.storage.backends.base import (
    FAULTS_BY_STATUS,
    NO_CONTAINER,
    SILENT,
    UNKNOWN,
    Data,
    Entries,
    Entry,
    Fault,
    RequestFailed,
    Spool,
    T,
    whole_bytes,
)

_REFUSED = Fault("the storage refuses access", "check the access key or role, and the policy of the bucket")
_NO_CREDENTIALS = Fault(
    "the environment has no usable credentials for S3",
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the pod a role",
)
_CODES = {"NoSuchBucket": NO_CONTAINER, "AccessDenied": _REFUSED}
_STATUS, _CODE = re.compile(r"status code: (\d{3})"), re.compile(r"<Code>(\w+)</Code>")
# The object is at most 5 GiB, S3's limit of one request: only a single request can be conditional everywhere.
_REQUEST_SECONDS = 300


class S3Objects:
    """A prefix in a bucket. obstore reads the credentials from the environment, and finds those of a pod's role.

    The client's own retries are off, because they would multiply with those of mops.
    """

    def __init__(self, url: str):
        bucket, _, self._root = url.partition("://")[2].partition("/")
        endpoints = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        endpoint = next((os.environ[name] for name in endpoints if os.environ.get(name)), "")
        self._options: dict[str, Any] = {
            "client_options": {
                "allow_http": endpoint.startswith("http://"),
                "timeout": timedelta(seconds=_REQUEST_SECONDS),
            },
        }
        self._bucket = bucket
        self._store = S3Store(bucket, prefix=self._root or None, retry_config={"max_retries": 0}, **self._options)

    def put_new(self, path: str, data: Data) -> bool:
        try:
            self._put(path, data, "create")
        except AlreadyExistsError:  # or a conflict (409) with another request, which may still fail
            return False
        return True

    def put(self, path: str, data: Data) -> None:
        self._put(path, data, "overwrite")

    def _put(self, path: str, data: Data, mode: Literal["create", "overwrite"]) -> None:
        whole = whole_bytes(data)
        self._told(lambda: obstore.put(self._store, path, whole, mode=mode, use_multipart=False))

    def get(self, path: str, start: int = 0, stop: int | None = None) -> bytes | None:
        if stop is None:
            return self._unless_absent(lambda: bytes(obstore.get(self._store, path).bytes()))
        return self._unless_absent(lambda: bytes(obstore.get_range(self._store, path, start=start, end=stop)))

    def size(self, path: str) -> int | None:
        return self._unless_absent(lambda: int(obstore.head(self._store, path)["size"]))

    def list(self, folder: str) -> list[Entry]:
        pages = self._told(lambda: [*obstore.list(self._store, folder or None)])
        return [Entry(one["path"], one["size"]) for page in pages for one in page]

    def folders(self, folder: str) -> set[str]:
        found = self._told(lambda: obstore.list_with_delimiter(self._store, folder or None))
        return {prefix.rpartition("/")[2] for prefix in found["common_prefixes"]}

    def scraps(self, folder: str, age_s: float) -> Entries:
        return []  # an object exists whole or not at all

    def prune(self, folder: str) -> None:
        pass  # folders are only parts of names

    def remove(self, path: str) -> None:
        self._unless_absent(lambda: obstore.delete(self._store, path))

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        files = FsspecStore("s3", **self._options)
        key = "/".join(part for part in (self._bucket, self._root, path) if part)
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files)), key

    def spool(self, descriptor: int | None = None) -> Spool:
        return Spool(None, descriptor)

    def _told(self, call: Callable[[], T]) -> T:
        """Return what a request returns. RequestFailed: the client raised another error than AlreadyExistsError."""
        try:
            return call()
        except AlreadyExistsError:
            raise
        except (BaseError, FileNotFoundError) as error:
            raise request_failed(error) from error

    def _unless_absent(self, call: Callable[[], T]) -> T | None:
        try:
            return self._told(call)
        except RequestFailed as failed:
            # A missing bucket has another code, except in the answer to a question for a size, which has no text.
            if not isinstance(failed.__cause__, FileNotFoundError) or failed.code == "NoSuchBucket":
                raise
            return None


def request_failed(error: Exception) -> RequestFailed:
    """Return an error of the client in the form that other modules know."""
    text = str(error).partition("\n\nDebug source")[0]
    status, code = (found and found[1] for found in (_STATUS.search(text), _CODE.search(text)))
    brief = " ".join(filter(None, (type(error).__name__, status, code))) if status else " ".join(text.split())[:200]
    return RequestFailed(_fault_of(error, text, int(status or 0), code), brief, code)


def _fault_of(error: Exception, text: str, status: int, code: str | None) -> Fault:
    if code in _CODES:
        return _CODES[code]
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return _REFUSED
    if "credential" in text.lower() or "/latest/" in text:  # the path at which a cloud's machine has credentials
        return _NO_CREDENTIALS
    return FAULTS_BY_STATUS.get(status, UNKNOWN) if status else SILENT
