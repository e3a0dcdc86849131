"""Reads and appends a log of numbered, create-only records (rule 3 of docs/internals/storage.md).

:mod:`mops.storage.joblog.log` has the log of a job, :mod:`mops.storage.joblog.compactions` the log of its compactions.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from mops.errors import JobDeleted, StorageUnavailable
from mops.storage.backends.base import Put
from mops.storage.files import AT_ONCE, Files
from mops.storage.joblog.records import Record, decode_numbered
from mops.storage.json_records import JsonCodec
from mops.storage.paths import record_path


class View(Protocol):
    """The meaning of the records of a log up to record ``k``."""

    @property
    def k(self) -> int:
        """The number of records."""

    @property
    def attempt(self) -> int:
        """The number of claims."""

    def extended(self, records: Sequence[Any]) -> Self:
        """Return the view after these further records."""


R = TypeVar("R", bound=Record)
V = TypeVar("V", bound=View)


class NumberedLog(Generic[R, V]):
    """A log, as one process sees it. Use it from one thread; every process may have its own.

    Parameters
    ----------
    folder
        The folder of the records.
    codec
        Encodes and decodes the records.
    view
        The view of an empty log.
    resume_hint
        What a person does if it stays unknown whether a record was written.
    host
        The name that records carry.
    clock
        Seconds since the epoch, for people to read.
    nonce
        Draws 128 random bits, hexadecimal.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        codec: JsonCodec[R],
        view: V,
        resume_hint: str,
        *,
        host: str | None = None,
        clock: Callable[[], float] = time.time,
        nonce: Callable[[], str] = lambda: os.urandom(16).hex(),
    ):
        self._files, self._folder, self._codec, self._host = files, folder, codec, host or socket.gethostname()
        self._clock, self._nonce, self._resume_hint = clock, nonce, resume_hint
        self._view = view
        self._open: R | None = None

    @property
    def view(self) -> V:
        """What this process has read and written so far."""
        return self._view

    def records(self) -> Iterator[R]:
        """Yield the new records up to the first that is absent; the log does not keep them."""
        window = 1
        while not self._is_over():
            numbers = range(self._view.k + 1, self._view.k + 1 + window)
            found = zip(numbers, self._files.get_many([record_path(self._folder, k) for k in numbers]), strict=True)
            there = itertools.takewhile(lambda pair: pair[1] is not None, found)
            records = [self._decoded(data, k) for k, data in there if data is not None]
            self._meet(records)
            yield from records
            if len(records) < window:
                return
            window = min(2 * window, AT_ONCE)

    def _is_over(self) -> bool:
        """Tell whether no record can follow."""
        return False

    def _meet(self, records: Sequence[R]) -> None:
        """Add records of other processes to the view."""
        self._view = self._view.extended(records)

    def _append(self, draw_up: Callable[[dict[str, Any]], R | None]) -> R | None:
        """Write a record after all others (rule 3). If another process writes first, decide again.

        Parameters
        ----------
        draw_up
            Takes the common fields and returns the record; None: write nothing.
        """
        while True:
            head = {"k": self._view.k + 1, "n": self._view.attempt, "nonce": self._nonce()}
            record = draw_up({**head, "time": self._clock(), "host": self._host})
            if record is None:
                return None
            there = self._settle(record)
            if there.nonce == record.nonce:
                self._require(self._view.k)
                self._view = self._view.extended([there])
                return there
            self._meet([there])

    def _require(self, k: int) -> None:
        """Check that record ``k``, which this process has read or written, is still there (rule 23).

        Raises
        ------
        JobDeleted
            It no longer exists.
        """
        if k:
            self._there(k)

    def _there(self, k: int) -> bytes:
        data = self._files.get_many([record_path(self._folder, k)])[0]
        if data is None:
            what = f"someone has deleted the job or its storage: record {k} of its log no longer exists"
            raise JobDeleted(what, where=self._where(k), hint="submit the study again")
        return data

    def _settle(self, record: R) -> R:
        """Put a record until its file exists; return the record in that file."""
        if self._open is not None:
            raise self._unanswered(self._open)
        self._open = record
        # The record stays open if an error leaves this method: its request may still land, so nothing else may be put.
        path, there = record_path(self._folder, record.k), record
        if self._files.put_new(path, self._codec.encode(record)) is Put.OTHER:
            there = self._decoded(self._there(record.k), record.k)
        self._open = None
        return there

    def _unanswered(self, record: R) -> StorageUnavailable:
        return StorageUnavailable(
            f"it is unknown whether the storage has the {record.kind} record",
            where=self._where(record.k),
            hint=f"stop this process, then: {self._resume_hint}",
        )

    def _decoded(self, data: bytes, k: int) -> R:
        return decode_numbered(self._codec, data, k, self._where(k))

    def _where(self, k: int) -> str:
        return f"{self._files.url}/{record_path(self._folder, k)}"
