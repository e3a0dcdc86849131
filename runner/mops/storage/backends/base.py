"""The contract of a backend, and for how long mops retries transient faults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from tenacity import (
    Retrying,
    retry_if_exception,
    stop_before_delay,
    wait_exponential,
    wait_random_exponential,
)

from mops.storage.backends.faults import is_transient
from mops.storage.backends.spool import Spool

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs

Data: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer | Spool"
"""A file's content."""

T = TypeVar("T")


class Put(Enum):
    """The answer to a request to create a file."""

    CREATED = "created"
    SAME = "same"
    """The file exists with the same bytes: another process wrote them, or this one, and the answer was lost."""
    OTHER = "other"
    """The file exists with other bytes."""


@dataclass(frozen=True)
class Entry:
    """A file in a listing; ``size`` in bytes."""

    path: str
    size: int


Entries: TypeAlias = list[Entry]  # in classes with a method of that name, `list` is the method


def _retrying(longest_s: float, total_s: float) -> Retrying:
    """Return what retries transient faults.

    Parameters
    ----------
    longest_s
        The longest pause. The first pause is 0.1 s, and each pause is twice as long as the pause before. A random part
        of up to a half is subtracted.
    total_s
        Seconds since the first call, after which mops makes no further call.
    """
    half: dict[str, float] = {"multiplier": 0.05, "max": longest_s / 2}
    return Retrying(
        retry=retry_if_exception(is_transient),
        wait=wait_exponential(**half) + wait_random_exponential(**half),
        stop=stop_before_delay(total_s),
    )


PATIENT = _retrying(longest_s=10.0, total_s=120.0)
"""For jobs."""

BRIEF = _retrying(longest_s=2.0, total_s=6.0)
"""For a person who waits at a terminal."""


class Backend(Protocol):
    """One kind of storage. It makes each call once. faults.py has the errors that it raises."""

    def put_new(self, path: str, data: Data) -> bool:
        """Create a file, whole or not at all, and durable; False: a file of this path exists."""

    def put(self, path: str, data: Data) -> None:
        """As :meth:`mops.storage.files.Files.put`."""

    def get(self, path: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return a file's bytes, or those from ``start`` up to ``stop``; None: absent."""

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None: absent."""

    def list(self, folder: str) -> list[Entry]:
        """As :meth:`mops.storage.files.Files.list`, in any order."""

    def folders(self, folder: str) -> set[str]:
        """As :meth:`mops.storage.files.Files.folders`."""

    def scraps(self, folder: str, age_s: float) -> Entries:
        """As :meth:`mops.storage.files.Files.scraps`, in any order."""

    def prune(self, folder: str) -> None:
        """As :meth:`mops.storage.files.Files.prune`."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        """As :meth:`mops.storage.files.Files.arrow`."""

    def spool(self, descriptor: int | None = None) -> Spool:
        """As :meth:`mops.storage.files.Files.spool`."""


def whole_bytes(data: Data) -> bytes:
    """Return all of the data, read into memory."""
    return data.read() if isinstance(data, Spool) else bytes(data)
