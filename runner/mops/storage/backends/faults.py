"""Tables of storage errors: what each means, and what to do about it."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from azure.core import exceptions as azure

from mops.errors import StorageError


@dataclass(frozen=True)
class Fault:
    """The meaning of an error. mops retries after ``transient`` faults."""

    what: str
    hint: str
    transient: bool = False


_SILENT = Fault(
    "the storage does not answer",
    "check the network and, for Azure, the account's name, then resume the job",
    transient=True,
)
_BUSY = Fault("the storage is overloaded or has an internal fault", "resume the job later", transient=True)
_REFUSED_FOLDER = Fault("the storage refuses access", "check its owner and mode")
_REFUSED = Fault(
    "the storage refuses access",
    "check the key or SAS token, the account's firewall, and your role 'Storage Blob Data Contributor'",
)
_FULL = Fault("the storage is full", "free space or raise the quota, then resume the job")
_NO_CONTAINER = Fault("the container or account does not exist", "create the container, or correct the storage's URL")
_READ_ONLY = Fault("the storage is read-only", "choose another folder with MODELOPS_STORAGE")
_NOT_A_FOLDER = Fault("a file and a folder have the same path", "move one of them, or choose another folder")
_NO_FOLDER = Fault("a folder of this path does not exist and cannot be made", "choose another folder")
_NO_LINKS = Fault(
    "the file system has no hard links or no fsync of folders, which commits need",
    "choose a folder on another file system",
)
_BROKEN = Fault("the file system reports an error", "check the disk (dmesg), then resume the job")
_NO_FILES = Fault("too many open files", "raise the limit: ulimit -n")
_UNKNOWN = Fault("the storage answered with an error", "correct the cause that the brackets name, then resume the job")

FAULTS_BY_ERRNO = {
    errno.ENOENT: _NO_FOLDER,
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EISDIR: _NOT_A_FOLDER,
    errno.EEXIST: _NOT_A_FOLDER,
    errno.EACCES: _REFUSED_FOLDER,
    errno.EPERM: _REFUSED_FOLDER,
    errno.EROFS: _READ_ONLY,
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EMLINK: _NO_LINKS,
    errno.EXDEV: _NO_LINKS,
    errno.EINVAL: _NO_LINKS,
    errno.ENOSYS: _NO_LINKS,
    errno.EOPNOTSUPP: _NO_LINKS,
    errno.EIO: _BROKEN,
    errno.EMFILE: _NO_FILES,
    errno.ENFILE: _NO_FILES,
    # Network file systems: a server that restarts, or a handle that the server has forgotten.
    errno.EAGAIN: _BUSY,
    errno.EBUSY: _BUSY,
    errno.ESTALE: _BUSY,
    errno.EINTR: _BUSY,
    errno.ETIMEDOUT: _SILENT,
    errno.EPIPE: _SILENT,
    errno.ECONNREFUSED: _SILENT,
    errno.ECONNRESET: _SILENT,
    errno.ECONNABORTED: _SILENT,
    errno.EHOSTDOWN: _SILENT,
    errno.EHOSTUNREACH: _SILENT,
    errno.ENETDOWN: _SILENT,
    errno.ENETUNREACH: _SILENT,
    errno.ENETRESET: _SILENT,
}
FAULTS_BY_CODE = {
    "ContainerNotFound": _NO_CONTAINER,
    "ContainerBeingDeleted": _NO_CONTAINER,
    "ResourceNotFound": _NO_CONTAINER,
    "ServerBusy": _BUSY,
    "InternalError": _BUSY,
    "OperationTimedOut": _BUSY,
}
FAULTS_BY_STATUS = {
    401: _REFUSED,
    403: _REFUSED,
    404: _NO_CONTAINER,
    408: _SILENT,
    429: _BUSY,
    500: _BUSY,
    502: _BUSY,
    503: _BUSY,
    504: _BUSY,
    507: _FULL,
}
# These classes count more than an error's status. The first match counts.
FAULTS_BY_CLASS = (
    (TimeoutError, _SILENT),
    (ConnectionError, _SILENT),
    (azure.ServiceRequestError, _SILENT),
    (azure.ServiceResponseError, _SILENT),
    (azure.IncompleteReadError, _SILENT),
    (azure.DecodeError, _SILENT),
)


def fault_of(error: OSError | azure.AzureError) -> Fault:
    """Return the meaning of a storage's error."""
    for kind, fault in FAULTS_BY_CLASS:
        if isinstance(error, kind):
            return fault
    if isinstance(error, OSError):
        return FAULTS_BY_ERRNO.get(error.errno or 0, _UNKNOWN)
    default = _REFUSED if isinstance(error, azure.ClientAuthenticationError) else _UNKNOWN
    by_status = FAULTS_BY_STATUS.get(getattr(error, "status_code", None) or 0, default)
    return FAULTS_BY_CODE.get(code_of(error) or "", by_status)


def is_transient(error: BaseException) -> bool:
    """Tell whether the same call may succeed later."""
    return isinstance(error, OSError | azure.AzureError) and fault_of(error).transient


def refused(error: OSError | azure.AzureError, where: str) -> StorageError:
    """Return the error to raise for a storage's error that is not transient."""
    fault = fault_of(error)
    return StorageError(f"{fault.what} ({in_brief(error)})", where=where, hint=fault.hint)


def code_of(error: azure.AzureError) -> str | None:
    """Return the service's code of an error; None: the answer did not come from the service."""
    code = getattr(error, "error_code", None)
    return None if code is None else str(getattr(code, "value", code))


def in_brief(error: Exception) -> str:
    """Return the storage's own text of an error."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    status = getattr(error, "status_code", None)
    return " ".join(str(part) for part in (type(error).__name__, status, code_of(error)) if part)  # type: ignore[arg-type]
