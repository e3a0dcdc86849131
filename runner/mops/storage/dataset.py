"""Opens committed rows of a job as one Arrow dataset, and checks that they are one.

:mod:`mops.storage.sources` chooses the parts, and the groups whose rows do not count.
"""

from __future__ import annotations

import functools
import operator
import posixpath
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from mops.errors import CorruptRecord, PartMissing
from mops.parquet.schemas import unified, with_dictionaries
from mops.storage.files import Files
from mops.storage.paths import JobPaths
from mops.storage.sources import PartRows, SourceLog, families_of, part_rows
from mops.study.column_families import MIXED, Columns, join_columns, joined, said
from mops.study.column_types import families_in, of_column
from mops.study.groups import IDENTITY_FIELDS
from mops.study.ranges import Ranges

S = TypeVar("S")
T = TypeVar("T")

_READERS = 16
_RULE = "__mops_rule"
_IDENTITY = [field.name for field in IDENTITY_FIELDS]


def part_missing(job: str, path: str) -> PartMissing:
    """Return the error for a part that counts and does not exist."""
    what = f"a committed part of job {job!r} is missing"
    hint = f"read again if `mops jobs clean` has just removed parts that were merged; else {verify_hint(job)}"
    return PartMissing(what, where=path, hint=hint)


def part_damaged(job: str, where: str, fault: str = "") -> CorruptRecord:
    """Return the error for a damaged part, or for one in a folder; without ``fault``, Arrow cannot read its pages."""
    what = f"a committed part of job {job!r} is damaged{': ' if fault else ''}{fault}"
    return CorruptRecord(what, where=where, hint=verify_hint(job))


def verify_hint(job: str) -> str:
    """Return what to do about missing or damaged parts of a job."""
    return f"list all damaged parts, to restore them from a backup: mops jobs verify {job}"


def read_current(known: S, read_again: Callable[[], S], use: Callable[[S], T]) -> T:
    """Call a function with what logs say; once more with what they say now if `clean` has removed parts (rule 19)."""
    try:
        return use(known)
    except PartMissing:
        return use(read_again())


def dataset_of(
    files: Files,
    job: str,
    rows: Sequence[PartRows],
    empty: pa.Schema,  # of an empty result
    families: Columns | None = None,
    dictionaries: Sequence[str] = (),  # columns of strings to read as dictionaries
) -> ds.Dataset:
    """Return committed rows as one dataset. CorruptRecord: a part is missing, or is not a Parquet file."""
    if not rows:
        return ds.dataset(with_dictionaries(empty, dictionaries).empty_table())
    filesystem, _ = files.arrow(rows[0].part.path)
    paths = [files.arrow(some.part.path)[1] for some in rows]
    with ThreadPoolExecutor(_READERS) as pool:
        schemas = list(pool.map(lambda path: _schema_of(job, path, filesystem), paths))
    schema = with_dictionaries(unified(schemas, f"{files.url}/{rows[0].part.path}", families), dictionaries)
    file_format = ds.ParquetFileFormat(dictionary_columns=set(dictionaries))
    there = [
        FilteredFile(path, stored, some.job, some.without)
        for path, stored, some in zip(paths, schemas, rows, strict=True)
    ]
    found = opened(there, schema, filesystem, file_format)
    found.job = job  # for errors
    return found


def _schema_of(job: str, path: str, filesystem: pyarrow.fs.FileSystem) -> pa.Schema:
    try:
        return pq.read_schema(path, filesystem=filesystem)
    except FileNotFoundError as missing:
        raise part_missing(job, path) from missing
    except pa.ArrowInvalid as bad:
        raise part_damaged(job, path, "it is not a Parquet file") from bad


@dataclass(frozen=True)
class FilteredFile:
    """A Parquet file, and the groups whose rows in it do not count."""

    path: str
    stored: pa.Schema  # of the file
    job: str  # that wrote the file
    without: Ranges

    def nulls(self, schema: pa.Schema) -> pc.Expression:
        """Return what is known of the file's rows in a dataset: which columns are null."""
        # If all values of a column of floats are NaN, and other files have text or times there, Arrow would read the
        # text "nan", or nothing. A partition expression that says that the column is null replaces what the file has.
        names = [
            field.name
            for field in schema
            if field.name in self.stored.names
            and pa.types.is_floating(self.stored.field(field.name).type)
            and not pa.types.is_floating(field.type)
        ]
        return functools.reduce(operator.and_, (pc.field(name).is_null() for name in names), pc.scalar(True))


class _Explained:
    """A dataset whose methods name the job when a part is missing or damaged. Mix it into a dataset of Arrow."""

    job: str = ""

    def filter(self, expression: Any) -> ds.Dataset:
        found = super().filter(expression)  # type: ignore[misc]
        found.job = self.job
        return found

    def to_table(self, *columns: Any, **options: Any) -> pa.Table:
        return self._explained("to_table", *columns, **options)

    def count_rows(self, *filters: Any, **options: Any) -> int:
        return int(self._explained("count_rows", *filters, **options))

    def head(self, *number: Any, **options: Any) -> pa.Table:
        return self._explained("head", *number, **options)

    def take(self, *indices: Any, **options: Any) -> pa.Table:
        return self._explained("take", *indices, **options)

    def to_batches(self, *columns: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        try:
            yield from super().to_batches(*columns, **options)  # type: ignore[misc]
        except OSError as bad:
            raise self._reason(bad) from bad

    def _explained(self, name: str, *given: Any, **options: Any) -> Any:
        try:
            return getattr(super(), name)(*given, **options)
        except OSError as bad:
            raise self._reason(bad) from bad

    def _reason(self, bad: OSError) -> Exception:
        if isinstance(bad, FileNotFoundError):
            return part_missing(self.job, str(bad))
        if bad.errno is not None:
            return bad
        files: list[str] = self.files  # type: ignore[attr-defined]
        return part_damaged(self.job, posixpath.dirname(files[0]))  # what Arrow says of damaged pages has no number


class _Whole(_Explained, ds.FileSystemDataset):  # type: ignore[misc]
    """A dataset in which every row counts."""


class _Filtered(_Explained, ds.FileSystemDataset):  # type: ignore[misc]
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


def opened(
    files: Sequence[FilteredFile],
    schema: pa.Schema,  # fits the rows of every file; with a column "group" if some of them do not count
    filesystem: pyarrow.fs.FileSystem,
    file_format: ds.ParquetFileFormat,
) -> ds.Dataset:
    """Return the rows of Parquet files that count."""
    if not any(file.without for file in files):
        fragments = [file_format.make_fragment(file.path, filesystem, file.nulls(schema)) for file in files]
        return _Whole(fragments, schema, file_format, filesystem)
    # The rule of a file is the job that wrote it: a group is left out of all filtered files of a job, or of none.
    rules = [file.job if file.without else "" for file in files]
    left_out: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for rule, file in zip(rules, files, strict=True):
        left_out[rule] += file.without.intervals
    is_under = {rule: pc.field(_RULE) == pa.scalar(rule) for rule in left_out}
    fragments = [
        file_format.make_fragment(file.path, filesystem, is_under[rule] & file.nulls(schema))
        for rule, file in zip(rules, files, strict=True)
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


def dataset_problems(files: Files, paths: JobPaths, sources: Sequence[SourceLog]) -> list[str]:
    """Read every part of a job's outputs; return a sentence for each that does not fit the others, with its groups.

    The caller has verified the parts' bytes (:func:`mops.storage.sources.verify_job`). The sources are those of the
    job's sources and its own. PartMissing: a part was removed meanwhile.
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
    for output, columns in families.items():
        for some in part_rows(sources, "outputs", output):
            try:
                problems += _problems_of(files, some, columns)
            except FileNotFoundError as missing:  # a large part is read piece by piece, so at any moment
                raise part_missing(some.job, some.part.path) from missing
    return problems


def _problems_of(files: Files, rows: PartRows, known: Columns) -> Iterator[str]:
    """Yield a sentence for each row group of a part that does not fit the families in ``schema.json`` and commits."""
    file = pq.ParquetFile(files.reader(rows.part.path))
    own = {field.name: field.type for field in file.schema_arrow if field.name not in _IDENTITY}
    if own.keys() != known.keys():
        yield f"{rows.part.path}: its columns are {', '.join(own)}, not {', '.join(known)}"
        return
    wrong = [name for name, kind in own.items() if joined(known[name], of_column(kind)) == MIXED]
    for number in range(file.num_row_groups):  # one in memory at a time
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
