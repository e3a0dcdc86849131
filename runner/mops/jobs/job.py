"""A job as users see it: its state, and its results as Arrow tables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from mops.errors import JobError, PartsReplaced
from mops.jobs.failures.cause_table import CAUSES, FailedJob
from mops.jobs.results import CHUNK_ROWS, FilteredPart, Reason, Table, best_sets, count_reasons
from mops.jobs.status import JobState, storage_of
from mops.storage.ancestors import PartRows, ResultSource, ancestors, families_of, parts, verify_job
from mops.storage.compaction.compactor import Compacted, compact
from mops.storage.compaction.reading import Reopening, part_missing, read_current
from mops.storage.dataset import dataset_of
from mops.storage.job_records import read_reference
from mops.storage.joblog.one_dataset import dataset_problems
from mops.storage.joblog.whole import read_whole
from mops.storage.samples import as_table, read_samples
from mops.study.groups import IDENTITY_FIELDS
from mops.task import FAILURES, LOSSES

T = TypeVar("T")


def open_job(name: str, storage: str | Path | None = None, *, local: bool = False) -> Job:
    """Open a job.

    Parameters
    ----------
    name
        The job's name, as ``mops jobs submit`` printed it.
    storage
        URL or folder of the results; None: ``MODELOPS_STORAGE``, else the connected service's storage, else
        ``mops-storage`` in the project around the working directory.
    local
        Use this machine's storage even when connected to a service.

    Raises
    ------
    JobError
        The job does not exist; the error lists similar names.
    StorageError
        The storage is out of reach.

    Examples
    --------
    >>> job = mops.open_job("waves-261124-3f2a")
    >>> job.losses(params=True).to_pandas()
    """
    return Job(storage_of(name, storage, local=local), name)


class Job(JobState):
    """One job: its state, and what it has committed so far. Every method reads the present state."""

    @functools.cached_property
    def _ancestors(self) -> list[ResultSource]:
        return ancestors(self.files, self.record)  # they are complete, so only a compaction changes them

    def _sources(self) -> list[ResultSource]:
        return [*self._ancestors, ResultSource(self.name, read_whole(self.files, self._paths))]

    def _sources_now(self) -> list[ResultSource]:
        """Read also the logs of the ancestors again, whose parts a compaction may have replaced."""
        self.__dict__.pop("_ancestors", None)
        return self._sources()

    def _read(self, use: Callable[[list[ResultSource]], T]) -> T:
        """Call a function with the logs of the job and of its ancestors, whose current parts it reads."""
        try:
            return read_current(self._sources(), self._sources_now, use)
        except FileNotFoundError as missing:
            raise part_missing(self.name, str(missing)) from missing

    def verify(self) -> list[str]:
        """Check the job's log, the size and SHA-256 of every part, and that each output reads as one dataset.

        Returns
        -------
        list of str
            A line for each problem; empty: there is none.
        """
        return verify_job(self.files, self.name) or self._read(
            functools.partial(dataset_problems, self.files, self.name)
        )

    def compact(self) -> Compacted:
        """Merge small parts of the complete job into larger ones. The rows and their order stay the same.

        Returns
        -------
        Compacted
            The number of parts and their bytes, before and after.

        Raises
        ------
        JobError
            The job is not complete.
        Superseded
            Another process compacts the job, and began later.
        CorruptRecord
            A part is missing or damaged.
        """
        return compact(self.files, self.record)

    def output_names(self) -> list[str]:
        """Return the names of the outputs that the job keeps; empty before the first successful simulation."""
        keep = self.record.spec.outputs
        reference = read_reference(self.files, self._paths) or {}
        return [name for name in reference if keep is None or name in keep]

    def paths(self, output: str) -> list[str]:
        """Return the paths of an output's committed parts, relative to the storage.

        The parts of a derived job's ancestors have rows that do not count. :meth:`outputs` leaves them out.

        Raises
        ------
        JobError
            The job has no output of this name; the error lists its outputs.
        """
        self._check_output(output)
        return [rows.part.path for rows in parts(self._sources_now(), "outputs", output)]

    def tables(self) -> list[Table]:
        """Return a summary of each table of committed results: the outputs, the losses, the failures.

        Returns
        -------
        list of Table
            Name, number of rows, size in bytes, folder and paths of the parts.
        """
        named = [("outputs", name) for name in self.output_names()] + [("losses", None), ("failures", None)]
        self.__dict__.pop("_ancestors", None)  # the paths must be those of now
        return self._read(lambda sources: [self._table(kind, name, parts(sources, kind, name)) for kind, name in named])

    def _table(self, kind: str, name: str | None, rows: Sequence[PartRows]) -> Table:
        url = self.files.url
        whole = [some.part for some in rows if not some.without]
        mixed = [some for some in rows if some.without]
        n_mixed = dataset_of(self.files, self.name, mixed, pa.schema([])).count_rows()
        return Table(
            kind=kind,
            name=name or kind,
            rows=sum(part.rows for part in whole) + n_mixed,
            bytes=sum(some.part.bytes for some in rows),
            folder=f"{url}/{self._paths.folder(kind, name)}",
            paths=tuple(f"{url}/{part.path}" for part in whole),
            filtered=tuple(FilteredPart(f"{url}/{some.part.path}", some.without.intervals) for some in mixed),
        )

    def _check_output(self, output: str) -> None:
        if output not in (names := self.output_names()):
            hint = f"its outputs are {', '.join(names)}" if names else "wait until a simulation has finished"
            raise JobError(f"job {self.name!r} has no output {output!r}", where=self.files.url, hint=hint)

    def outputs(self, output: str) -> ds.Dataset:
        """Return an output's committed rows as a pyarrow dataset.

        Returns
        -------
        pyarrow.dataset.Dataset
            The columns ``param_id`` (string), ``group`` (int32), ``replicate`` (int32) and ``seed`` (uint64), then the
            model's columns. A column that is int in some parts and float in others is float64.

        Raises
        ------
        JobError
            The job has no output of this name; the error lists its outputs.
        CorruptRecord
            A part is missing, or is not a Parquet file. Only :meth:`verify` finds damage inside a part.

        Notes
        -----
        A compaction of the job replaces its parts. If that happens after the call, ``to_table``, ``count_rows``,
        ``head``, ``take`` and ``to_batches`` of the dataset read the new parts. If it happens between two batches of
        ``to_batches``, the dataset raises a JobError, and you call this method again.
        """
        self._check_output(output)

        def opened(sources: list[ResultSource]) -> ds.Dataset:
            families = families_of(self.files, self._paths, (source.log.view for source in sources)) or {}
            rows = parts(sources, "outputs", output)
            return dataset_of(self.files, self.name, rows, pa.schema(IDENTITY_FIELDS), families.get(output))

        found = self._read(opened)
        if isinstance(found, Reopening):
            what = f"job {self.name!r} was compacted while its rows were read"
            hint = f"open the output again: job.outputs({output!r})"
            found.reopened(lambda: self.outputs(output), PartsReplaced(what, where=self.files.url, hint=hint))
        return found

    def losses(self, *, params: bool = False) -> pa.Table:
        """Return the committed losses.

        Parameters
        ----------
        params
            Add a column for each parameter, and sort by group.

        Returns
        -------
        pyarrow.Table
            A row for each loss: ``param_id`` (string), ``group`` (int32), ``target`` (string), ``name`` (string),
            ``loss`` (float64), ``n_replicates`` (int32).

        Raises
        ------
        CorruptRecord
            A part is missing, or is not a Parquet file.
        """
        losses = self._read(
            lambda sources: dataset_of(self.files, self.name, parts(sources, "losses"), LOSSES).to_table()
        )
        if not params:
            return losses
        typed = self.params().drop_columns(["group", "seeds", "params"])
        return losses.join(typed, "param_id", right_suffix=".param").sort_by([("group", "ascending")])

    def best(self, n: int = 10, *, weights: Mapping[str, float] | None = None) -> pa.Table:
        """Return the parameter sets with the smallest losses, the best first.

        Parameters
        ----------
        n
            The most sets.
        weights
            The weight of each loss that counts, by its label: ``{"peak": 2.0, "deaths.rmse": 1.0}``. None: the sum of
            all losses.

        Returns
        -------
        pyarrow.Table
            A row for each set: ``param_id`` (string), ``group`` (int32), ``loss`` (float64, the weighted sum), a column
            for each loss (float64), then a column for each parameter. The label of a loss is the name of its target's
            function, and ``.name`` after it if the target has several losses. A parameter with the name of a column
            before it is called ``NAME.param``. Sets without all losses are left out: some of their simulations or
            targets have failed.

        Raises
        ------
        UsageError
            A weight names no loss; the error lists the labels.
        CorruptRecord
            A part is missing, or is not a Parquet file.
        """
        return best_sets(self.losses(), self.params(), n, weights)

    def failures(self, *, texts: bool = True) -> pa.Table:
        """Return the committed failures, sorted by group and replicate.

        Parameters
        ----------
        texts
            Include the columns ``message`` and ``traceback``. The tracebacks are dictionary-encoded, because thousands
            of failures may have the same one.

        Returns
        -------
        pyarrow.Table
            A row for each simulation or target that failed:

            - ``param_id`` (string), ``group`` (int32), ``replicate`` (int32), ``seed`` (uint64), ``target`` (string):
              which one; null where it does not apply, and ``target`` is ``*`` for all targets of a group
            - ``reason`` (string): the verdict: oom, crashed, timeout, error, invalid_output or lost
            - ``message`` (string), ``traceback`` (string): of the model, or of mops
            - ``attempts`` (int32): how often mops tried it
            - ``signals`` (string): what mops observed, such as the kernel's out-of-memory kill
            - ``peak_bytes`` (int64): the highest resident memory that mops saw; ``peak_at_least`` (bool): mops or the
              kernel killed it, so it needed more; ``limit_bytes`` (int64): its limit

        Raises
        ------
        CorruptRecord
            A part is missing, or is not a Parquet file.
        """
        columns = [name for name in FAILURES.names if texts or name not in ("message", "traceback")]

        def read(sources: list[ResultSource]) -> pa.Table:
            rows = parts(sources, "failures")
            dataset = dataset_of(self.files, self.name, rows, FAILURES, dictionaries=("traceback",))
            return dataset.to_table(columns=columns).unify_dictionaries()

        table = self._read(read)
        return table.take(pc.sort_indices(table, [("group", "ascending"), ("replicate", "ascending")]))

    def reasons(self) -> list[Reason]:
        """Return the reasons of failures, the most frequent first.

        Messages that differ only in numbers are one reason, with the first message. A target without losses because a
        simulation of its parameter set failed does not count. This reads three columns in chunks, so memory does not
        depend on the number of failures or the size of their tracebacks.

        Returns
        -------
        list of Reason
            The number of failures, the verdict, and the first line of the message.
        """

        def read(sources: list[ResultSource]) -> list[Reason]:
            counts = self.record.taken_over_counts + sources[-1].log.view.counts
            rows = parts(sources, "failures") if counts.failed else []
            dataset = dataset_of(self.files, self.name, rows, FAILURES)
            is_cause = ds.field("target").is_null() | (ds.field("target") != "*")
            columns = ["reason", "message"]
            batches = dataset.to_batches(columns, is_cause, batch_size=CHUNK_ROWS, fragment_readahead=1)
            return count_reasons(batches)

        return self._read(read)

    def causes(self) -> pa.Table:
        """Return the causes of failures, the most frequent first.

        Failures have one cause if the verdict, the target, the first line of the message (without numbers, ids and
        folders) and the last place in the project's code are equal. A target without losses because a simulation of
        its parameter set failed has no cause. This reads the failures and the parameter sets in chunks.

        Returns
        -------
        pyarrow.Table
            A row for each cause:

            - ``cause`` (string): the first line of the first failure's message
            - ``verdict``, ``stage`` (string): the verdict; ``model`` or ``target``
            - ``target`` (string): the target; null if simulations failed
            - ``place`` (string): the last place in the project's code, such as ``model.py:12 in run``; may be empty
            - ``n``, ``sets`` (int64): failed simulations or scores, and their parameter sets
            - ``ranges`` (list of string): parameters whose range in these sets is clearly narrower than in all sets
              that have run, the narrowest first; empty beyond the 50 most frequent causes
            - ``param_id`` (string), ``group`` (int32), ``replicate`` (int32), ``seed`` (uint64), ``params`` (string),
              ``message`` (string), ``traceback`` (string): the first failure, in study order, and its parameters

        Raises
        ------
        CorruptRecord
            A part is missing, or is not a Parquet file.
        """

        def read(sources: list[ResultSource]) -> pa.Table:
            record, view = self.record, sources[-1].log.view
            if not (record.taken_over_counts + view.counts).failed:
                return CAUSES.empty_table()
            finished = record.taken_over | view.committed
            return FailedJob(self.files, self.name, parts(sources, "failures"), finished).causes()

        return self._read(read)

    def samples(self, newest: int | None = None) -> pa.Table:
        """Return the progress of the job, with a row about every 10 s, in the order of time.

        Parameters
        ----------
        newest
            Read only this many of the newest objects with samples, each of about a minute; None: all.

        Returns
        -------
        pyarrow.Table
            - ``attempt`` (int32), ``time`` (timestamp in ms, UTC)
            - ``simulations_good``, ``simulations_failed``, ``targets_good``, ``targets_failed`` (int64): finished so
              far, in all attempts
            - ``durable`` (int64): committed simulations
            - ``rate`` (float64): simulations per second
            - ``memory_bytes``, ``runner_bytes`` (int64): resident memory of all processes, and of the runner
            - ``in_flight``, ``slots`` (int32): groups in flight, and simulations that run at the same time
            - ``open_bytes`` (int64): results that are not committed yet
            - ``verdicts`` (map of string to int64): failures by verdict
        """
        return as_table(read_samples(self.files, self._paths, newest))

    def params(self) -> pa.Table:
        """Return the parameter sets.

        Returns
        -------
        pyarrow.Table
            A row for each group: ``param_id`` (string), ``group`` (int32), ``seeds`` (list of uint64), ``params`` (the
            set as canonical JSON), then a column for each parameter.
        """
        filesystem, path = self.files.arrow(self._paths.params)
        return pq.read_table(path, filesystem=filesystem)
