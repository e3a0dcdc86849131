"""A job as users see it: what they can do with it. Its base classes have its state, its parts and its tables."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mops
from mops.errors import MopsError
from mops.jobs import text_log
from mops.jobs.delete import delete, plan_deletion
from mops.jobs.following.html_status import as_html
from mops.jobs.following.phases import Phases
from mops.jobs.location import service_with
from mops.jobs.status import Status, storage_of
from mops.jobs.tables.job_tables import JobTables

if TYPE_CHECKING:
    from mops.jobs.plots.plots import Plots
    from mops.service.service import Service
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
    return Job(storage_of(name, storage, local=local), name, local=local)


class Job(JobTables):
    """One job: its state, what it has committed so far, and what you can do with it.

    Every method reads the present state. In a notebook, the job shows its state and its progress.
    """

    def _service(self) -> Service | None:
        return service_with(self.files, local=self.local)

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
        from mops.jobs.following.wait import wait_for  # noqa: PLC0415 - readers of results do not need it

        wait_for(self, Phases(self.name, self._service()), on_progress)
        return self

    def watch(self) -> Status:
        """Show the progress until the job ends, and return the last status, whatever it is.

        Ctrl-C stops this call, and the job continues.
        """
        from mops.jobs.following.wait import follow  # noqa: PLC0415 - readers of results do not need it

        return follow(self, Phases(self.name, self._service()), None)

    def logs(self, attempt: int | None = None, *, tail: int | None = None) -> str:
        """Return the log of the job, with what the model printed.

        Parameters
        ----------
        attempt
            Only the log of this attempt; None: of all attempts.
        tail
            Only this many last lines; None: all lines.

        Raises
        ------
        JobError
            The attempt does not exist.
        """
        return "".join(text_log.read(self, attempt, tail=tail))

    def cancel(self) -> bool:
        """Ask the job's runner to commit what is finished and stop. :meth:`resume` continues the job.

        Returns
        -------
        bool
            False: the job was complete already.
        """
        cancelled = super().cancel()
        service = self._service() if cancelled else None
        if service is not None:
            service.delete_idle_jobs(self.name)
        return cancelled

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

    def delete(self) -> None:
        """Delete the job with its results, without asking.

        Raises
        ------
        JobError
            A runner runs the job, or another job takes over rows from it.
        """
        plan_deletion(self.files, [self.name])
        service = self._service()
        if service is not None:
            service.delete_idle_jobs(self.name)  # before the files, without which a queued Job must not start a runner
        for _ in delete(self.files, [self.name]):
            pass

    @property
    def plot(self) -> Plots:
        """Pictures of the job: ``job.plot.losses()``, ``job.plot.fan("daily")`` and others. Needs matplotlib."""
        from mops.jobs.plots.plots import Plots  # noqa: PLC0415 - readers of results do not need it

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
            return as_html(self.status())
        except MopsError as error:
            return f"<div><strong>{html.escape(self.name)}</strong> {html.escape(error.what)}</div>"
