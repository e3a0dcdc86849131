"""What a job gave, as Arrow tables that are read in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from mops.errors import CorruptRecord
from mops.storage.ancestors import PartRows
from mops.storage.files import Files
from mops.storage.filtered_dataset import FilteredFile, filtered
from mops.storage.parquet import unified, with_dictionaries
from mops.study.column_families import Columns
from mops.units import without_numbers

_READERS = 16

CHUNK_ROWS = 10_000

_MOST_REASONS = 1_000

_OTHER_REASONS = "others, each with a message of its own"


@dataclass(frozen=True)
class FilteredPart:
    """A part whose rows count, but those of the groups ``without``: intervals, each from its start up to its stop."""

    path: str
    without: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Table:
    """One table of a job's results: what is committed of it.

    Parameters
    ----------
    kind, name
        ``outputs`` and the model's name for it, or twice ``losses`` or ``failures``.
    folder
        Where its parts lie. Parts that a killed runner left there too do not count: ``paths`` has those that do.
    paths
        Parts of which every row counts.
    filtered
        Of a derived job: parts of an ancestor in which the rows of some groups do not count.
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
    """Why simulations or targets failed: how many, the verdict, the first line of its message."""

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
        The schema where there are no rows.
    families
        What is known of the columns.
    dictionaries
        Columns of strings that are read as dictionaries.

    Raises
    ------
    CorruptRecord
        A part is gone, or is no Parquet file any more.
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
    return ds.dataset(paths, schema=schema, format=file_format, filesystem=filesystem)


def _schema_of(job: str, path: str, filesystem: FileSystem) -> pa.Schema:
    try:
        return pq.read_schema(path, filesystem=filesystem)
    except (FileNotFoundError, pa.ArrowInvalid) as bad:
        what = "is not there" if isinstance(bad, FileNotFoundError) else "is not the Parquet file that was written"
        raise CorruptRecord(
            f"a part that job {job!r} has committed {what}",
            where=path,
            hint=f"mops jobs verify {job} names every part that is damaged; restore them from a backup, "
            "or submit the study again under another name",
        ) from bad


def count_reasons(pieces: Iterable[pa.RecordBatch]) -> list[Reason]:
    """Count failures by their reason, the most frequent first; messages that differ in their numbers only are one.

    Parameters
    ----------
    pieces
        Of the columns ``reason`` and ``message``.
    """
    alike: dict[tuple[str, str], Reason] = {}
    for verdict, message, n in (counted for piece in pieces for counted in _counted(piece)):
        kind = (verdict, without_numbers(message))
        if kind not in alike and len(alike) >= _MOST_REASONS:
            kind, message = (verdict, _OTHER_REASONS), _OTHER_REASONS
        known = alike.get(kind, Reason(0, verdict, message))
        alike[kind] = replace(known, n=known.n + n)
    return sorted(alike.values(), key=lambda reason: -reason.n)


def _counted(failures: pa.RecordBatch) -> Iterator[tuple[str, str, int]]:
    """Yield (verdict, first line of the message, how many) of failures, in the order in which they came."""
    table = pa.Table.from_batches([failures])
    found = table.group_by(["reason", "message"], use_threads=False).aggregate([([], "count_all")])
    columns = (found[name].to_pylist() for name in ("reason", "message", "count_all"))
    for verdict, message, n in zip(*columns, strict=True):
        yield verdict, message.partition("\n")[0], n
