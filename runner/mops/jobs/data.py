"""Everything that a status, a report, a picture or a table needs of a job, read once and from one moment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from mops.errors import CorruptRecord, JobError, MopsError, UsageError
from mops.figures.columns import Flags, Integers, is_number
from mops.figures.fan import MOST_VALUES, sample_of_sets
from mops.jobs.causes import CAUSES, COLUMNS, Cause, cause_table, causes_of, reasons_of
from mops.jobs.conditions import Where
from mops.jobs.scan import CHUNK_ROWS, Parameters, Scan, Selection
from mops.jobs.status import JobMoment
from mops.jobs.summary import Reason
from mops.project.mops_toml import Observed, read_observed
from mops.storage.dataset import dataset_of, dataset_problems, read_current
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, read_reference
from mops.storage.joblog.log import WholeLog
from mops.storage.joblog.records import COMPACTIONS
from mops.storage.json_records import RESTORE_HINT
from mops.storage.paths import bundle_path
from mops.storage.samples import as_table, read_samples
from mops.storage.sources import PartRows, SourceLog, part_rows, source_logs, verify_job
from mops.study.column_families import Families, join_families
from mops.study.groups import IDENTITY_FIELDS
from mops.task import FAILURES, LOSSES

T = TypeVar("T")

_SCHEMAS = {"losses": LOSSES, "failures": FAILURES}


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
        Parts of a derived job's sources in which the rows of some groups do not count.
    """

    kind: str
    name: str
    rows: int
    bytes: int
    folder: str
    paths: tuple[str, ...]
    filtered: tuple[FilteredPart, ...] = ()


def kept_outputs(record: JobRecord, reference: Families | None) -> list[str]:
    """Return the names of the outputs that a job keeps, by its reference schema; None: it has none yet."""
    return [name for name in reference or {} if record.spec.outputs is None or name in record.spec.outputs]


@dataclass(frozen=True, eq=False, repr=False)
class JobData(JobMoment):
    """A job at one moment, with its tables. Each part is read when it is first needed, and then kept.

    The parts are those that the log names up to its position of that moment. What may be larger than memory is not
    kept: the rows of failures, and rows of outputs beyond the sample of sets that figures show.
    """

    # Of the jobs from which rows come, by the id of the job: they are complete, so all moments of a job may share them.
    source_logs: dict[str, list[SourceLog]] = field(default_factory=dict)

    @cached_property
    def _sources(self) -> list[SourceLog]:
        """The logs of the jobs from which rows come; the last one is that of the job itself."""
        compaction = COMPACTIONS.read(self.files, self.record.paths.compaction) if self.view.complete else None
        own = SourceLog(self.record.own, WholeLog(self.view, self.commits, compaction))
        if (logs := self.source_logs.get(self.record.id)) is None:
            logs = self.source_logs[self.record.id] = source_logs(self.files, self.record)
        return [*logs, own]

    @cached_property
    def _datasets(self) -> dict[tuple[str, str | None], ds.Dataset]:
        return {}

    def _from_current(self, use: Callable[[list[SourceLog]], T]) -> T:
        """Call a function with the logs, whose current parts it reads."""

        def again() -> list[SourceLog]:
            # `clean` has removed parts that a compaction had replaced. The logs themselves are complete then.
            self.source_logs.clear()
            for name in ("_sources", "_datasets"):
                self.__dict__.pop(name, None)
            return self._sources

        return read_current(self._sources, again, use)

    # The outputs and their parts

    @cached_property
    def _reference(self) -> Families | None:
        return read_reference(self.files, self.record.paths)

    @cached_property
    def _families(self) -> Families:
        if self._reference is None:
            return {}
        return join_families(self._reference, *(source.log.view.families for source in self._sources))

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs that the job keeps; empty before the first successful simulation."""
        return kept_outputs(self.record, self._reference)

    def check_output(self, output: str) -> None:
        """Raise JobError if the job has no output of this name; the error lists its outputs."""
        if output in (names := self.output_names):
            return
        if names:
            hint = f"its outputs are {', '.join(names)}"
        elif self.view.complete:
            hint = f"it has none, because no simulation is good: mops jobs failures {self.name}"
        else:
            hint = "wait until a simulation has finished"
        raise JobError(f"job {self.name!r} has no output {output!r}", where=self.files.url, hint=hint)

    def paths(self, output: str) -> list[str]:
        """Return the paths of an output's parts, relative to the storage."""
        self.check_output(output)
        return [rows.part.path for rows in part_rows(self._sources, "outputs", output)]

    def tables(self) -> list[TableSummary]:
        """Return a summary of each table: the outputs, the losses, the failures."""
        named = [("outputs", name) for name in self.output_names] + [("losses", None), ("failures", None)]
        return [self.table(kind, name) for kind, name in named]

    def table(self, kind: str, name: str | None = None) -> TableSummary:
        """Return a summary of one table, which has no rows if the job has no output of this name."""
        return self._from_current(functools.partial(self._summary, kind, name))

    def _summary(self, kind: str, name: str | None, sources: list[SourceLog]) -> TableSummary:
        url, rows = self.files.url, part_rows(sources, kind, name)
        return TableSummary(
            kind=kind,
            name=name or kind,
            rows=self._n_rows(rows, name),
            bytes=sum(some.part.bytes for some in rows),
            folder=f"{url}/{self.record.paths.folder(kind, name)}",
            paths=tuple(f"{url}/{some.part.path}" for some in rows if not some.without),
            filtered=tuple(
                FilteredPart(f"{url}/{some.part.path}", some.without.intervals) for some in rows if some.without
            ),
        )

    def _n_rows(self, rows: Sequence[PartRows], name: str | None) -> int:
        mixed = [some for some in rows if some.without]
        families = self._families.get(name or "")
        n_mixed: int = dataset_of(self.files, self.name, mixed, pa.schema([]), families).count_rows()
        return n_mixed + sum(some.part.rows for some in rows if not some.without)

    def n_rows(self, output: str) -> int:
        """Return the number of rows of an output."""
        return self._from_current(lambda sources: self._n_rows(part_rows(sources, "outputs", output), output))

    def dataset(self, kind: str, output: str | None = None) -> ds.Dataset:
        """Return rows as a dataset, as :meth:`mops.Job.dataset`."""
        if output is not None:
            self.check_output(output)

        def opened(sources: list[SourceLog]) -> ds.Dataset:
            rows = part_rows(sources, kind, output)
            if output is not None:
                families = self._families.get(output)
                return dataset_of(self.files, self.name, rows, pa.schema(IDENTITY_FIELDS), families)
            texts = ("traceback",) if kind == "failures" else ()  # thousands of failures may have the same one
            return dataset_of(self.files, self.name, rows, _SCHEMAS[kind], dictionaries=texts)

        if (kind, output) not in self._datasets:
            found = self._from_current(opened)
            self._datasets[kind, output] = found
        return self._datasets[kind, output]

    # The parameter sets

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters of the sets as columns."""
        return Parameters(self.files, self.record.paths)

    @cached_property
    def groups_run(self) -> Integers:
        """The groups that have run, sorted."""
        return np.fromiter(self.record.taken_over | self.view.committed, np.int64)

    @cached_property
    def has_run(self) -> Flags:
        """Whether each group has run."""
        has_run = np.zeros(self.record.n_groups, bool)
        has_run[self.groups_run] = True
        return has_run

    # Rows

    def scan(self, selection: Selection, kind: str, output: str | None = None) -> Scan:
        """Return selected rows of a table."""
        order, rows = ("group",) if kind == "losses" else ("group", "replicate"), self.dataset(kind, output)
        return Scan(rows, self.parameters, selection, order, sorts_batches=kind != "outputs")

    @cached_property
    def losses(self) -> pa.Table:
        """The losses, sorted by group."""
        return self.scan(Selection(), "losses").table()

    @cached_property
    def samples(self) -> pa.Table:
        """The progress of the job, as :meth:`mops.Job.samples`."""
        return as_table(read_samples(self.files, self.record.paths))

    def rows(self, output: str, columns: Sequence[str], groups: Integers, where: Where | None = None) -> pa.Table:
        """Return the columns ``group``, ``replicate`` and others of the rows of some groups that meet a condition."""
        names, of_groups = list(dict.fromkeys(("group", "replicate", *columns))), pa.array(groups, pa.int32())
        if where is not None:
            scan = self.scan(Selection(where=where, columns=names), "outputs", output)
            found = (batch.filter(pc.is_in(batch["group"], of_groups)) for batch in scan.batches())
            return pa.Table.from_batches(found, scan.schema)
        if (kept := self._kept.get(output)) is None:
            kept = self._kept[output] = _KeptRows(self, output)
        if not np.isin(groups, kept.groups).all():
            return kept.read(names, of_groups)
        rows = kept.columns(names)
        return rows if len(groups) == len(kept.groups) else rows.filter(pc.is_in(rows["group"], of_groups))

    @cached_property
    def _kept(self) -> dict[str, _KeptRows]:
        return {}

    # Failures

    def _failures(self, columns: Collection[str], use: Callable[[Iterator[pa.RecordBatch]], T]) -> T:
        def read(_: list[SourceLog]) -> T:
            rows = self.dataset("failures")
            return use(rows.to_batches(columns=list(columns), batch_size=CHUNK_ROWS, fragment_readahead=1))

        return self._from_current(read)  # `clean` may remove a part while its rows are read

    @cached_property
    def causes(self) -> list[Cause]:
        """The causes of failures, the most frequent first."""
        return self._failures(COLUMNS, causes_of) if self.n_failed else []

    @cached_property
    def cause_table(self) -> pa.Table:
        """The table of :meth:`mops.Job.causes`."""
        return cause_table(self.causes, self.parameters, self.has_run) if self.causes else CAUSES.empty_table()

    @cached_property
    def reasons(self) -> list[Reason]:
        """The reasons of failures, the most frequent first. It reads no tracebacks."""
        columns = ("group", "replicate", "target", "reason", "message")
        return self._failures(columns, reasons_of) if self.n_failed else []

    # The project

    @cached_property
    def observed(self) -> list[Observed] | MopsError:
        """The data that the project declares for outputs, or why they cannot be shown."""
        try:
            known = read_observed(self._bundle())
            for one in known:
                self._check_places(one)
        except MopsError as wrong:
            return wrong
        return known

    def _bundle(self) -> bytes:
        """Return the files of the project; raise CorruptRecord if they are missing or damaged."""
        path = bundle_path(self.record.bundle)
        where = f"{self.files.url}/{path}"
        try:
            bundle = self.files.get(path)
        except FileNotFoundError:
            raise CorruptRecord("the bundle of the project is missing", where=where, hint=RESTORE_HINT) from None
        if sha256(bundle).hexdigest() != self.record.bundle:
            raise CorruptRecord("the bundle of the project is damaged", where=where, hint=RESTORE_HINT)
        return bundle

    def _check_places(self, data: Observed) -> None:
        """Raise UsageError if one of data and output has times, and the other one numbers."""
        schema = self.dataset("outputs", data.output).schema if data.output in self.output_names else pa.schema([])
        if data.x in schema.names and is_number(schema.field(data.x).type) != is_number(data.table[data.x].type):
            what = f"the column {data.x!r} of the data has the type {data.table[data.x].type}"
            hint = f"the output {data.output!r} has the type {schema.field(data.x).type}"
            raise UsageError(what, where=data.file, hint=hint)


def verify(files: Files, name: str) -> list[str]:
    """Return the problems of a job's log, parts and outputs, as :meth:`mops.Job.verify`."""
    if problems := verify_job(files, name):
        return problems
    data = JobData.read(files, name)
    return data._from_current(functools.partial(dataset_problems, files, data.record.paths))


class _KeptRows:
    """Rows of an output, of the sample of sets that figures show: each column is read once."""

    def __init__(self, data: JobData, output: str):
        self._data, self._output = data, output
        self._n_rows = data.n_rows(output)
        self.groups = sample_of_sets(data.groups_run, self._n_rows)
        self._is_all = len(self.groups) == len(data.groups_run)
        self._columns: dict[str, pa.ChunkedArray] = {}

    def columns(self, names: Sequence[str]) -> pa.Table:
        missing = [name for name in names if name not in self._columns]
        if missing:
            every = self._data.dataset("outputs", self._output).schema.names
            if self._n_rows * len(every) <= MOST_VALUES:
                missing = [*missing, *(name for name in every if name not in (*missing, *self._columns))]
            # Arrow scans a dataset in its order, so the rows of two reads are the same.
            table = self.read(missing, pa.array(self.groups, pa.int32()))
            self._columns |= {name: table[name] for name in missing}
        return pa.table({name: self._columns[name] for name in names})

    def read(self, names: Sequence[str], groups: pa.Array) -> pa.Table:
        where = None if self._is_all and len(groups) == len(self.groups) else pc.field("group").isin(groups)
        scan = self._data.scan(Selection(where=where, columns=names), "outputs", self._output)
        return pa.Table.from_batches(scan.batches(), scan.schema)
