"""What errors of a storage mean, and for how long mops repeats a call after a transient one.

azure.py has the tables for Azure, whose client takes long to import.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_exponential, wait_random_exponential

from mops.errors import StorageError


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
    errno.ETIMEDOUT: SILENT,
    errno.EPIPE: SILENT,
    errno.ECONNREFUSED: SILENT,
    errno.ECONNRESET: SILENT,
    errno.ECONNABORTED: SILENT,
    errno.EHOSTDOWN: SILENT,
    errno.EHOSTUNREACH: SILENT,
    errno.ENETDOWN: SILENT,
    errno.ENETUNREACH: SILENT,
    errno.ENETRESET: SILENT,
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
