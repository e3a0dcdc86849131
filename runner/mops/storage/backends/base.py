"""The contract of a backend, and for how long mops retries transient faults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_exponential, wait_random_exponential

from mops.storage.backends.faults import is_transient
from mops.storage.backends.spool import Spool

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs

Data: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer | Spool"

T = TypeVar("T")


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


Entries: TypeAlias = list[Entry]  # in classes with a method of that name, `list` is the method


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


class Backend(Protocol):
    """One kind of storage, with the methods of :class:`mops.storage.files.Files`. It makes each call once.

    Listings have any order. faults.py has the errors that a backend raises.
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

    def scraps(self, folder: str, age_s: float) -> Entries: ...

    def prune(self, folder: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]: ...

    def spool(self, descriptor: int | None = None) -> Spool: ...


def whole_bytes(data: Data) -> bytes:
    """Return all of the data, read into memory."""
    return data.read() if isinstance(data, Spool) else bytes(data)
