"""Exports a job's results as one file for each output and table, batch by batch, with bounded memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from mops.errors import StorageError, UsageError, path_refused
from mops.jobs.scan import Rows
from mops.project.bundle import EXPORTED

_ABOUT_LIST = "# Files that mops wrote. A job's bundle leaves them out, unless .mopsignore has a line like !losses.csv."


class Format(StrEnum):
    """The format of exported files."""

    PARQUET = "parquet"
    CSV = "csv"


@dataclass(frozen=True)
class Exported:
    """An exported file."""

    name: str
    rows: int
    path: str


_WRITERS: dict[Format, Callable[[Path, pa.Schema], pq.ParquetWriter | csv.CSVWriter]] = {
    Format.PARQUET: lambda path, schema: pq.ParquetWriter(path, schema),
    Format.CSV: lambda path, schema: csv.CSVWriter(path, schema),
}


def export(tables: Mapping[str, Rows], folder: Path, file_format: Format, *, overwrite: bool) -> list[Exported]:
    """Write each table as one file, named by its key; raises as ``Job.export``."""
    paths = {name: folder / f"{name}.{file_format}" for name in tables}
    with _translated(folder):
        existing = [str(path) for path in paths.values() if path.exists()]
    if existing and not overwrite:
        raise UsageError("these files exist already", where=", ".join(existing), hint="add --overwrite to replace them")
    with _translated(folder):
        folder.mkdir(parents=True, exist_ok=True)
        list_exported(folder, [path.name for path in paths.values()])
    return [_write(name, table, paths[name], file_format) for name, table in tables.items()]


def list_exported(folder: Path, names: list[str]) -> None:
    """List exported files in their folder, so that bundles leave them out: the next study needs no results."""
    listed = folder / EXPORTED
    before = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else [_ABOUT_LIST]
    listed.write_text("".join(f"{line}\n" for line in dict.fromkeys([*before, *names])), encoding="utf-8")


def _write(name: str, source: Rows, path: Path, file_format: Format) -> Exported:
    partial = path.with_name(path.name + ".partial")  # a partial file must not look complete
    rows = 0
    try:
        with _translated(path), _WRITERS[file_format](partial, source.schema) as writer:
            for batch in source.batches():
                writer.write_batch(batch)
                rows += batch.num_rows
    except pa.ArrowException as refused:
        raise UsageError(
            f"{name!r} cannot be written as {file_format}: {refused}", where=str(path), hint="use --format parquet"
        ) from refused
    else:
        with _translated(path):
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return Exported(name, rows, str(path))


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(
            "a file and a folder have the same path",
            where=str(path),
            hint="choose another folder with --to",
        ) from error
    except pa.ArrowException:  # some are also ValueErrors, and none is about the path
        raise
    except ValueError as error:
        raise path_refused(path, "the folder of --to", error) from error
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise path_refused(path, "the folder of --to", error) from error
        raise StorageError(
            f"the file cannot be written ({error.strerror or error})",
            where=str(path),
            hint="choose another folder with --to",
        ) from error
