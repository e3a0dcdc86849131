"""Opens committed rows of a job as one Arrow dataset."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from mops.parquet.schemas import unified, with_dictionaries
from mops.storage.ancestors import PartRows
from mops.storage.compaction.reading import part_damaged
from mops.storage.files import Files
from mops.storage.filtered_dataset import FilteredFile, filtered, unfiltered
from mops.study.column_families import Columns

_READERS = 16


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
    parts = [
        FilteredFile(path, stored, some.job, some.without)
        for path, stored, some in zip(paths, schemas, rows, strict=True)
    ]
    opened = filtered if any(some.without for some in rows) else unfiltered
    found = opened(parts, schema, filesystem, file_format)
    found.job = job  # for errors
    return found


def _schema_of(job: str, path: str, filesystem: FileSystem) -> pa.Schema:
    try:
        return pq.read_schema(path, filesystem=filesystem)
    except FileNotFoundError as missing:
        raise FileNotFoundError(path) from missing
    except pa.ArrowInvalid as bad:
        raise part_damaged(job, path, "it is not a Parquet file") from bad
