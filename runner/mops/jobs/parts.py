"""A job's committed parts: where they are, whether they are whole, and the dataset that reads them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from mops.errors import JobError
from mops.jobs.results import FilteredPart, TableSummary
from mops.jobs.status import JobState
from mops.storage.compaction import Compacted, compact
from mops.storage.dataset import dataset_of, dataset_problems, read_current
from mops.storage.job_records import read_reference
from mops.storage.joblog.log import read_whole
from mops.storage.paths import JobPaths
from mops.storage.sources import PartRows, SourceLog, families_of, part_rows, source_logs, verify_job
from mops.study.column_families import Columns, Families
from mops.study.groups import IDENTITY_FIELDS
from mops.task import FAILURES, LOSSES

T = TypeVar("T")

_SCHEMAS = {"losses": LOSSES, "failures": FAILURES}


class JobParts(JobState):
    """One job with its parts. Those of a derived job include the parts of its sources."""

    @functools.cached_property
    def _known_sources(self) -> dict[str, list[SourceLog]]:
        # By the id of the job, because the name may have another job later.
        return {}

    def _sources(self) -> list[SourceLog]:
        record, known = self.record, self._known_sources
        if record.id not in known:
            known[record.id] = source_logs(self.files, record)  # only a compaction changes their parts
        return [*known[record.id], SourceLog(record.own, read_whole(self.files, record.paths))]

    def _sources_now(self) -> list[SourceLog]:
        # The logs of the sources are read again, because a compaction may have replaced their parts.
        self.__dict__.pop("_known_sources", None)
        return self._sources()

    def _read(self, use: Callable[[list[SourceLog]], T]) -> T:
        """Call a function with the logs of the job and of its sources, whose current parts it reads."""
        return read_current(self._sources(), self._sources_now, use)

    def verify(self) -> list[str]:
        """Check the job's log, the size and SHA-256 of every part, and that each output reads as one dataset.

        Returns
        -------
        list of str
            A line for each problem; empty: there is none.
        """
        return verify_job(self.files, self.name) or self._read(
            functools.partial(dataset_problems, self.files, self.record.paths)
        )

    def compact(self) -> Compacted:
        """Merge small parts of the complete job into larger ones, once. The rows and their order stay the same.

        The small parts stay until ``mops jobs clean`` removes them.

        Returns
        -------
        Compacted
            The number of parts and their bytes, before and after.

        Raises
        ------
        JobError
            The job is not complete.
        CorruptRecord
            A part is missing or damaged.
        """
        return compact(self.files, self.record)

    def output_names(self) -> list[str]:
        """Return the names of the outputs that the job keeps; empty before the first successful simulation."""
        record = self.record
        keep = record.spec.outputs
        reference = read_reference(self.files, record.paths) or {}
        return [name for name in reference if keep is None or name in keep]

    def paths(self, output: str) -> list[str]:
        """Return the paths of an output's committed parts, relative to the storage.

        The parts of a derived job's sources have rows that do not count. :meth:`outputs` leaves them out.

        Raises
        ------
        JobError
            The job has no output of this name; the error lists its outputs.
        """
        self._check_output(output)
        return [rows.part.path for rows in part_rows(self._sources_now(), "outputs", output)]

    def tables(self) -> list[TableSummary]:
        """Return a summary of each table of committed results: the outputs, the losses, the failures.

        Returns
        -------
        list of TableSummary
            Name, number of rows, size in bytes, folder and paths of the parts.
        """
        named = [("outputs", name) for name in self.output_names()] + [("losses", None), ("failures", None)]
        self.__dict__.pop("_known_sources", None)  # the paths must be those of now
        paths = self.record.paths

        def read(sources: list[SourceLog]) -> list[TableSummary]:
            families = self._families(sources)
            return [
                self._table(paths, kind, name, part_rows(sources, kind, name), families.get(name or ""))
                for kind, name in named
            ]

        return self._read(read)

    def _families(self, sources: list[SourceLog]) -> Families:
        return families_of(self.files, self.record.paths, (source.log.view for source in sources)) or {}

    def _table(
        self, paths: JobPaths, kind: str, name: str | None, rows: Sequence[PartRows], families: Columns | None
    ) -> TableSummary:
        url = self.files.url
        whole = [some.part for some in rows if not some.without]
        mixed = [some for some in rows if some.without]
        n_mixed = dataset_of(self.files, self.name, mixed, pa.schema([]), families).count_rows()
        return TableSummary(
            kind=kind,
            name=name or kind,
            rows=sum(part.rows for part in whole) + n_mixed,
            bytes=sum(some.part.bytes for some in rows),
            folder=f"{url}/{paths.folder(kind, name)}",
            paths=tuple(f"{url}/{part.path}" for part in whole),
            filtered=tuple(FilteredPart(f"{url}/{some.part.path}", some.without.intervals) for some in mixed),
        )

    def _check_output(self, output: str) -> None:
        if output not in (names := self.output_names()):
            if names:
                hint = f"its outputs are {', '.join(names)}"
            elif self.status().state in ("succeeded", "partial"):
                hint = f"it has none, because no simulation is good: mops jobs failures {self.name}"
            else:
                hint = "wait until a simulation has finished"
            raise JobError(f"job {self.name!r} has no output {output!r}", where=self.files.url, hint=hint)

    def dataset(self, kind: str, output: str | None = None) -> ds.Dataset:
        """Return committed rows as a pyarrow dataset, for programs that plan their own scans.

        Parameters
        ----------
        kind : {"outputs", "losses", "failures"}
            The table. It has no columns for parameters.
        output
            The name of the output, if ``kind`` is ``outputs``.

        Returns
        -------
        pyarrow.dataset.Dataset
            Rows in the order in which parameter sets finished. A column that is int in some parts and float in others
            is float64.

        Raises
        ------
        JobError
            The job has no output of this name; the error lists its outputs.
        CorruptRecord
            A part is missing, or is not a Parquet file. Only :meth:`verify` finds damage inside a part.
        """
        if output is not None:
            self._check_output(output)
        return self._read(functools.partial(self._opened, kind, output))

    def _opened(self, kind: str, output: str | None, sources: list[SourceLog]) -> ds.Dataset:
        rows = part_rows(sources, kind, output)
        if output is None:
            texts = ("traceback",) if kind == "failures" else ()  # thousands of failures may have the same one
            return dataset_of(self.files, self.name, rows, _SCHEMAS[kind], dictionaries=texts)
        families = self._families(sources).get(output)
        return dataset_of(self.files, self.name, rows, pa.schema(IDENTITY_FIELDS), families)
