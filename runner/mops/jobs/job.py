"""A job as users see it: its status, and its results as Arrow."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from mops.errors import JobError
from mops.jobs.location import locate
from mops.jobs.results import CHUNK_ROWS, FilteredPart, Reason, Table, count_reasons, dataset_of
from mops.jobs.status import Status, job_state, runner_text
from mops.storage.ancestors import PartRows, ResultSource, ancestors, families_of, parts, verify_job
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, job_names, load_job, read_reference
from mops.storage.joblog.log import JobLog, read_whole
from mops.storage.joblog.one_dataset import dataset_problems
from mops.storage.joblog.view import LogView
from mops.storage.live_record import read_live
from mops.storage.paths import JobPaths
from mops.storage.samples import as_table, read_samples
from mops.study.groups import IDENTITY_FIELDS
from mops.task import FAILURES, LOSSES


def open_job(name: str, storage: str | Path | None = None, *, local: bool = False) -> Job:
    """Open a job.

    Parameters
    ----------
    name
        As ``mops jobs submit`` printed it.
    storage
        URL or folder; None: as :mod:`mops.jobs.location` says.
    local
        Look on this machine even when connected to a service.

    Raises
    ------
    JobError
        There is no such job; the nearest names are given.
    """
    location = locate(storage, local=local)
    files = location.open()
    try:
        load_job(files.brief(), name)
    except JobError as unknown:
        here = locate(local=True)
        if storage is not None or here.url() == files.url or name not in job_names(here.open()):
            raise
        hint = f"this machine has a job of this name: add --local, or in Python mops.open_job({name!r}, local=True)"
        raise JobError(unknown.what, where=unknown.where, hint=hint) from None
    return Job(files, name)


class Job:
    """One job: where it stands and what it has committed so far. Every read shows the present."""

    def __init__(self, files: Files, name: str):
        self.files, self.name = files, name
        self._paths = JobPaths(name)

    def __repr__(self) -> str:
        return f"Job({self.name!r}, storage={self.files.url!r})"

    @property
    def record(self) -> JobRecord:
        """What was submitted."""
        return load_job(self.files, self.name)

    def _view(self) -> LogView:
        return JobLog(self.files, self._paths).read()

    @functools.cached_property
    def _ancestors(self) -> list[ResultSource]:
        return ancestors(self.files, self.record)  # complete jobs: read once

    def _sources(self) -> list[ResultSource]:
        return [*self._ancestors, ResultSource(self.name, read_whole(self.files, self._paths))]

    def _rows(self, kind: str, output: str | None = None) -> list[PartRows]:
        return parts(self._sources(), kind, output)

    def status(self) -> Status:
        """Return where the job stands."""
        return self._status(self.record, self._view())

    def follower(self) -> Callable[[], Status]:
        """Return what tells again and again where the job stands, and reads only what is new since it was asked."""
        record, log = self.record, JobLog(self.files, self._paths)
        return lambda: self._status(record, log.read())

    def _status(self, record: JobRecord, view: LogView) -> Status:
        state, live = job_state(self.files, self.name, view)
        last = live if live or not view.attempt else read_live(self.files, self._paths, view.attempt)
        return Status(
            job=self.name,
            state=state,
            attempt=view.attempt,
            groups=len(record.taken_over) + len(view.committed),
            n_groups=record.n_groups,
            n_simulations=record.n_simulations,
            counts=record.taken_over_counts + view.counts,
            created=record.created,
            live=live,
            parent=record.parent.job if record.parent else None,
            seconds=last.seconds if last else None,
            peak_bytes=last.peak_bytes if last else None,
            children=last.children if last else "",
            sizing=last.sizing if last else "",
        )

    def require_no_runner(self, hint: str) -> LogView:
        """Refuse what must not be done to a job that runs; return the log that shows that it does not.

        Parameters
        ----------
        hint
            What the user can do instead.

        Raises
        ------
        JobError
            A runner is at the job; it says where that runs, and when it was last seen.
        """
        view = self._view()
        state, live = job_state(self.files, self.name, view)
        if state == "running":
            what = f"job {self.name!r} is running: {runner_text(view.claim, live)}"
            raise JobError(what, where=self.files.url, hint=hint)
        return view

    def verify(self) -> list[str]:
        """Check the job's log, every part, and that each output reads as one dataset; say all that is wrong."""
        return verify_job(self.files, self.name) or dataset_problems(self.files, self.name)

    def cancel(self) -> bool:
        """Ask the job's runner to commit what is finished and stop; False: it was complete already."""
        record = load_job(self.files, self.name)
        return JobLog(self.files, JobPaths(record.job)).cancel(who=os.environ.get("USER", "unknown"))

    def output_names(self) -> list[str]:
        """Return the names of the outputs that the job keeps; empty before the first good simulation."""
        keep = self.record.spec.outputs
        reference = read_reference(self.files, self._paths) or {}
        return [name for name in reference if keep is None or name in keep]

    def paths(self, output: str) -> list[str]:
        """Return the paths, in the storage, of an output's committed parts.

        Those of a derived job's ancestors are among them, with rows that do not count: :meth:`outputs` leaves them out.
        """
        return [rows.part.path for rows in parts(self._sources_of(output), "outputs", output)]

    def tables(self) -> list[Table]:
        """Return what is committed, by table: the outputs, the losses, the failures."""
        sources = self._sources()
        named = [("outputs", name) for name in self.output_names()] + [("losses", None), ("failures", None)]
        return [self._table(kind, name, parts(sources, kind, name)) for kind, name in named]

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

    def _sources_of(self, output: str) -> list[ResultSource]:
        if output not in (names := self.output_names()):
            has = f"it has: {', '.join(names)}" if names else "no simulation has finished yet"
            raise JobError(f"job {self.name!r} has no output {output!r}", where=self.files.url, hint=has)
        return self._sources()

    def outputs(self, output: str) -> ds.Dataset:
        """Return an output's committed rows: param_id, group, replicate, seed, and the model's columns.

        Types that differ between parts are unified within their family: int with float to float64.

        Raises
        ------
        JobError
            The job has no such output; its outputs are named.
        CorruptRecord
            A part is gone, or is no Parquet file any more. Damage within a part is found by ``mops jobs verify`` only.
        """
        sources = self._sources_of(output)
        families = families_of(self.files, self._paths, (source.log.view for source in sources)) or {}
        rows = parts(sources, "outputs", output)
        return dataset_of(self.files, self.name, rows, pa.schema(IDENTITY_FIELDS), families.get(output))

    def losses(self, *, params: bool = False) -> pa.Table:
        """Return param_id, group, target, name, loss and n_replicates; with ``params`` the parameters too."""
        losses = dataset_of(self.files, self.name, self._rows("losses"), LOSSES).to_table()
        if not params:
            return losses
        typed = self.params().drop_columns(["group", "seeds", "params"])
        return losses.join(typed, "param_id", right_suffix=".param").sort_by([("group", "ascending")])

    def failures(self, *, texts: bool = True) -> pa.Table:
        """Return a row for each simulation and each target that failed: who, why, and how often it was tried.

        Parameters
        ----------
        texts
            With the columns ``message`` and ``traceback``. The tracebacks are dictionary-encoded: thousands of failures
            may have the same one.
        """
        columns = [name for name in FAILURES.names if texts or name not in ("message", "traceback")]
        rows = self._rows("failures")
        dataset = dataset_of(self.files, self.name, rows, FAILURES, dictionaries=("traceback",))
        table = dataset.to_table(columns=columns).unify_dictionaries()
        return table.take(pc.sort_indices(table, [("group", "ascending"), ("replicate", "ascending")]))

    def reasons(self) -> list[Reason]:
        """Return why simulations and targets failed, the most frequent first.

        Messages that differ in their numbers only are one reason, with the first of them. Two columns are read, a piece
        at a time: neither tracebacks nor the number of failures count. The log tells whether there are any.
        """
        sources = self._sources()
        counts = self.record.taken_over_counts + sources[-1].log.view.counts
        rows = parts(sources, "failures") if counts.failed else []
        dataset = dataset_of(self.files, self.name, rows, FAILURES)
        pieces = dataset.to_batches(columns=["reason", "message"], batch_size=CHUNK_ROWS, fragment_readahead=1)
        return count_reasons(pieces)

    def samples(self, newest: int | None = None) -> pa.Table:
        """Return where the job stood about every 10 s: counts, rate, memory, groups in flight, verdicts so far.

        Columns: :data:`mops.storage.samples.SAMPLES`; counts are of the whole job, in the order in which they were
        taken, earlier attempts first.

        Parameters
        ----------
        newest
            Only so many of the objects that hold them, the last ones; each holds about a minute.
        """
        return as_table(read_samples(self.files, self._paths, newest))

    def params(self) -> pa.Table:
        """Return the groups: param_id, group, seeds, the canonical JSON, and a typed column for each parameter."""
        filesystem, path = self.files.arrow(self._paths.params)
        return pq.read_table(path, filesystem=filesystem)
