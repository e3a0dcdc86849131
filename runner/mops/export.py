"""Exports a job's results: one file for each output and table, in pieces, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from mops.errors import UsageError
from mops.job import Job


class Format(StrEnum):
    """What an exported file is."""

    PARQUET = "parquet"
    CSV = "csv"


_WRITERS: dict[Format, Callable[[Path, pa.Schema], pq.ParquetWriter | csv.CSVWriter]] = {
    Format.PARQUET: lambda path, schema: pq.ParquetWriter(path, schema),
    Format.CSV: lambda path, schema: csv.CSVWriter(path, schema),
}


def export(job: Job, folder: Path, file_format: Format, *, overwrite: bool) -> dict[str, list[str]]:
    """Write each output, the losses and the failures as one file; return the paths by name.

    Raises
    ------
    UsageError
        A file is there already and is not to be replaced, or an output cannot be written in this format.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = {name: job.outputs(name) for name in job.output_names()}
    sources |= {"losses": ds.dataset(job.losses(params=True)), "failures": ds.dataset(job.failures())}
    paths = {name: folder / f"{name}.{file_format}" for name in sources}
    taken = [str(path) for path in paths.values() if path.exists()]
    if taken and not overwrite:
        raise UsageError(
            "these files are there already", where=", ".join(taken), hint="add --overwrite to replace them"
        )
    for name, source in sources.items():
        _write(source, paths[name], file_format)
    return {name: [str(path)] for name, path in paths.items()}


def _write(source: ds.Dataset, path: Path, file_format: Format) -> None:
    partial = path.with_name(path.name + ".partial")  # nobody takes half a file for a whole one
    try:
        with _WRITERS[file_format](partial, source.schema) as writer:
            for batch in source.to_batches():
                writer.write_batch(batch)
    except pa.ArrowException as refused:
        partial.unlink(missing_ok=True)
        raise UsageError(
            f"{path.stem!r} cannot be written as {file_format}: {refused}", where=str(path), hint="try --format parquet"
        ) from refused
    partial.replace(path)
