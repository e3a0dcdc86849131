"""A job's results as tables: outputs, losses, failures, parameter sets and progress, and their export to files."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds

from mops.errors import UsageError, known_name
from mops.jobs.export import Exported, Format, export
from mops.jobs.failures.cause_table import CAUSES, FailedJob
from mops.jobs.parts import JobParts
from mops.jobs.results import CHUNK_ROWS, Reason, count_reasons
from mops.jobs.tables.conditions import Where
from mops.jobs.tables.parameters import Parameters
from mops.jobs.tables.ranking import RANKED_BY, ranked
from mops.jobs.tables.scan import Computed, Scan, Selection
from mops.jobs.tables.table import Table
from mops.storage.dataset import dataset_of
from mops.storage.params_file import free_names
from mops.storage.samples import as_table, read_samples
from mops.storage.sources import SourceLog, part_rows
from mops.task import FAILURES


class JobTables(JobParts):
    """One job with the tables of its results. A :class:`Table` reads its rows when you convert it."""

    def _parameters(self) -> Parameters:
        return Parameters(self.files, self.record.paths)

    def _scan(self, selection: Selection, order: Sequence[str], kind: str, output: str | None = None) -> Scan:
        return Scan(self.dataset(kind, output), self._parameters(), selection, order)

    def outputs(
        self,
        output: str,
        *,
        params: bool = False,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
    ) -> Table:
        """Return an output's committed rows. mops reads them when you convert the table, batch by batch.

        Parameters
        ----------
        output
            The name of the output.
        params
            Add a column for each parameter. A parameter with the name of another column is called ``param.NAME``. Upper
            and lower case are the same, because SQL engines do not tell them apart.
        where
            Which rows: a text such as ``"beta > 0.3 and day == 30"``, an expression such as
            ``pyarrow.compute.field("beta") > 0.3``, or a value or a list of values for each column,
            ``{"beta": 0.3, "replicate": [0, 1]}``. Parameters can be named even without ``params``. In a mapping, the
            beginning of a ``param_id`` is enough. None: all rows.
        columns
            Which columns, in this order; parameters can be named. None: all columns, with ``params``.

        Returns
        -------
        Table
            The columns ``param_id`` (string), ``group`` (int32), ``replicate`` (int32) and ``seed`` (uint64), then the
            model's columns, then the parameters (boolean, int64, float64 or string). Parameter sets come in the order
            in which they finished.

        Raises
        ------
        JobError
            The job has no output of this name; the error lists its outputs.

        Examples
        --------
        >>> job.outputs("daily", params=True).to_pandas()
        >>> job.outputs("daily", where="day == 30", columns=["beta", "infected"]).to_polars()
        """
        self._check_output(output)
        selection = Selection(params, where, columns)
        opened = functools.partial(self._scan, selection, (), "outputs", output)
        return Table(f"output {output!r} of job {self.name!r}", opened, ("group", "replicate"))

    def losses(
        self, *, params: bool = False, where: Where | None = None, columns: Sequence[str] | None = None
    ) -> Table:
        """Return the committed losses, sorted by group.

        Parameters
        ----------
        params, where, columns
            As for :meth:`outputs`.

        Returns
        -------
        Table
            A row for each loss: ``param_id`` (string), ``group`` (int32), ``target`` (string), ``name`` (string),
            ``loss`` (float64), ``n_replicates`` (int32), then the parameters.

        Examples
        --------
        >>> job.losses(params=True, where={"name": "peak"}).to_pandas()
        """
        opened = functools.partial(self._scan, Selection(params, where, columns), ("group",), "losses")
        return Table(f"losses of job {self.name!r}", opened, ("group", "target", "name"))

    def best(
        self,
        n: int = 10,
        *,
        target: str | None = None,
        weights: Mapping[str, float] | None = None,
        where: Where | None = None,
    ) -> Table:
        """Return the parameter sets with the smallest losses, the best first.

        Parameters
        ----------
        n
            The most sets, by each loss.
        target
            Only the losses of this target, by its entry point or the name of its function. None: all targets.
        weights
            The weight of each loss that counts, by its label: ``{"peak": 2.0, "deaths.rmse": 1.0}``. None: if there are
            several losses, the table has the best sets by each loss, because losses may have different units.
        where
            Which sets, by a condition for the columns of the result, as for :meth:`outputs`.

        Returns
        -------
        Table
            A row for each set: ``param_id`` (string), ``group`` (int32), ``loss`` (float64, the loss or weighted sum
            that ranks the set), a column for each loss (float64), then a column for each parameter. With several losses
            and no weights, the first column is ``ranked_by`` (string): the label of the loss that ranks the set. The
            label of a loss is the name of its target's
            function, and ``.name`` after it if the target has several losses. A parameter with the name of another
            column is called ``param.NAME``. Sets without the losses that count are left out: some of their simulations
            or targets have failed.

        Raises
        ------
        UsageError
            When the table is read: the target has no loss, or a weight names no loss; the error lists the names.

        Examples
        --------
        >>> job.best(5, target="peak").to_pandas()
        """

        def opened() -> Computed:
            sets, parameters = ranked(self.losses().to_arrow(), target, weights), self._parameters()
            table = parameters.joined(sets)
            of_set = ["param_id", *table.column_names[sets.num_columns :]]
            each = RANKED_BY if RANKED_BY in sets.column_names else None
            return Computed(table, Selection(where=where), parameters.ids, of_set, first=n, each=each)

        return Table(f"best parameter sets of job {self.name!r}", opened, ("group",))

    def failures(
        self, *, params: bool = False, where: Where | None = None, columns: Sequence[str] | None = None
    ) -> Table:
        """Return the committed failures, sorted by group and replicate.

        Parameters
        ----------
        params, where, columns
            As for :meth:`outputs`.

        Returns
        -------
        Table
            A row for each simulation or target that failed:

            - ``param_id`` (string), ``group`` (int32), ``replicate`` (int32), ``seed`` (uint64), ``target`` (string):
              which one; null where it does not apply, and ``target`` is ``*`` for all targets of a group
            - ``reason`` (string): the verdict: oom, crashed, timeout, error, invalid_output or lost
            - ``message`` (string), ``traceback`` (string, as a dictionary): of the model, or of mops
            - ``attempts`` (int32): how often mops tried it
            - ``signals`` (string): what mops observed, such as the kernel's out-of-memory kill
            - ``peak_bytes`` (int64): the highest resident memory that mops saw; ``peak_at_least`` (bool): mops or the
              kernel killed it, so it needed more; ``limit_bytes`` (int64): its limit

            Then the parameters.

        Examples
        --------
        >>> job.failures(params=True, where={"reason": "timeout"}).to_pandas()
        """
        selection = Selection(params, where, columns)
        return Table(
            f"failures of job {self.name!r}",
            functools.partial(self._scan, selection, ("group", "replicate"), "failures"),
        )

    def reasons(self) -> list[Reason]:
        """Return the reasons of failures, the most frequent first.

        Messages that differ only in numbers, ids, addresses and folders are one reason, with the first message. A
        target without losses because a simulation of its parameter set failed does not count. This reads three columns
        in chunks, so memory does not depend on the number of failures or the size of their tracebacks.

        Returns
        -------
        list of Reason
            The number of failures, the verdict, and the first line of the message.
        """

        def read(sources: list[SourceLog]) -> list[Reason]:
            counts = self.record.taken_over_counts + sources[-1].log.view.counts
            rows = part_rows(sources, "failures") if counts.failed else []
            dataset = dataset_of(self.files, self.name, rows, FAILURES)
            is_cause = ds.field("target").is_null() | (ds.field("target") != "*")
            columns = ["reason", "message"]
            batches = dataset.to_batches(columns, is_cause, batch_size=CHUNK_ROWS, fragment_readahead=1)
            return count_reasons(batches)

        return self._read(read)

    def causes(self) -> Table:
        """Return the causes of failures, the most frequent first.

        Failures have one cause if the verdict, the target, the first line of the message (without numbers, ids and
        folders) and the last place in the project's code are equal. A target without losses because a simulation of
        its parameter set failed has no cause. This reads the failures and the parameter sets in chunks.

        Returns
        -------
        Table
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

        def read(sources: list[SourceLog]) -> pa.Table:
            record, view = self.record, sources[-1].log.view
            if not (record.taken_over_counts + view.counts).failed:
                return CAUSES.empty_table()
            finished = record.taken_over | view.committed
            return FailedJob(self.files, self.record.paths, part_rows(sources, "failures"), finished).causes()

        return Table(f"causes of failures of job {self.name!r}", lambda: Computed(self._read(read), Selection()))

    def samples(self, newest: int | None = None) -> Table:
        """Return the progress of the job, with a row about every 10 s, in the order of time.

        Parameters
        ----------
        newest
            Read only this many of the newest objects with samples, each of about a minute; None: all.

        Returns
        -------
        Table
            - ``attempt`` (int32), ``time`` (timestamp in ms, UTC)
            - ``simulations_good``, ``simulations_failed``, ``targets_good``, ``targets_failed`` (int64): finished so
              far, in all attempts
            - ``durable`` (int64): committed simulations
            - ``rate`` (float64): simulations per second
            - ``memory_bytes``, ``runner_bytes`` (int64): resident memory of the runner with its processes,
              and of the runner alone
            - ``in_flight``, ``slots`` (int32): groups in flight, and simulations that run at the same time
            - ``open_bytes`` (int64): results that are not committed yet
            - ``verdicts`` (map of string to int64): failures by verdict
        """

        def opened() -> Computed:
            return Computed(as_table(read_samples(self.files, self.record.paths, newest)), Selection())

        return Table(f"samples of job {self.name!r}", opened)

    def params(self, *, where: Where | None = None, columns: Sequence[str] | None = None) -> Table:
        """Return the parameter sets.

        Parameters
        ----------
        where, columns
            As for :meth:`outputs`.

        Returns
        -------
        Table
            A row for each group: ``param_id`` (string), ``group`` (int32), ``seeds`` (list of uint64), ``params``
            (string: the set as canonical JSON), then a column for each parameter (boolean, int64, float64 or string). A
            parameter with the name of one of these columns is called ``param.NAME``.
        """

        def opened() -> Computed:
            sets = self._parameters()
            return Computed(sets.whole(), Selection(where=where, columns=columns), sets.ids)

        return Table(f"parameter sets of job {self.name!r}", opened, ("group",))

    def export(
        self,
        folder: str | Path,
        file_format: Literal["parquet", "csv"] = "parquet",
        *,
        params: bool = True,
        overwrite: bool = False,
    ) -> list[Exported]:
        """Write one file for each output, and the files ``losses``, ``failures`` and ``params``.

        Parameters
        ----------
        folder
            The folder of the files; mops creates it.
        file_format
            The format of the files.
        params
            Add a column for each parameter to the outputs, the losses and the failures.
        overwrite
            Replace files that exist.

        Returns
        -------
        list of Exported
            The name of each table, its number of rows, and the path of its file.

        Raises
        ------
        UsageError
            A file exists and ``overwrite`` is false, or an output cannot be written in this format.
        StorageError
            The folder cannot be written.
        """
        if file_format not in tuple(Format):
            raise UsageError(
                f"the format {file_format!r} is unknown", where="Job.export", hint=known_name(str(file_format), Format)
            )
        # Not `seeds` and `params`: the outputs have the seeds, the other columns the parameters, and CSV has no lists.
        sets = ["param_id", "group", *self._parameters().fields(())]
        tables = {
            "losses": self.losses(params=params),
            "failures": self.failures(params=params),
            "params": self.params(columns=sets),
        }
        # A model may give its outputs any names, such as "losses" or "../x".
        quoted = {quote(name, safe=" "): name for name in self.output_names()}
        files = free_names(list(quoted), tables, "output-")
        outputs = {files[file]: self.outputs(name, params=params) for file, name in quoted.items()}
        return export(outputs | tables, Path(folder), Format(file_format), overwrite=overwrite)
