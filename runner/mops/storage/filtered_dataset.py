"""Makes one dataset of Parquet parts, without the rows of some groups.

:mod:`mops.storage.ancestors` chooses the parts and the groups.
"""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from mops.storage.compaction.reading import Reopening
from mops.study.ranges import Ranges

_RULE = "__mops_rule"


@dataclass(frozen=True)
class FilteredFile:
    """A Parquet file, and the groups whose rows in it do not count.

    Parameters
    ----------
    stored
        The schema of the file.
    job
        The job that wrote the part. The dataset leaves a group out of all filtered parts of a job, or of none.
    """

    path: str
    stored: pa.Schema
    job: str
    without: Ranges

    @property
    def rule(self) -> str:
        """The name of the file's filter; empty: every row counts."""
        return self.job if self.without else ""

    def nulls(self, schema: pa.Schema) -> pc.Expression:
        """Return what is known of the file's rows in a dataset: which columns are null.

        If all values of a column of floats are NaN, and other files have text or times there, Arrow would read the text
        "nan", or nothing. A partition expression that says that the column is null replaces what the file has.
        """
        names = [
            field.name
            for field in schema
            if field.name in self.stored.names
            and pa.types.is_floating(self.stored.field(field.name).type)
            and not pa.types.is_floating(field.type)
        ]
        return functools.reduce(operator.and_, (pc.field(name).is_null() for name in names), pc.scalar(True))


class _Filtered(Reopening, ds.FileSystemDataset):  # type: ignore[misc]
    """A dataset in which each file has its own filter.

    Arrow filters a whole dataset, not its files. So a partition column names each file's rule, and the dataset's
    filter reads that column in every scan. The methods here hide the column from readers. Where Arrow bypasses them,
    the column shows, but rows that do not count never do.
    """

    @property
    def schema(self) -> pa.Schema:
        whole = super().schema
        return whole.remove(whole.get_field_index(_RULE))

    def scanner(self, columns: Any = None, **options: Any) -> ds.Scanner:
        return super().scanner(columns=self.schema.names if columns is None else columns, **options)

    # Arrow's own versions of these two take the schema without the column that the filter reads.
    def sort_by(self, *how: Any, **options: Any) -> ds.Dataset:
        return ds.dataset(self.to_table()).sort_by(*how, **options)

    def join(self, *how: Any, **options: Any) -> ds.Dataset:
        return ds.dataset(self.to_table()).join(*how, **options)


class _Whole(Reopening, ds.FileSystemDataset):  # type: ignore[misc]
    """A dataset in which every row counts."""


def unfiltered(
    files: Sequence[FilteredFile],
    schema: pa.Schema,
    filesystem: pyarrow.fs.FileSystem,
    file_format: ds.ParquetFileFormat,
) -> ds.Dataset:
    """Return all rows of Parquet files; the parameters are those of :func:`filtered`."""
    fragments = [file_format.make_fragment(file.path, filesystem, file.nulls(schema)) for file in files]
    return _Whole(fragments, schema, file_format, filesystem)


def filtered(
    files: Sequence[FilteredFile],
    schema: pa.Schema,
    filesystem: pyarrow.fs.FileSystem,
    file_format: ds.ParquetFileFormat,
) -> ds.Dataset:
    """Return the rows of Parquet files, without those of some groups.

    Parameters
    ----------
    schema
        A schema for the rows of every file, with a column ``group``.
    filesystem
        The file system of the paths.
    file_format
        How to read the files.
    """
    left_out: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for file in files:
        left_out[file.rule] += file.without.intervals
    is_under = {rule: pc.field(_RULE) == pa.scalar(rule) for rule in left_out}
    fragments = [
        file_format.make_fragment(file.path, filesystem, is_under[file.rule] & file.nulls(schema)) for file in files
    ]
    whole = _Filtered(fragments, schema.append(pa.field(_RULE, pa.string())), file_format, filesystem)
    terms = []
    for rule, intervals in left_out.items():
        term = is_under[rule]
        if intervals:
            groups = [np.arange(*interval, dtype=np.int32) for interval in Ranges.joined(intervals).intervals]
            term &= ~pc.field("group").isin(pa.array(np.concatenate(groups)))
        terms.append(term)
    return whole.filter(functools.reduce(operator.or_, terms))
