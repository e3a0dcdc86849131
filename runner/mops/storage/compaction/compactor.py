"""Compacts a complete job: claims, merges parts, names them in a record, and removes the old parts.

This is rules 16 to 20 of docs/internals/storage.md.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mops.errors import JobError, MopsError, Superseded
from mops.parquet.encoder import Encoded
from mops.storage.ancestors import stored_families
from mops.storage.backends.spool import Spool
from mops.storage.compaction.merge import merged
from mops.storage.compaction.plan import Merge, merges
from mops.storage.compaction.reading import part_missing
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, check_not_deleted
from mops.storage.joblog.compactions import CompactionLog
from mops.storage.joblog.current_parts import CurrentPart, current_parts
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import By, Part
from mops.storage.joblog.view import union
from mops.storage.joblog.whole import WholeLog, read_whole
from mops.storage.paths import table_of
from mops.study.column_families import Families, Family

logger = logging.getLogger(__name__)

MANY_PARTS = 32
"""An attempt compacts a table of at least so many small parts. On Azurite each costs a reader 25 ms."""

MANY_LOCAL_PARTS = 1_000
"""The same for a local folder, where a reader opens so many in half a second, and scans large parts no faster."""

WAIT_SECONDS = 10.0
"""After this time, a compaction at the end of an attempt starts no further merge: a person waits for the runner."""

MOST_AT_END = 256
"""The most parts of one merge at the end of an attempt. On Azurite 500 parts take 5.5 s."""

Merger = Callable[[Files, Sequence[Part], Mapping[str, Family]], Encoded[Spool]]


@dataclass(frozen=True)
class Compacted:
    """The effect of a compaction: the parts of the job and their bytes, before and after."""

    job: str
    parts_before: int
    bytes_before: int
    parts: int
    bytes: int


def compact(
    files: Files,
    record: JobRecord,
    *,
    by: By = "person",
    plan: Callable[[Iterable[CurrentPart]], list[Merge]] = merges,
    merge: Merger = merged,
    seconds: float | None = None,
) -> Compacted:
    """Merge small parts of a complete job.

    Parameters
    ----------
    plan, merge
        What to merge, and how.
    seconds
        Start no further merge after this time; None: merge all that is planned.

    Raises
    ------
    JobError
        The job is not complete, or was deleted meanwhile.
    Superseded
        A newer compaction owns the job.
    CorruptRecord
        A part is missing or damaged.
    StorageError
        The storage refuses, is out of reach, or is full.
    """
    began, whole = time.monotonic(), read_whole(files, record.paths)
    if not whole.view.complete:
        raise _incomplete(files, record.job)
    if not plan(whole.parts):
        return _compacted(record, whole.parts, whole.parts)
    compaction = _Compaction(files, record, whole, merge)
    compaction.claim(by)
    before = compaction.parts
    for run in plan(before):
        if seconds is not None and time.monotonic() - began >= seconds:
            break
        compaction.replace(run)
    return _compacted(record, before, compaction.parts)


def compact_at_end(files: Files, record: JobRecord) -> None:
    """Compact a job whose attempt has just completed it, if a table has many small parts.

    The job is complete already, so an error is only logged.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C has stopped the merging.
    """
    fewest = MANY_PARTS if files.folder is None else MANY_LOCAL_PARTS
    try:
        if all(stored.parts < fewest for stored in JobLog(files, record.paths).read().stored.values()):
            return  # without reading all of a long log
        plan = partial(merges, fewest_in_table=fewest, most_in_merge=MOST_AT_END)
        done = compact(files, record, by="auto", plan=plan, seconds=WAIT_SECONDS)
    except KeyboardInterrupt:
        logger.warning("%s: stopped merging small parts; the results are complete", record.job)
        raise
    except Exception as error:
        message = "%s: the results are complete, but small parts were not merged (%s); to merge: mops jobs compact %s"
        logger.warning(message, record.job, error, record.job, exc_info=not isinstance(error, MopsError | OSError))
    else:
        if done.parts < done.parts_before:
            logger.info("%s: merged small parts: %d parts are now %d", record.job, done.parts_before, done.parts)


class _Compaction:
    """One compaction of one job by this process."""

    def __init__(self, files: Files, record: JobRecord, whole: WholeLog, merge: Merger):
        self._files, self._record, self._whole, self._merge = files, record, whole, merge
        self._log = CompactionLog(files, record.paths)
        self._file_numbers = itertools.count(1)
        self._families: Families = {}
        self._number = 0

    def claim(self, by: By) -> None:
        """Become the owner of the job's parts."""
        self._number = self._log.claim(by).attempt
        check_not_deleted(self._files, self._record.paths)
        self._families = stored_families(self._files, self._record, self._whole.view) or {}

    @property
    def parts(self) -> list[CurrentPart]:
        """The parts that count now."""
        return current_parts(self._whole.commits, self._log.view.compacts)

    def replace(self, run: Merge) -> None:
        """Replace parts by one: store it, append the record, and then remove the old parts (rules 19 and 20)."""
        removed = [one.part.path for one in run]
        part = self._stored(run)
        try:
            self._log.compact(removed, part, union(one.ranges for one in run))
        except Superseded:
            self._files.remove([part.path])  # no record names it, and this process writes no more records
            raise
        self._files.remove(removed)
        logger.debug("%s: merged %d parts into %s", self._record.job, len(removed), part.path)

    def _stored(self, run: Merge) -> Part:
        """Write the new part."""
        kind, output = table_of(run[0].part.path)
        families = self._families.get(output, {}) if output is not None else {}
        try:
            file = self._merge(self._files, [one.part for one in run], families)
        except FileNotFoundError as missing:
            check_not_deleted(self._files, self._record.paths)
            self._log.poll()
            raise part_missing(self._record.job, str(missing)) from missing
        path = self._record.paths.compacted(kind, output, self._number, next(self._file_numbers))
        self._files.create(path, file.content)
        return Part(path, file.rows, file.bytes, file.digest)


def _compacted(record: JobRecord, before: Sequence[CurrentPart], now: Sequence[CurrentPart]) -> Compacted:
    bytes_before, n_bytes = (sum(one.part.bytes for one in parts) for parts in (before, now))
    return Compacted(record.job, len(before), bytes_before, len(now), n_bytes)


def _incomplete(files: Files, job: str) -> JobError:
    what = f"job {job!r} is not complete: only the parts of a complete job can be merged"
    return JobError(what, where=files.url, hint=f"show its state: mops jobs status {job}")
