"""Exports a job's results: one file for each output and table, in pieces, so that memory stays bounded."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from mops.errors import StorageError, UsageError, path_refused
from mops.jobs.job import Job


class Format(StrEnum):
    """What an exported file is."""

    PARQUET = "parquet"
    CSV = "csv"


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    name: str
    rows: int
    path: str


_WRITERS: dict[Format, Callable[[Path, pa.Schema], pq.ParquetWriter | csv.CSVWriter]] = {
    Format.PARQUET: lambda path, schema: pq.ParquetWriter(path, schema),
    Format.CSV: lambda path, schema: csv.CSVWriter(path, schema),
}


def export(job: Job, folder: Path, file_format: Format, *, overwrite: bool) -> list[Exported]:
    """Write each output, the losses, the failures and the parameters as one file.

    Raises
    ------
    UsageError
        A file is there already and is not to be replaced, or an output cannot be written in this format.
    StorageError
        The folder cannot be written.
    """
    sources = _sources(job)
    paths = {name: folder / f"{name}.{file_format}" for name in sources}
    with _faults(folder):
        taken = [str(path) for path in paths.values() if path.exists()]
    if taken and not overwrite:
        raise UsageError(
            "these files are there already", where=", ".join(taken), hint="add --overwrite to replace them"
        )
    with _faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return [_write(name, source, paths[name], file_format) for name, source in sources.items()]


def _sources(job: Job) -> dict[str, ds.Dataset]:
    """Return what is exported, by the name of its file."""
    tables = {
        "losses": job.losses(params=True),
        "failures": job.failures(),
        "params": job.params().drop_columns(["seeds", "params"]),  # both are in the outputs' rows, and no CSV
    }
    outputs = {_stem(name, taken=set(tables)): job.outputs(name) for name in job.output_names()}
    return outputs | {name: ds.dataset(table) for name, table in tables.items()}


def _stem(output: str, *, taken: set[str]) -> str:
    """Return a file's name for an output; a model may choose any, such as ``losses`` or ``../x``."""
    return f"output-{output}" if output in taken else quote(output, safe=" ")


def _write(name: str, source: ds.Dataset, path: Path, file_format: Format) -> Exported:
    partial = path.with_name(path.name + ".partial")  # nobody takes half a file for a whole one
    rows = 0
    try:
        with _faults(path), _WRITERS[file_format](partial, source.schema) as writer:
            for batch in source.to_batches():
                writer.write_batch(batch)
                rows += batch.num_rows
    except pa.ArrowException as refused:
        raise UsageError(
            f"{name!r} cannot be written as {file_format}: {refused}", where=str(path), hint="try --format parquet"
        ) from refused
    else:
        with _faults(path):
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return Exported(name, rows, str(path))


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Turn what a folder on this machine refuses into an error of ours."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(
            "a file and a folder are in each other's way", where=str(path), hint="choose another folder with --to"
        ) from error
    except pa.ArrowException:  # some are ValueErrors, too, and none is of the path
        raise
    except ValueError as error:
        raise path_refused(path, "the folder of --to", error) from error
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise path_refused(path, "the folder of --to", error) from error
        raise StorageError(
            f"this cannot be written ({error.strerror or error})",
            where=str(path),
            hint="choose another folder with --to, or make room",
        ) from error
