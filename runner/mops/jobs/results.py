"""Reads a job's committed results as Arrow datasets, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from mops.errors import CorruptRecord
from mops.parquet.schemas import unified, with_dictionaries
from mops.storage.ancestors import PartRows
from mops.storage.files import Files
from mops.storage.filtered_dataset import FilteredFile, filtered, unfiltered
from mops.study.column_families import Columns
from mops.units import without_numbers

_READERS = 16

CHUNK_ROWS = 10_000

_MOST_REASONS = 1_000

_OTHER_REASONS = "other messages"


@dataclass(frozen=True)
class FilteredPart:
    """A part without the rows of some groups: ``without`` has their intervals, from start up to stop."""

    path: str
    without: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TableSummary:
    """The committed rows of one table of a job's results.

    Parameters
    ----------
    kind, name
        ``outputs`` and the output's name, or twice ``losses`` or ``failures``.
    folder
        The folder of its parts. It may also hold parts of a killed runner, which do not count and are not in ``paths``.
    paths
        Parts in which every row counts.
    filtered
        Parts of a derived job's ancestors in which the rows of some groups do not count.
    """

    kind: str
    name: str
    rows: int
    bytes: int
    folder: str
    paths: tuple[str, ...]
    filtered: tuple[FilteredPart, ...] = ()


@dataclass(frozen=True)
class Reason:
    """A reason of failures: how many simulations and targets, the verdict, the first line of the message."""

    n: int
    verdict: str
    message: str


def dataset_of(
    files: Files,
    job: str,
    rows: Sequence[PartRows],
    empty: pa.Schema,
    families: Columns | None = None,
    dictionaries: Sequence[str] = (),
) -> ds.Dataset:
    """Return committed rows as one dataset.

    Parameters
    ----------
    empty
        The schema of an empty result.
    families
        The type families of the columns.
    dictionaries
        Columns of strings to read as dictionaries.

    Raises
    ------
    FileNotFoundError
        A part is missing.
    CorruptRecord
        A part is not a Parquet file.
    """
    if not rows:
        return ds.dataset(with_dictionaries(empty, dictionaries).empty_table())
    filesystem, _ = files.arrow(rows[0].part.path)
    paths = [files.arrow(some.part.path)[1] for some in rows]
    with ThreadPoolExecutor(_READERS) as pool:
        schemas = list(pool.map(lambda path: _schema_of(job, path, filesystem), paths))
    schema = with_dictionaries(unified(schemas, f"{files.url}/{rows[0].part.path}", families), dictionaries)
    file_format = ds.ParquetFileFormat(dictionary_columns=set(dictionaries))
    if any(some.without for some in rows):
        parts = [FilteredFile(path, some.job, some.without) for path, some in zip(paths, rows, strict=True)]
        return filtered(parts, schema, filesystem, file_format)
    return unfiltered(paths, schema, filesystem, file_format)


def _schema_of(job: str, path: str, filesystem: FileSystem) -> pa.Schema:
    try:
        return pq.read_schema(path, filesystem=filesystem)
    except FileNotFoundError as missing:
        raise FileNotFoundError(path) from missing
    except pa.ArrowInvalid as bad:
        raise CorruptRecord(
            f"a committed part of job {job!r} is damaged: it is not a Parquet file",
            where=path,
            hint=f"list all damaged parts, to restore them from a backup: mops jobs verify {job}",
        ) from bad


def count_reasons(batches: Iterable[pa.RecordBatch]) -> list[Reason]:
    """Count failures by reason, the most frequent first; messages that differ only in numbers are one reason.

    Parameters
    ----------
    batches
        The columns ``reason`` and ``message``.
    """
    reasons: dict[tuple[str, str], Reason] = {}
    for batch in batches:
        table = pa.Table.from_batches([batch])
        # Without threads, the groups come in the order of the rows.
        found = table.group_by(["reason", "message"], use_threads=False).aggregate([([], "count_all")])
        columns = (found[name].to_pylist() for name in ("reason", "message", "count_all"))
        for verdict, text, n in zip(*columns, strict=True):
            message = text.partition("\n")[0]
            kind = (verdict, without_numbers(message))
            if kind not in reasons and len(reasons) >= _MOST_REASONS:
                kind, message = (verdict, _OTHER_REASONS), _OTHER_REASONS
            known = reasons.get(kind, Reason(0, verdict, message))
            reasons[kind] = replace(known, n=known.n + n)
    return sorted(reasons.values(), key=lambda reason: -reason.n)
