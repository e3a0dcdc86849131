"""Reads rows of a job while a compaction may replace its parts (rule 21 of docs/internals/storage.md)."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from mops.errors import CorruptRecord, JobError
from mops.storage.ancestors import ResultSource

T = TypeVar("T")


def part_missing(job: str, path: str) -> CorruptRecord:
    """Return the error for a part that counts and does not exist."""
    return CorruptRecord(f"a committed part of job {job!r} is missing", where=path, hint=verify_hint(job))


def part_damaged(job: str, where: str, fault: str = "") -> CorruptRecord:
    """Return the error for a damaged part.

    Parameters
    ----------
    where
        The part or its folder.
    fault
        How it is damaged; empty: Arrow cannot read its pages.
    """
    what = f"a committed part of job {job!r} is damaged{': ' if fault else ''}{fault}"
    return CorruptRecord(what, where=where, hint=verify_hint(job))


def verify_hint(job: str) -> str:
    """Return what to do about missing or damaged parts of a job."""
    return f"list all damaged parts, to restore them from a backup: mops jobs verify {job}"


def read_current(
    sources: list[ResultSource], sources_now: Callable[[], list[ResultSource]], use: Callable[[list[ResultSource]], T]
) -> T:
    """Call a function with the logs of a job; again if a compaction has removed a part meanwhile.

    Parameters
    ----------
    sources
        The logs of the job and of its ancestors.
    sources_now
        Reads these logs again.
    use
        Reads parts that are current in these logs. Raises FileNotFoundError if one is missing.

    Raises
    ------
    FileNotFoundError
        A part that counts does not exist.
    """
    while True:
        try:
            return use(sources)
        except FileNotFoundError:
            known, sources = _position(sources), sources_now()
            if _position(sources) == known:
                raise


def _position(sources: Sequence[ResultSource]) -> list[int]:
    return [source.log.compactions.k for source in sources]


class Reopening:
    """A dataset that opens itself again if a compaction has removed its parts. Mix it into a dataset of Arrow.

    The methods that return all rows at once start again with the new parts. :meth:`to_batches` does so until it has
    yielded the first batch. Where Arrow bypasses these methods, a missing part is a FileNotFoundError.
    """

    job: str = ""
    _open: Callable[[], ds.Dataset] | None = None
    _compacted: JobError | None = None

    def reopened(self, open_again: Callable[[], ds.Dataset], compacted: JobError) -> None:
        """Set how to open the dataset again, and the error if a compaction comes after the first rows."""
        self._open, self._compacted = open_again, compacted

    def filter(self, expression: Any) -> ds.Dataset:
        """Return the rows for which an expression holds."""
        found = super().filter(expression)  # type: ignore[misc]
        found.job = self.job
        if self._open is not None and self._compacted is not None:
            open_whole = self._open
            found.reopened(lambda: open_whole().filter(expression), self._compacted)
        return found

    def to_table(self, *columns: Any, **options: Any) -> pa.Table:
        """Return all rows."""
        return self._again("to_table", *columns, **options)

    def count_rows(self, *filters: Any, **options: Any) -> int:
        """Return the number of rows."""
        return int(self._again("count_rows", *filters, **options))

    def head(self, *number: Any, **options: Any) -> pa.Table:
        """Return the first rows."""
        return self._again("head", *number, **options)

    def take(self, *indices: Any, **options: Any) -> pa.Table:
        """Return the rows with these numbers."""
        return self._again("take", *indices, **options)

    def to_batches(self, *columns: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield all rows in batches. Raises JobError if a compaction comes after the first batch."""
        return self._batches(super().to_batches(*columns, **options), columns, options)  # type: ignore[misc]

    def _batches(self, batches: Iterator[pa.RecordBatch], columns: Any, options: Any) -> Iterator[pa.RecordBatch]:
        has_yielded = False
        try:
            for batch in batches:
                yield batch
                has_yielded = True
        except FileNotFoundError:
            if self._open is None:
                raise
            new = self._open()  # raises if a part is lost
            if has_yielded and self._compacted is not None:
                raise self._compacted from None
            yield from new.to_batches(*columns, **options)
        except OSError as bad:
            raise self._explained(bad) from bad

    def _again(self, name: str, *given: Any, **options: Any) -> Any:
        """Call a method of Arrow, and with the new parts if one is missing."""
        try:
            return getattr(super(), name)(*given, **options)
        except FileNotFoundError:
            if self._open is None:
                raise
            return getattr(self._open(), name)(*given, **options)
        except OSError as bad:
            raise self._explained(bad) from bad

    def _explained(self, bad: OSError) -> Exception:
        """Return the error for what Arrow says of damaged pages, which has no number as errors of the system have."""
        if bad.errno is not None:
            return bad
        files: list[str] = self.files  # type: ignore[attr-defined]
        return part_damaged(self.job, posixpath.dirname(files[0]))
