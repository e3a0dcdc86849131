"""Objects in buckets of S3 and of Google Cloud, and what the errors of the client (obstore) mean."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import obstore
import pyarrow.fs
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.fsspec import FsspecStore
from obstore.store import GCSStore, S3Store

from mops.errors import UsageError
from mops.storage.backends.base import (
    BUSY,
    FAULTS_BY_STATUS,
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

_WRONG_REGION = Fault("the bucket is in another region", "set AWS_REGION to the region of the bucket")


@dataclass(frozen=True)
class _Cloud:
    """What differs between the clouds."""

    store: type[S3Store | GCSStore]
    endpoints: tuple[str, ...]  # variables with the URL of a storage that is not the cloud's; the first one that is set
    refused: Fault
    no_credentials: Fault
    # A request for credentials, as an error names it: to the cloud, or to the machine that the program runs on.
    credentials: re.Pattern[str]


_CLOUDS: Mapping[str, _Cloud] = {
    "s3": _Cloud(
        S3Store,
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        Fault("the storage refuses access", "check the access key or role, and the policy of the bucket"),
        Fault(
            "the environment has no usable credentials for S3",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the pod a role",
        ),
        re.compile(r"credential|/latest/(api/token|meta-data)", re.IGNORECASE),
    ),
    "gs": _Cloud(
        GCSStore,
        ("GOOGLE_BASE_URL",),
        Fault("the storage refuses access", "check the service account, and its roles on the bucket"),
        Fault(
            "the environment has no usable credentials for Google Cloud",
            "set GOOGLE_APPLICATION_CREDENTIALS to a file with credentials, or give the pod a service account",
        ),
        re.compile(r"credential|oauth2|computeMetadata|metadata\.google", re.IGNORECASE),
    ),
}
_NO_BUCKET = Fault("the bucket does not exist", "create the bucket, or correct the storage's URL")
_CODES = {"NoSuchBucket": _NO_BUCKET, "RequestTimeout": SILENT}
_REFUSED_CODES = frozenset({"AccessDenied", "ExpiredToken", "InvalidToken"})
_STATUSES = FAULTS_BY_STATUS | {404: _NO_BUCKET, 409: BUSY}
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"(?:<Code>|\(code: )(\w+)")  # of an answer, or of one object in an answer to a deletion
_CLI_SECONDS = 60  # a profile may take its credentials from another program, or from a role
_REQUEST_SECONDS = 300  # for a whole part on a slow line; the client's own limit is 30 s


class AwsProfile:
    """Gives obstore, which reads no profiles, the credentials of one: the AWS CLI knows all kinds of them.

    https://docs.aws.amazon.com/cli/latest/reference/configure/export-credentials.html describes the answer.
    """

    def __init__(self, name: str):
        self._name = name
        self._first: dict[str, Any] | None = self._ask()  # here a profile without credentials is an error of the user
        region = self._run("get", "region").stdout.strip()
        self.config = {} if not region or os.environ.get("AWS_REGION") else {"region": region}

    def __call__(self) -> dict[str, Any]:
        """Return the credentials; obstore asks again before they expire."""
        found, self._first = self._first or self._ask(), None
        return found

    def _ask(self) -> dict[str, Any]:
        answer = self._run("export-credentials", "--format", "process")
        if answer.returncode != 0:
            raise UsageError(
                f"the AWS CLI has no credentials of the profile {self._name!r} ({' '.join(answer.stderr.split())})",
                where="AWS_PROFILE",
                hint=f"aws sso login --profile {self._name}, or: aws configure list-profiles",
            )
        try:
            said = json.loads(answer.stdout)
        except ValueError as bad:
            hint = "install version 2 of the AWS CLI"
            raise UsageError("the AWS CLI gives no credentials in JSON", where="AWS_PROFILE", hint=hint) from bad
        until = said.get("Expiration")  # ISO 8601
        return {
            "access_key_id": said["AccessKeyId"],
            "secret_access_key": said["SecretAccessKey"],
            "token": said.get("SessionToken"),
            "expires_at": datetime.fromisoformat(until) if until else None,
        }

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["aws", "configure", *arguments, "--profile", self._name]
        try:
            return subprocess.run(  # noqa: S603 - without a shell
                command,
                stdin=subprocess.DEVNULL,  # a question, such as for a second factor, would not be seen
                capture_output=True,
                text=True,
                check=False,
                timeout=_CLI_SECONDS,
            )
        except FileNotFoundError:
            raise UsageError(
                "the credentials of a profile need the AWS CLI, version 2, which is not installed",
                where="AWS_PROFILE",
                hint="install it, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ) from None
        except subprocess.TimeoutExpired:
            what = f"the AWS CLI gives no answer for the profile {self._name!r} within {_CLI_SECONDS} s"
            raise UsageError(what, where="AWS_PROFILE", hint=f"try it: {' '.join(command)}") from None


class BucketObjects:
    """A prefix in a bucket. obstore reads the credentials from the environment, and finds those of a pod's role.

    The client's own retries are off, because they would multiply with those of mops.
    """

    def __init__(self, url: str):
        self._scheme, _, place = url.partition("://")
        self._cloud = _CLOUDS[self._scheme]
        bucket, _, self._root = place.partition("/")
        variable = next((name for name in self._cloud.endpoints if os.environ.get(name)), self._cloud.endpoints[0])
        endpoint = os.environ.get(variable, "")
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise UsageError(
                f"{endpoint!r} is not the URL of a storage",
                where=variable,
                hint="write it with its scheme: https://storage.example.org",
            )
        self._options: dict[str, Any] = {
            "client_options": {
                "allow_http": endpoint.startswith("http://"),
                "timeout": timedelta(seconds=_REQUEST_SECONDS),
            },
        }
        if self._scheme == "s3" and (name := os.environ.get("AWS_PROFILE")) and not os.environ.get("AWS_ACCESS_KEY_ID"):
            self._options["credential_provider"] = AwsProfile(name)
        self._bucket = bucket
        try:
            self._store = self._cloud.store(
                bucket, prefix=self._root or None, retry_config={"max_retries": 0}, **self._options
            )
        except BaseError as bad:
            what = f"a variable for {self._scheme}:// has a wrong value ({_said(bad)})"
            raise UsageError(what, where="the environment", hint="correct it, or unset it") from bad
        self._has_worked = False  # whether this process has had credentials

    def put_new(self, path: str, data: Data) -> bool:
        try:
            self._put(path, data, "create")
        except RequestFailed as failed:
            # Also after a conflict (409) with another request, which may still fail: the caller looks for the object.
            if not isinstance(failed.__cause__, AlreadyExistsError):
                raise
            return False
        return True

    def put(self, path: str, data: Data) -> None:
        self._put(path, data, "overwrite")

    def _put(self, path: str, data: Data, mode: Literal["create", "overwrite"]) -> None:
        whole = whole_bytes(data)
        # One request, so at most 5 GiB: creates in several parts are conditional only on some servers.
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

    def prune(self, folder: str) -> None:
        pass  # folders are only parts of names

    def remove(self, path: str) -> None:
        self._unless_absent(lambda: obstore.delete(self._store, path))

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        files = FsspecStore("gs" if self._scheme == "gs" else "s3", **self._options)
        key = "/".join(part for part in (self._bucket, self._root, path) if part)
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files)), key

    def spool(self, descriptor: int | None = None) -> Spool:
        return Spool(None, descriptor)

    def _told(self, call: Callable[[], T]) -> T:
        """Return what a request returns. RequestFailed: the client raised an error."""
        try:
            found = call()
        except (BaseError, FileNotFoundError) as error:
            raise self._request_failed(error) from error
        self._has_worked = True
        return found

    def _unless_absent(self, call: Callable[[], T]) -> T | None:
        try:
            return self._told(call)
        except RequestFailed as failed:
            # A missing bucket has another code, except in the answer to a question for a size, which has no text.
            is_absent = isinstance(failed.__cause__, FileNotFoundError) and failed.code != "NoSuchBucket"
            if not is_absent and failed.code != "NoSuchKey":
                raise
            return None

    def _request_failed(self, error: Exception) -> RequestFailed:
        """Return an error of the client in the form that other modules know."""
        text = _said(error)
        status, code = (found and found[1] for found in (_STATUS.search(text), _CODE.search(text)))
        brief = " ".join(filter(None, (type(error).__name__, status, code))) if status or code else text[:200]
        fault = _fault_of(self._cloud, error, text, int(status or 0), code)
        if fault is self._cloud.no_credentials and self._has_worked:  # there were some, so they will come back
            fault = SILENT
        return RequestFailed(fault, brief, code)


def _said(error: Exception) -> str:
    return " ".join(str(error).partition("\n\nDebug source")[0].split())


def _fault_of(cloud: _Cloud, error: Exception, text: str, status: int, code: str | None) -> Fault:
    if code in _CODES:
        return _CODES[code]
    if "External AWS credential provider" in text:  # AwsProfile has raised an error
        return cloud.no_credentials
    by_status = _STATUSES.get(status, UNKNOWN if status else SILENT)
    if status and by_status.transient:
        return by_status
    is_refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    if is_refused or code in _REFUSED_CODES or (code and by_status is REFUSED):
        return cloud.refused
    if "configured region" in text:
        return _WRONG_REGION
    return cloud.no_credentials if cloud.credentials.search(text) else by_status
