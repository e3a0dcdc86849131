"""Checks that every output of a job reads as one dataset with one schema (``mops jobs verify``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow.parquet as pq

from mops.storage.ancestors import PartRows, ResultSource, families_of, parts
from mops.storage.files import Files
from mops.storage.paths import JobPaths
from mops.study.column_families import MIXED, Columns, join_columns, joined, said
from mops.study.column_types import families_in, least_of
from mops.study.groups import IDENTITY_FIELDS
from mops.study.ranges import Ranges

_IDENTITY = [field.name for field in IDENTITY_FIELDS]


def dataset_problems(files: Files, paths: JobPaths, sources: Sequence[ResultSource]) -> list[str]:
    """Read every part of a job's outputs; return a sentence for each that does not fit the others, with its groups.

    The caller has verified the parts' bytes (:func:`mops.storage.ancestors.verify_job`). This function holds one row
    group in memory at a time.

    Parameters
    ----------
    sources
        The logs of the job's ancestors, and the job's own.

    Raises
    ------
    FileNotFoundError
        A part is missing.
    StorageError
        The storage refuses, or is out of reach.
    """
    families = families_of(files, paths, (source.log.view for source in sources)) or {}
    problems = [
        f"output {output!r}: the commits fix column {name!r} to families that do not fit together"
        for output, columns in families.items()
        for name, family in columns.items()
        if family == MIXED
    ]
    if problems:
        return problems
    rows = [(columns, some) for output, columns in families.items() for some in parts(sources, "outputs", output)]
    return [problem for columns, some in rows for problem in _part_problems(files, some, columns)]


def _part_problems(files: Files, rows: PartRows, known: Columns) -> Iterator[str]:
    """Yield a sentence for each row group of a part that does not fit the families in ``schema.json`` and commits."""
    file = pq.ParquetFile(files.reader(rows.part.path))
    own = {field.name: field.type for field in file.schema_arrow if field.name not in _IDENTITY}
    if own.keys() != known.keys():
        yield f"{rows.part.path}: its columns are {', '.join(own)}, not {', '.join(known)}"
        return
    wrong = [name for name, kind in own.items() if joined(known[name], least_of(kind)) == MIXED]
    for number in range(file.num_row_groups):
        table = file.read_row_group(number, use_threads=False)
        found = families_in(table.select(list(known)))
        beyond = [name for name, family in join_columns(known, found).items() if family != known[name]]
        if misfits := list(dict.fromkeys([*wrong, *beyond])):
            columns = [
                f"column {name!r} is {own[name]} with values that do not fit the job's {said(known[name])}"
                for name in misfits
            ]
            intervals = Ranges.of(table["group"].unique().to_pylist()).intervals
            groups = ", ".join(f"{start} to {stop - 1}" for start, stop in intervals)
            yield f"{rows.part.path}: groups {groups}: {', '.join(columns)}"
