"""Merges the small parts of a complete job into larger ones: rules 16 to 20 of docs/internals/storage.md.

A compaction writes the larger parts, and then one create-only record that names them. Without that record, the small
parts count. `mops jobs clean` removes parts that do not count.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
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
from mops.storage.backends.base import Put, Spool
from mops.storage.dataset import part_missing, verify_hint
from mops.storage.files import AT_ONCE, Files
from mops.storage.job_records import JobRecord, check_not_deleted
from mops.storage.joblog.log import CurrentPart, current_parts, read_whole
from mops.storage.joblog.records import COMPACTIONS, Compaction, Merge, Part, union
from mops.storage.paths import table_of
from mops.storage.sources import families_of
from mops.study.casts import converted
from mops.study.column_families import Families, Family

logger = logging.getLogger(__name__)

MANY_PARTS = 32  # an attempt compacts a table of at least so many small parts: on Azurite each costs a reader 25 ms
MANY_LOCAL_PARTS = 1_000  # in a folder, where a reader opens so many in half a second, and scans large ones no faster

WAIT_SECONDS = 60.0  # at the end of an attempt, where a person may wait; on Azurite 500 parts take 5.5 s

SMALL_BYTES = 16 << 20  # parts of this size and above stay as they are, at the end of a job and by the command

# The most that a merged part holds, before its rows are encoded again. No checkpoint writes larger parts by default,
# `verify` holds four of them in memory, and Azure stores one in one request.
FULL_BYTES = 64 << 20

FEWEST_PARTS = 4  # to merge; fewer small parts fit into one of FULL_BYTES only at the end of a table

_HELD_BYTES = 16 << 20  # of old parts that wait in memory to be copied; a larger part is alone there

# Columns that repeat long texts, read and written without decoding them.
_DICTIONARIES = {"failures": ("param_id", "traceback")}

Run: TypeAlias = Sequence[CurrentPart]  # parts of one table that follow one another

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
    plan: Callable[[Iterable[CurrentPart]], list[Run]] | None = None,  # what to merge; None: `runs`
    merge: Merger | None = None,  # None: `merged`
    seconds: float = math.inf,  # after which a compaction gives up, and leaves the job as it is
) -> Compacted:
    """Merge small parts of a complete job, once: later calls change nothing. TimeoutError: it takes too long.

    JobError: the job is not complete, or was deleted meanwhile. CorruptRecord: a part is missing or damaged.
    """
    deadline = time.monotonic() + seconds
    whole = read_whole(files, record.paths)
    if not whole.view.complete:
        what = f"job {record.job!r} is not complete: only the parts of a complete job can be merged"
        raise JobError(what, where=files.url, hint=f"show its state: mops jobs status {record.job}")
    planned = (plan or runs)(whole.parts) if whole.compaction is None else []
    if not planned:
        return _compacted(record, whole.parts, whole.parts)
    families = families_of(files, record.paths, [whole.view]) or {}
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
        other = COMPACTIONS.read(files, record.paths.compaction) if isinstance(ended, PartMissing) else None
        if other is not None:
            return _compacted(record, whole.parts, current_parts(whole.commits, other))
        raise
    own = Compaction(time=time.time(), host=socket.gethostname(), merges=tuple(written))
    # If no answer comes, the record may still come into being: then the parts must stay.
    is_first = files.put_new(record.paths.compaction, COMPACTIONS.encode(own)) is not Put.OTHER
    if not is_first:
        _remove(files, written)
    try:
        check_not_deleted(files, record.paths)
    except JobError:  # the deletion may have looked for files before these were there
        _remove(files, written)
        files.remove([record.paths.compaction])
        raise
    counts = own if is_first else COMPACTIONS.read(files, record.paths.compaction)
    return _compacted(record, whole.parts, current_parts(whole.commits, counts))


def _remove(files: Files, written: Iterable[Merge]) -> None:
    """Remove new parts. If the storage refuses, `clean` removes them later."""
    with contextlib.suppress(StorageError):
        files.remove([one.part.path for one in written])


def _stored(
    files: Files, record: JobRecord, run: Run, families: Families, merge: Merger, number: tuple[str, int]
) -> Merge:
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

    An error is only logged, because the job is complete already. Ctrl-C reaches the caller.
    """
    fewest = MANY_PARTS if files.folder is None else MANY_LOCAL_PARTS
    how_to = f"to merge them: mops jobs compact {record.job}"
    try:
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
    """Return what to merge of all parts that count, so that the rows of each table keep their order. Pure.

    Nothing is merged unless ``fewest_in_table`` parts of one table would be: a job is compacted once.
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

    CorruptRecord: a part is not as it was committed. FileNotFoundError: a part is missing.
    """
    kind, _ = table_of(parts[0].path)
    repeated = _DICTIONARIES.get(kind, ("param_id",))
    copies = _copied(files, parts)
    schemas = dict.fromkeys(pq.read_schema(pa.BufferReader(copy)) for copy in copies)
    schema = with_dictionaries(unified(schemas, f"{files.url}/{parts[0].path}", families), repeated)
    encoder = PartEncoder(schema, files.spool(), STRINGS_BYTES if kind == "outputs" else TEXTS_BYTES)
    for copy in copies:
        for table in _row_groups(pa.BufferReader(copy), repeated):
            encoder.write(_with_schema(table, schema))
    encoded = encoder.finish()
    if encoded.rows != (n_rows := sum(part.rows for part in parts)):
        what = f"{len(parts)} parts from this one on have {encoded.rows} rows, and their records name {n_rows}"
        raise _damaged(files, parts[0], what)
    return encoded


def _copied(files: Files, parts: Sequence[Part]) -> list[pa.Buffer]:
    """Copy parts into one temporary file, and return its mapped content, part by part."""
    copy, batches, n_bytes = Spool(), list[list[Part]](), 0
    for part in parts:
        n_bytes += part.bytes
        if not batches or len(batches[-1]) == AT_ONCE or n_bytes > _HELD_BYTES:
            batches.append([])
            n_bytes = part.bytes
        batches[-1].append(part)
    for batch in batches:
        for part, data in zip(batch, files.get_many([part.path for part in batch]), strict=True):
            if data is None:
                raise FileNotFoundError(part.path)
            if hashlib.sha256(data).hexdigest() != part.digest:  # a damaged part must not become a valid one
                raise _damaged(files, part, "the SHA-256 of this part differs from the committed one")
            copy.write(data)
    content, stops = pa.py_buffer(copy.mapped()), itertools.accumulate(part.bytes for part in parts)
    return [content.slice(stop - part.bytes, part.bytes) for part, stop in zip(parts, stops, strict=True)]


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
    absent = set(schema.names) - set(table.column_names)  # an older mops wrote losses and failures with fewer columns
    columns = [
        pa.nulls(table.num_rows, field.type) if field.name in absent else converted(table[field.name], field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
