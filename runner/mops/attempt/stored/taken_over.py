"""Reads the simulations that a derived job takes over of the groups that it runs again (docs/internals/storage.md).

Their rows stay where they are: in the parts of the parent and its ancestors. Targets need them as well as the rows of
the replicates that the job runs itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from mops.attempt.stored.rows import (
    CHUNK_BYTES,
    CHUNKS_KEPT,
    MOST_GROUPS,
    TASK_BYTES,
    GroupRows,
    SortedRows,
    StoredOutput,
    as_result,
    explained,
    groups_in,
)
from mops.storage.ancestors import ResultSource, ancestors, families_of, parts
from mops.storage.dataset import dataset_of, read_current
from mops.storage.files import Files
from mops.storage.job_records import JobRecord
from mops.storage.params_file import load_groups
from mops.study.casts import converted_table
from mops.study.groups import IDENTITY_FIELDS, Recent
from mops.study.ranges import Ranges
from mops.task import ResultBuffer

T = TypeVar("T")


class TakenOver:
    """The stored simulations of groups that run again: the first replicates of each, all of them good.

    Parameters
    ----------
    record
        A job. It has such groups only if it is derived from another.
    has_targets
        Whether targets need the rows.
    """

    def __init__(self, files: Files, record: JobRecord, *, has_targets: bool):
        self._files, self._record = files, record
        self._groups, self._table, self._has_targets = Ranges(), None, has_targets
        if record.parent is not None and record.parent.simulated:
            self._groups, self._table = record.parent.simulated, load_groups(files, record.parent.paths)
        self._sources: list[ResultSource] = []
        self._outputs: dict[str, StoredOutput] = {}
        self._chunks: Recent[dict[str, SortedRows]] = Recent(CHUNKS_KEPT)

    def n(self, group: int) -> int:
        """Return how many of a group's replicates are stored."""
        return self._table.n_replicates(group) if self._table is not None and group in self._groups else 0

    @property
    def most_groups(self) -> int:
        """The most groups of a task, because a child process holds all their stored rows."""
        return self._groups_in(TASK_BYTES) if self._has_targets else MOST_GROUPS

    def results(self, groups: Sequence[int]) -> list[ResultBuffer]:
        """Return the stored results of some groups. From one thread at a time.

        Raises
        ------
        CorruptRecord
            A part of an ancestor is missing or damaged.
        StorageError
            The storage is out of reach.
        """
        outputs: dict[str, list[GroupRows]] = {}
        for group in groups:
            if n_replicates := self.n(group):
                for output, rows in self._chunk_of(group).items():
                    outputs.setdefault(output, []).append(rows.of(group, range(n_replicates)))
        return [as_result(output, found) for output, found in outputs.items()]

    def _groups_in(self, n_bytes: int) -> int:
        """Return about how many groups have so many bytes of stored rows."""
        if self._table is None:
            return MOST_GROUPS
        stored = self._read(lambda: sum(output.n_bytes for output in self._outputs.values()))
        return groups_in(n_bytes, stored / len(self._table))

    def _chunk_of(self, group: int) -> dict[str, SortedRows]:
        """Return the rows of the outputs for some consecutive groups: tasks take groups about in order."""
        size = self._chunk_groups
        first = group - group % size
        return self._chunks.get(first, lambda: self._read(lambda: self._load(first, first + size)))

    @functools.cached_property
    def _chunk_groups(self) -> int:
        return self._groups_in(CHUNK_BYTES)

    def _load(self, first: int, stop: int) -> dict[str, SortedRows]:
        return {name: self._load_output(output, first, stop) for name, output in self._outputs.items()}

    def _load_output(self, output: StoredOutput, first: int, stop: int) -> SortedRows:
        chunk = Ranges(((first, stop),))
        rows = [some for some in output.parts if some.groups.overlaps(chunk)]
        in_chunk = (pc.field("group") >= first) & (pc.field("group") < stop)
        table = dataset_of(self._files, self._record.job, rows, output.schema, output.families).to_table(
            filter=in_chunk
        )
        return SortedRows.of_table(converted_table(table, output.schema))

    def _read(self, use: Callable[[], T]) -> T:
        """Call a function that reads the outputs; again if `clean` has removed some of their parts."""

        def use_sources(sources: list[ResultSource]) -> T:
            if sources is not self._sources:
                self._outputs, self._sources = self._opened(sources), sources
            return use()

        def sources_now() -> list[ResultSource]:
            return ancestors(self._files, self._record)

        with explained(self._files, self._record.job):
            return read_current(self._sources or sources_now(), sources_now, use_sources)

    def _opened(self, sources: list[ResultSource]) -> dict[str, StoredOutput]:
        job = self._record.job
        families = families_of(self._files, self._record.paths, (source.log.view for source in sources)) or {}
        found = {}
        for name, columns in families.items():
            rows = parts(sources, "outputs", name)
            schema = dataset_of(self._files, job, rows, pa.schema(IDENTITY_FIELDS), columns).schema
            found[name] = StoredOutput(rows, schema, columns)
        return found
