"""What a backend must be able to do, and how often a fault is retried."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.fs

from mops.storage.backends.spool import Spool

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
        """As :meth:`mops.storage.files.Files.put_new`."""

    def put(self, path: str, data: Data) -> None:
        """As :meth:`mops.storage.files.Files.put`."""

    def get(self, path: str) -> bytes | None:
        """Return a file's bytes; None: absent."""

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
        """Remove a file, if it is there."""

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        """As :meth:`mops.storage.files.Files.arrow`."""

    def free_bytes(self) -> int | None:
        """As :meth:`mops.storage.files.Files.free_bytes`."""

    def spool(self) -> Spool:
        """As :meth:`mops.storage.files.Files.spool`."""


def whole_bytes(data: Data) -> bytes:
    """Return all of the data, read into memory."""
    return data.read() if isinstance(data, Spool) else bytes(data)
