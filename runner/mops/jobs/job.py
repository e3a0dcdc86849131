"""A job as users see it: its results as tables, and what they can do with it."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import pyarrow.dataset as ds

import mops
from mops.attempt.display import bar
from mops.errors import JobError, MopsError, UsageError, known_name
from mops.jobs.conditions import Where
from mops.jobs.data import JobData, TableSummary, kept_outputs, verify
from mops.jobs.following import follow, read_log, wait_for
from mops.jobs.location import locate, service_with
from mops.jobs.ranking import RANKED_BY, ranked
from mops.jobs.removal import delete, plan_deletion
from mops.jobs.runners import Phases
from mops.jobs.scan import Computed, Parameters, Rows, Selection
from mops.jobs.status import JobState, Status, cancel_job, storage_of
from mops.jobs.summary import Reason, line_of
from mops.jobs.table import Exported, Format, Table, export
from mops.storage.compaction import Compacted, compact
from mops.storage.job_records import read_reference
from mops.storage.params_file import free_names
from mops.storage.samples import as_table, read_samples
from mops.storage.sources import SourceLog

if TYPE_CHECKING:
    from mops.jobs.plots import Plots
    from mops.storage.progress_record import Progress


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
    if not isinstance(name, str):
        what = f"the name is a {type(name).__name__}, not a text"
        raise JobError(what, where="mops.open_job", hint="write the name: mops.open_job('waves')")
    return Job(storage_of(name, locate(storage, local=local)), name, local=local)


class Job(JobState):
    """One job: its state, what it has committed so far, and what you can do with it.

    Every method reads the present state. In a notebook, the job shows its state and its progress.
    """

    def _read(self) -> JobData:
        # Who only names parts reads no part, and would not see that `clean` has removed it: see paths and tables.
        return replace(JobData.read(self.files, self.name), source_logs=self._source_logs)

    @cached_property
    def _source_logs(self) -> dict[str, list[SourceLog]]:
        return {}

    def wait(self, on_progress: Callable[[Progress], None] | None = None) -> Job:
        """Show the progress until the job ends, and return the job. A terminal shows a line, a notebook a bar.

        Use it for a job that another process runs: after ``submit(..., wait=False)``, or in another notebook. The
        runner reports its progress about every second in the first minute, and then about every 10 s.

        Parameters
        ----------
        on_progress
            Called with a ``Progress`` about once a second, instead of the line or the bar.

        Raises
        ------
        JobFailed, ModelError, InstallError, DataError, UsageError
            The job has failed; the error is the one that :func:`mops.submit` raises for this cause.
        ClusterError, RunnerEnded
            The runner ended before the end of the job; :meth:`resume` continues it.
        KeyboardInterrupt
            Ctrl-C stopped this call. The job continues.

        Examples
        --------
        >>> job = mops.submit("study.json", wait=False)
        >>> job.wait().status().state
        'succeeded'
        """
        wait_for(self, Phases.of(self.files, self.name, local=self.local), on_progress)
        return self

    def watch(self) -> Status:
        """Show the progress until the job ends, and return the last status, whatever it is.

        Ctrl-C stops this call, and the job continues.
        """
        return follow(self, Phases.of(self.files, self.name, local=self.local), None)

    def logs(self, *, tail: int | None = None) -> str:
        """Return the log of the job, with what the model printed.

        Parameters
        ----------
        tail
            Only this many last lines; None: all lines.
        """
        return "".join(read_log(self, tail=tail))

    def cancel(self, *, force: bool = False) -> bool:
        """Ask the job's runner to commit what is finished and stop. :meth:`resume` continues the job.

        Parameters
        ----------
        force
            Also cancel a job that another person has submitted to the service. This needs the Role for managers.

        Returns
        -------
        bool
            False: the job was complete already.

        Raises
        ------
        JobError
            The job belongs to another person.
        """
        return cancel_job(self, force=force) is not None

    def verify(self) -> list[str]:
        """Check the job's log, the size and SHA-256 of every part, and that each output reads as one dataset.

        Returns
        -------
        list of str
            A line for each problem; empty: there is none.
        """
        return verify(self.files, self.name)

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
        return kept_outputs(record, read_reference(self.files, record.paths))

    def paths(self, output: str) -> list[str]:
        """Return the paths of an output's committed parts, relative to the storage.

        The parts of a derived job's sources have rows that do not count. :meth:`outputs` leaves them out.

        Raises
        ------
        JobError
            The job has no output of this name; the error lists its outputs.
        """
        return JobData.read(self.files, self.name).paths(output)

    def tables(self) -> list[TableSummary]:
        """Return a summary of each table of committed results: the outputs, the losses, the failures.

        Returns
        -------
        list of TableSummary
            Name, number of rows, size in bytes, folder and paths of the parts.
        """
        return JobData.read(self.files, self.name).tables()

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
        return self._read().dataset(kind, output)

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
            The columns ``group`` (int32) and ``replicate`` (int32), then the parameters (boolean, int64, float64 or
            string), then the model's columns, and last ``seed`` (uint64) and ``param_id`` (string). Rows come in the
            order of the study; those of ``to_batches``, ``to_duckdb``, ``head``, Arrow streams and exports come by
            parameter set as it finished.

        Raises
        ------
        JobError
            The job has no output of this name; the error lists its outputs.

        Examples
        --------
        >>> job.outputs("daily", params=True).to_pandas()
        >>> job.outputs("daily", where="day == 30", columns=["beta", "infected"]).to_polars()
        """
        if output not in self.output_names():
            self._read().check_output(output)
        selection = Selection(params, where, columns)
        title, dims = f"output {output!r} of job {self.name!r}", ("group", "replicate")
        return Table(title, lambda: self._read().scan(selection, "outputs", output), dims)

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
            A row for each loss: ``group`` (int32), the parameters, ``target`` (string), ``name`` (string), ``loss``
            (float64), ``n_replicates`` (int32) and ``param_id`` (string).

        Examples
        --------
        >>> job.losses(params=True, where={"name": "peak"}).to_pandas()
        """
        selection = Selection(params, where, columns)
        title, dims = f"losses of job {self.name!r}", ("group", "target", "name")
        return Table(title, lambda: self._read().scan(selection, "losses"), dims)

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
            A row for each set: ``group`` (int32), ``loss`` (float64, the loss or weighted sum that ranks the set), a
            column for each loss (float64), a column for each parameter, then ``param_id`` (string). With several losses
            and no weights, the first column is ``ranked_by`` (string): the label of the loss that ranks the set. The
            label of a loss is the name of its target's
            function, and ``.name`` after it if the target has several losses. A parameter with the name of another
            column is called ``param.NAME``. Sets without the losses that count are left out: some of their simulations
            or targets have failed.

        Raises
        ------
        UsageError
            ``n`` is not a whole number of at least 1. When the table is read: the target has no loss, or a weight names
            no loss; the error lists the names.

        Examples
        --------
        >>> job.best(5, target="peak").to_pandas()
        """
        if not isinstance(n, Integral) or n < 1:
            what = f"{n!r} is not a number of parameter sets"
            raise UsageError(what, where="Job.best", hint="use a whole number of at least 1")

        def opened() -> Computed:
            data = self._read()
            sets = ranked(data.losses, target, weights)
            table = data.parameters.joined(sets)
            of_set = ["param_id", *table.column_names[sets.num_columns :]]
            table = table.select([*(name for name in table.column_names if name != "param_id"), "param_id"])
            each = RANKED_BY if RANKED_BY in sets.column_names else None
            return Computed(table, Selection(where=where), data.parameters.ids, of_set, first=n, each=each)

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

            - ``group`` (int32), ``replicate`` (int32), then the parameters, ``target`` (string): which one; null where
              it does not apply, and ``target`` is ``*`` for all targets of a group
            - ``reason`` (string): the verdict: oom, crashed, timeout, error, invalid_output or lost
            - ``message`` (string), ``traceback`` (string, as a dictionary): of the model, or of mops
            - ``attempts`` (int32): how often mops tried it
            - ``signals`` (string): what mops observed, such as the kernel's out-of-memory kill
            - ``peak_bytes`` (int64): the highest resident memory that mops saw; ``peak_at_least`` (bool): mops or the
              kernel killed it, so it needed more; ``limit_bytes`` (int64): its limit
            - ``seed`` (uint64), ``param_id`` (string)

        Examples
        --------
        >>> job.failures(params=True, where={"reason": "timeout"}).to_pandas()
        """
        selection = Selection(params, where, columns)
        title = f"failures of job {self.name!r}"
        return Table(title, lambda: self._read().scan(selection, "failures"))

    def reasons(self) -> list[Reason]:
        """Return the reasons of failures, the most frequent first.

        Messages that differ only in numbers, ids, addresses and folders are one reason, with the first message. A
        target without losses because a simulation of its parameter set failed does not count. This reads the failures
        in chunks and without their tracebacks, and holds four bytes for each.

        Returns
        -------
        list of Reason
            The number of failures, the verdict, and the first line of the message.
        """
        return self._read().reasons

    def causes(self) -> Table:
        """Return the causes of failures, the most frequent first.

        Failures have one cause if the verdict, the target, the first line of the message (without numbers, ids and
        folders) and the last place in the project's code are equal. A target without losses because a simulation of
        its parameter set failed has no cause. This reads the failures in chunks.

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
        title = f"causes of failures of job {self.name!r}"
        return Table(title, lambda: Computed(self._read().cause_table, Selection()))

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
            A row for each group: ``group`` (int32), a column for each parameter (boolean, int64, float64 or string),
            then ``seeds`` (list of uint64), ``params`` (string: the set as canonical JSON) and ``param_id`` (string). A
            parameter with the name of one of these columns is called ``param.NAME``.
        """

        def opened() -> Computed:
            sets = Parameters(self.files, self.record.paths)
            names = ["group", *sets.fields(()), "seeds", "params", "param_id"]
            return Computed(sets.whole().select(names), Selection(where=where, columns=columns), sets.ids)

        return Table(f"parameter sets of job {self.name!r}", opened, ("group",))

    def export(
        self,
        folder: str | Path,
        file_format: Literal["parquet", "csv"] = "parquet",
        *,
        overwrite: bool = False,
    ) -> list[Exported]:
        """Write one file for each output, and the files ``losses``, ``failures`` and ``params``.

        Parameters
        ----------
        folder
            The folder of the files; mops creates it.
        file_format
            The format of the files.
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
        data, selection = self._read(), Selection(params=True)
        # Not `seeds` and `params`: the outputs have the seeds, the other columns the parameters, and CSV has no lists.
        sets = data.parameters.columns(["group", *data.parameters.fields(()), "param_id"])
        tables: dict[str, Rows] = {
            "losses": data.scan(selection, "losses"),
            "failures": data.scan(selection, "failures"),
            "params": Computed(sets, Selection()),
        }
        # A model may give its outputs any names, such as "losses" or "../x".
        quoted = {quote(name, safe=" "): name for name in data.output_names}
        files = free_names(list(quoted), tables, "output-")
        outputs = {files[file]: data.scan(selection, "outputs", name) for file, name in quoted.items()}
        return export(outputs | tables, Path(folder), Format(file_format), overwrite=overwrite)

    def resume(self, **options: Any) -> Job:
        """Continue the job from what is committed: ``mops.resume(job, ...)``, which describes the options."""
        return mops.resume(self, **({"local": self.local} | options))

    def retry(self, verdicts: str | Iterable[str] = "all", *, name: str | None = None, **options: Any) -> Job:
        """Rerun the parameter sets that have certain failures, in a new job that takes over all other results.

        This is ``mops.retry(job, verdicts, ...)``, which describes the options.

        Returns
        -------
        Job
            The new job.
        """
        return mops.retry(self, verdicts, name=name, **({"local": self.local} | options))

    def extend(self, **options: Any) -> Job:
        """Add replicates, sets or targets, in a new job: ``mops.extend(job, ...)``, which describes the options."""
        return mops.extend(self, **({"local": self.local} | options))

    def rescore(self, **options: Any) -> Job:
        """Evaluate the targets again on the stored simulations, in a new job.

        This is ``mops.rescore(job, ...)``, which describes the options.
        """
        return mops.rescore(self, **({"local": self.local} | options))

    def delete(self, *, force: bool = False) -> None:
        """Delete the job with its results, without asking.

        Parameters
        ----------
        force
            Also delete a job that another person has submitted to the service. This needs the Role for managers.

        Raises
        ------
        JobError
            A runner runs the job, another job takes over rows from it, or it belongs to another person.
        """
        service = service_with(self.files, local=self.local)
        plan_deletion(self.files, [self.name], service, force=force)
        if service is not None:
            service.delete_idle_jobs(self.name)  # before the files, without which a queued Job must not start a runner
        for _ in delete(self.files, [self.name]):
            pass

    @property
    def plot(self) -> Plots:
        """Pictures of the job: ``job.plot.losses()``, ``job.plot.fan("daily")`` and others. Needs Altair."""
        from mops.jobs.plots import Plots  # noqa: PLC0415 - readers of results do not need it

        return Plots(self)

    def report(self, *, target: str | None = None, weights: Mapping[str, float] | None = None) -> mops.Report:
        """Return a report of the job with figures, as one HTML document that a notebook shows.

        Parameters
        ----------
        target, weights
            As for :meth:`best`. With several losses and no weights, the report ranks the sets by each loss.

        Returns
        -------
        Report
            ``report.save("waves.html")`` writes it to a file.

        Raises
        ------
        UsageError
            A library of the extra ``plots`` is not installed, or the target or a weight names no loss.

        Examples
        --------
        >>> job.report()
        """
        return mops.Report.of(self, target, weights)

    def _repr_html_(self) -> str:
        try:
            now = self.status()
            text = ", ".join([line_of(now), *now.finished.by_verdict])
            return bar(now.job, now.finished.simulations, now.n_simulations, text)
        except MopsError as error:
            return f"<div><strong>{html.escape(self.name)}</strong> {html.escape(error.what)}</div>"
