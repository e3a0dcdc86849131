"""Parquet parts of which the rows of some groups do not count, as one dataset that leaves those rows out.

Which parts and which groups these are is ancestors.py's.
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

from mops.study.ranges import Ranges

_RULE = "__mops_rule"


@dataclass(frozen=True)
class FilteredFile:
    """A Parquet file, and the groups whose rows in it do not count.

    Parameters
    ----------
    job
        Whose part it is: a group is left out of all filtered parts of a job, or of none.
    """

    path: str
    job: str
    without: Ranges

    @property
    def rule(self) -> str:
        """The name of the filter that holds for the file; empty: every row counts."""
        return self.job if self.without else ""


class _Filtered(ds.FileSystemDataset):  # type: ignore[misc]
    """A dataset in which each file has its own filter.

    Arrow filters a dataset and not its files. So each file says, as a partition column, which rule holds for it, and
    the dataset's filter, which every scan applies, reads that column; here it is kept from those who read. Where
    Arrow looks past these methods the column shows: rows that do not count never do.
    """

    @property
    def schema(self) -> pa.Schema:
        whole = super().schema
        return whole.remove(whole.get_field_index(_RULE))

    def scanner(self, columns: Any = None, **options: Any) -> ds.Scanner:
        return super().scanner(columns=self.schema.names if columns is None else columns, **options)

    # These two build a plan of their own, from a schema without the column that the filter reads.
    def sort_by(self, *how: Any, **options: Any) -> ds.Dataset:
        return ds.dataset(self.to_table()).sort_by(*how, **options)

    def join(self, *how: Any, **options: Any) -> ds.Dataset:
        return ds.dataset(self.to_table()).join(*how, **options)


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
        What holds every file's rows; it has a column ``group``.
    filesystem
        Where the files' paths lead.
    file_format
        How they are read.
    """
    left_out: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for file in files:
        left_out[file.rule] += file.without.intervals
    fragments = [file_format.make_fragment(file.path, filesystem, _is_under(file.rule)) for file in files]
    whole = _Filtered(fragments, schema.append(pa.field(_RULE, pa.string())), file_format, filesystem)
    terms = []
    for rule, intervals in left_out.items():
        term = _is_under(rule)
        if intervals:
            term &= ~pc.field("group").isin(_numbers(Ranges.joined(intervals)))
        terms.append(term)
    return whole.filter(functools.reduce(operator.or_, terms))


def _is_under(rule: str) -> pc.Expression:
    return pc.field(_RULE) == pa.scalar(rule)


def _numbers(ranges: Ranges) -> pa.Array:
    return pa.array(np.concatenate([np.arange(*interval, dtype=np.int32) for interval in ranges.intervals]))
