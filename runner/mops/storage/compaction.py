"""Merges the small parts of a complete job into larger ones: rules 16 to 20 of docs/internals/storage.md.

A compaction writes the larger parts, and then one create-only record that names them. Until the record exists, and for
ever if it never does, the small parts count. `mops jobs clean` removes parts that do not count.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from mops.errors import CorruptRecord, JobError, MopsError, PartMissing, StorageError
from mops.parquet.encoder import STRINGS_BYTES, TEXTS_BYTES, Encoded, PartEncoder
from mops.parquet.schemas import unified, with_dictionaries
from mops.storage.ancestors import stored_families
from mops.storage.backends.base import Put
from mops.storage.backends.spool import Spool
from mops.storage.dataset import part_missing, verify_hint
from mops.storage.files import AT_ONCE, Files
from mops.storage.job_records import JobRecord, check_not_deleted
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.parts import CurrentPart, read_whole
from mops.storage.joblog.records import COMPACTIONS, Compaction, Merge, Part
from mops.storage.joblog.view import union
from mops.storage.paths import table_of
from mops.study.casts import converted
from mops.study.column_families import Families, Family

logger = logging.getLogger(__name__)

MANY_PARTS = 32
"""An attempt compacts a table of at least so many small parts. On Azurite each costs a reader 25 ms."""

MANY_LOCAL_PARTS = 1_000
"""The same for a local folder, where a reader opens so many in half a second, and scans large parts no faster."""

WAIT_SECONDS = 60.0
"""A compaction at the end of an attempt gives up after this time, because a person may wait for the runner. On Azurite
500 parts take 5.5 s."""

SMALL_BYTES = 16 << 20
"""Parts of this size and above stay as they are."""

FULL_BYTES = 64 << 20
"""The most that a merged part holds, before its rows are encoded again. No checkpoint writes larger parts by default,
`verify` holds four of them in memory, and Azure stores one in one request."""

FEWEST_PARTS = 4
"""The fewest parts to merge. Fewer small parts fit into one of FULL_BYTES only at the end of a table."""

HELD_BYTES = 16 << 20
"""The most bytes of old parts that wait in memory to be copied. A larger part is alone there."""

_DICTIONARIES = {"failures": ("param_id", "traceback")}
"""Columns of a table that repeat long texts, read and written without decoding them."""

Run: TypeAlias = Sequence[CurrentPart]
"""Parts of one table that follow one another, in the order of the table."""

Merger = Callable[[Files, Sequence[Part], Mapping[str, Family]], Encoded[Spool]]


@dataclass(frozen=True)
class Compacted:
    """The effect of a compaction: the parts of the job that count and their bytes, before and after.

    Parameters
    ----------
    job : str
        The job's name.
    parts_before, parts : int
        How many parts.
    bytes_before, bytes : int
        Their sizes in bytes.
    """

    job: str
    parts_before: int
    bytes_before: int
    parts: int
    bytes: int


def compact(
    files: Files,
    record: JobRecord,
    *,
    plan: Callable[[Iterable[CurrentPart]], list[Run]] | None = None,
    merge: Merger | None = None,
    seconds: float = math.inf,
) -> Compacted:
    """Merge small parts of a complete job, once: later calls change nothing.

    Parameters
    ----------
    plan, merge
        What to merge, and how; None: :func:`runs` and :func:`merged`.
    seconds
        Give up after this time, and leave the job as it is.

    Raises
    ------
    JobError
        The job is not complete, or was deleted meanwhile.
    CorruptRecord
        A part is missing or damaged.
    StorageError
        The storage refuses, is out of reach, or is full.
    """
    deadline = time.monotonic() + seconds
    whole = read_whole(files, record.paths)
    if not whole.view.complete:
        what = f"job {record.job!r} is not complete: only the parts of a complete job can be merged"
        raise JobError(what, where=files.url, hint=f"show its state: mops jobs status {record.job}")
    planned = (plan or runs)(whole.parts) if whole.compaction is None else []
    if not planned:
        return _compacted(record, whole.parts, whole.parts)
    families = stored_families(files, record, whole.view) or {}
    number, written = os.urandom(8).hex(), list[Merge]()  # no other compaction writes parts of these names
    try:
        for c, run in enumerate(planned, start=1):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"merging takes more than {seconds:g} s")  # noqa: TRY301 - the parts are removed
            written.append(_stored(files, record, run, families, merge or merged, (number, c)))
        check_not_deleted(files, record.paths)
    except BaseException as ended:
        _remove(files, written)
        # Another compaction may have been faster, and `clean` may have removed the parts of this one.
        if isinstance(ended, PartMissing) and COMPACTIONS.read(files, record.paths.compaction) is not None:
            return _compacted(record, whole.parts, read_whole(files, record.paths).parts)
        raise
    compaction = Compaction(time=time.time(), host=socket.gethostname(), merges=tuple(written))
    # If no answer comes, the record may still come into being: then the parts must stay.
    if files.put_new(record.paths.compaction, COMPACTIONS.encode(compaction)) is Put.OTHER:  # another one was faster
        _remove(files, written)
    try:
        check_not_deleted(files, record.paths)
    except JobError:  # the deletion may have looked for files before these were there
        _remove(files, written)
        files.remove([record.paths.compaction])
        raise
    return _compacted(record, whole.parts, read_whole(files, record.paths).parts)


def _remove(files: Files, written: Iterable[Merge]) -> None:
    """Remove new parts. If the storage refuses, `clean` removes them later."""
    with contextlib.suppress(StorageError):
        files.remove([one.part.path for one in written])


def _stored(
    files: Files, record: JobRecord, run: Run, families: Families, merge: Merger, number: tuple[str, int]
) -> Merge:
    """Write the part that replaces some parts."""
    kind, output = table_of(run[0].part.path)
    try:
        file = merge(files, [one.part for one in run], families.get(output or "", {}))
    except FileNotFoundError as missing:
        check_not_deleted(files, record.paths)
        raise part_missing(record.job, str(missing)) from missing
    path = record.paths.compacted(kind, output, *number)
    files.create(path, file.content)
    part = Part(path, file.rows, file.bytes, file.digest)
    return Merge(removed=tuple(one.part.path for one in run), part=part, ranges=union(one.ranges for one in run))


def _compacted(record: JobRecord, before: Sequence[CurrentPart], now: Sequence[CurrentPart]) -> Compacted:
    bytes_before, n_bytes = (sum(one.part.bytes for one in parts) for parts in (before, now))
    return Compacted(record.job, len(before), bytes_before, len(now), n_bytes)


def compact_at_end(files: Files, record: JobRecord) -> None:
    """Compact a job whose attempt has just completed it, if a table has many small parts.

    The job is complete already, so an error is only logged. Ctrl-C ends the compaction, and reaches the caller.
    """
    fewest = MANY_PARTS if files.folder is None else MANY_LOCAL_PARTS
    how_to = f"to merge them: mops jobs compact {record.job}"
    try:
        if all(stored.parts < fewest for stored in JobLog(files, record.paths).read().stored.values()):
            return  # without reading all of a long log
        # Without long waits for a storage that is out of reach.
        done = compact(files.brief(), record, plan=partial(runs, fewest_in_table=fewest), seconds=WAIT_SECONDS)
    except KeyboardInterrupt:
        logger.warning("%s: stopped merging small parts; the results are complete", record.job)
        raise
    except Exception as error:
        message = "%s: the results are complete, but small parts were not merged (%s); %s"
        is_defect = not isinstance(error, MopsError | OSError)
        logger.warning(message, record.job, error, how_to, exc_info=is_defect)
    else:
        if done.parts < done.parts_before:
            message = "%s: merged small parts: %d parts are now %d; to remove the small ones: mops jobs clean %s"
            logger.info(message, record.job, done.parts_before, done.parts, record.job)


def runs(parts: Iterable[CurrentPart], fewest_in_table: int = FEWEST_PARTS) -> list[Run]:
    """Return what to merge, so that the rows of each table keep their order. Pure.

    Parameters
    ----------
    parts
        All parts of the job that count, in their order.
    fewest_in_table
        Merge nothing unless so many parts of one table would be merged: a job is compacted once.
    """
    tables = defaultdict[tuple[str, str | None], list[CurrentPart]](list)
    for part in parts:
        tables[table_of(part.part.path)].append(part)
    found = [[run for run in _runs(table) if len(run) >= FEWEST_PARTS] for table in tables.values()]
    is_worth_it = any(sum(map(len, some)) >= fewest_in_table for some in found)
    return [run for some in found for run in some] if is_worth_it else []


def _runs(table: Iterable[CurrentPart]) -> Iterator[Run]:
    """Yield small parts that follow one another and fit into one part."""
    run: list[CurrentPart] = []
    n_bytes = 0
    for part in table:
        is_small = part.part.bytes < SMALL_BYTES
        if not is_small or n_bytes + part.part.bytes > FULL_BYTES:
            yield run
            run, n_bytes = [], 0
        if is_small:
            run.append(part)
            n_bytes += part.part.bytes
    yield run


def merged(files: Files, parts: Sequence[Part], families: Mapping[str, Family]) -> Encoded[Spool]:
    """Return a file with the rows of parts of one table, in their order, in the widest types.

    Parameters
    ----------
    families
        The families of the table's columns; none for losses and failures.

    Raises
    ------
    CorruptRecord
        A part is not as it was committed.
    FileNotFoundError
        A part is missing.
    StorageError
        The storage refuses, is out of reach, or is full.
    """
    kind, _ = table_of(parts[0].path)
    repeated = _DICTIONARIES.get(kind, ("param_id",))
    copies = _Copies(files, parts)
    schemas = dict.fromkeys(pq.read_schema(data) for data in copies)
    schema = with_dictionaries(unified(schemas, f"{files.url}/{parts[0].path}", families), repeated)
    encoder = PartEncoder(schema, files.spool(), STRINGS_BYTES if kind == "outputs" else TEXTS_BYTES)
    for data in copies:
        for table in _row_groups(data, repeated):
            encoder.write(_with_schema(table, schema))
    encoded = encoder.finish()
    if encoded.rows != (n_rows := sum(part.rows for part in parts)):
        what = f"{len(parts)} parts from this one on have {encoded.rows} rows, and their records name {n_rows}"
        raise _damaged(files, parts[0], what)
    return encoded


class _Copies:
    """Copies of parts in one temporary file. They are as committed: a damaged part must not become a valid one."""

    def __init__(self, files: Files, parts: Sequence[Part]):
        self._parts, self._copy = parts, Spool()
        for some in _held_together(parts):
            for part, data in zip(some, files.get_many([part.path for part in some]), strict=True):
                if data is None:
                    raise FileNotFoundError(part.path)
                if hashlib.sha256(data).hexdigest() != part.digest:
                    raise _damaged(files, part, "the SHA-256 of this part differs from the committed one")
                self._copy.write(data)

    def __iter__(self) -> Iterator[pa.BufferReader]:
        """Yield the content of each part."""
        content, start = pa.py_buffer(self._copy.mapped()), 0
        for part in self._parts:
            yield pa.BufferReader(content.slice(start, part.bytes))
            start += part.bytes


def _held_together(parts: Sequence[Part]) -> Iterator[list[Part]]:
    some: list[Part] = []
    for part in parts:
        if some and (len(some) == AT_ONCE or sum(one.bytes for one in [*some, part]) > HELD_BYTES):
            yield some
            some = []
        some.append(part)
    yield some


def _damaged(files: Files, part: Part, what: str) -> CorruptRecord:
    _, job, *_ = part.path.split("/")
    return CorruptRecord(what, where=f"{files.url}/{part.path}", hint=verify_hint(job))


def _row_groups(data: pa.BufferReader, repeated: Sequence[str]) -> Iterator[pa.Table]:
    there = pq.read_schema(data).names
    source = pq.ParquetFile(data, read_dictionary=[name for name in repeated if name in there])
    if not source.num_row_groups:
        yield source.schema_arrow.empty_table()
    for number in range(source.num_row_groups):
        yield source.read_row_group(number, use_threads=False)


def _with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns and types of a schema that holds its values."""
    absent = set(schema.names) - set(table.column_names)  # an older mops wrote losses and failures with fewer columns
    columns = [
        pa.nulls(table.num_rows, field.type) if field.name in absent else converted(table[field.name], field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
