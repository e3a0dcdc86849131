"""Sets up one attempt: child processes, cluster, claim, signals. Submit and resume both run it."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import FrameType

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.main_loop import GRACE_SECONDS, Runner
from mops.attempt.reporting.metrics import exposed
from mops.attempt.reporting.progress import Snapshot
from mops.attempt.reporting.text_log import TextLogBuffer, collecting
from mops.cluster import doctor
from mops.cluster.base import Cluster
from mops.cluster.embedded import embedded_slots, start_embedded
from mops.cluster.external import connect_external
from mops.cluster.worker_losses import Pods
from mops.errors import InstallError, ModelError, MopsError, UsageError
from mops.project.project import ModelSpec
from mops.settings import Settings
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, check_still_there, driving, load_groups
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Asked, By
from mops.storage.paths import JobPaths
from mops.task import JobContext
from mops.worker.pool import Pool
from mops.worker.run_task import close_pool, pool_of

logger = logging.getLogger(__name__)

_YOUNG_OBJECTS, _YOUNG_COLLECTIONS = 5_000, 3


def job_context(job: str, bundle: str, storage: str, spec: ModelSpec, settings: Settings) -> JobContext:
    """Return what an attempt's tasks share.

    Parameters
    ----------
    bundle, storage
        The bundle's digest, and the storage's URL.
    """
    return JobContext(
        job=job,
        run=f"{secrets.randbelow(10**12):012d}",
        bundle=bundle,
        storage=storage,
        model=spec.model,
        scenario=spec.scenario,
        targets=spec.targets,
        outputs=spec.outputs,
        slots=None if settings.scheduler else embedded_slots(settings),
        threads=settings.sim_threads,
        timeout_s=settings.sim_timeout,
        retries=settings.retries,
        memory_bytes=settings.sim_memory,
        tasks_per_child=settings.tasks_per_child,
        growth_bytes=settings.child_growth,
        start=settings.start,
        install_s=install_seconds(settings),
        # What the runner itself may hold (an open checkpoint and a queue) and as much again.
        held_bytes=4 * settings.checkpoint_bytes,
    )


def install_seconds(settings: Settings) -> float | None:
    """Return the seconds that installing the model's dependencies may take; None: they are not installed."""
    wanted = settings.install == "always" or (settings.install == "auto" and settings.scheduler is not None)
    return settings.install_timeout if wanted else None


@contextmanager
def started_children(context: JobContext, *, warm: bool = True) -> Iterator[Pool]:
    """Start children of this process, which import the model side by side; end them in any case.

    Where the simulations run on other workers, one child is enough here: it looks whether the model can be imported,
    with what the workers will install.

    Raises
    ------
    InstallError
        It cannot be installed here.
    """
    pool = pool_of(context if context.slots else replace(context, slots=1))
    try:
        pool.install()
        if warm and context.slots:
            pool.warm()
        yield pool
    finally:
        close_pool(context.run)


@contextmanager
def connected_cluster(context: JobContext, settings: Settings, pods: Pods | None = None) -> Iterator[Cluster]:
    """Have a cluster: the one of MODELOPS_SCHEDULER, else one in this process.

    Parameters
    ----------
    pods
        Tells why its workers' pods ended; None: nobody can.

    Raises
    ------
    UsageError, ClusterError
        As :func:`mops.cluster.external.connect_external`; or the storage is of this process alone.
    """
    if settings.scheduler is None:
        with start_embedded(context.run, embedded_slots(settings)) as inside:
            yield inside
        return
    if context.storage.startswith("memory:"):
        raise UsageError(
            "memory:// belongs to one process, and the workers are others",
            where=context.storage,
            hint="use a folder that all share, or abfs://container/prefix; or unset MODELOPS_SCHEDULER",
        )
    with connect_external(settings.scheduler, context.run, settings, context.job, pods) as outside:
        doctor.warn(outside.client, context.job, settings.sim_threads)
        yield outside


@dataclass(frozen=True)
class Attempt:
    """What a runner needs for one life.

    Parameters
    ----------
    create
        Called once the model is imported and before anything else is written: a new job's records.
    on_progress
        Called with a :class:`Snapshot` about four times a second.
    by
        Who claims: with ``auto``, a job that has ended stays so.
    asked
        The request that this attempt carries out; None: nobody has asked, as where a pod was restarted.
    pods
        Tells why pods ended, where this runner is one; None: nobody can.
    unseen
        Nobody sees what this runner says: a model that cannot run ends the job as failed, if this request stands then.
        None: somebody does.
    grace_s
        Seconds that running simulations get when a signal asks this runner to stop.
    """

    files: Files
    record: JobRecord
    context: JobContext
    settings: Settings
    create: Callable[[], None] = lambda: None
    on_progress: Callable[[Snapshot], None] = lambda _: None
    by: By = "person"
    asked: Asked | None = None
    pods: Pods | None = None
    unseen: Asked | None = None
    grace_s: float = GRACE_SECONDS

    def create_only(self, *, other_packages: bool = False) -> None:
        """Import the model and create the job, for a runner that is started by itself.

        Parameters
        ----------
        other_packages
            The runner has other packages than this machine: one that the model lacks here is no error.

        Raises
        ------
        ModelError, InstallError
            As for :meth:`run`.
        """
        with started_children(self.context, warm=False) as pool:
            try:
                pool.check()
            except ModelError as bad:
                if not (other_packages and "ModuleNotFoundError: " in bad.what):
                    raise
                logger.warning("not checked here, where a package is missing that pods may have: %s", _first_line(bad))
            self.create()

    def run(self) -> str:
        """Run until the job ends or is stopped; return the state.

        Raises
        ------
        ModelError, InstallError
            The model, or what it needs, cannot be imported or installed here; nothing was written, or the log says
            ``failed`` (``unseen``).
        Overtaken
            Somebody has cancelled, ended or claimed the job since this attempt was asked for.
        JobError
            The job is complete already, or was deleted meanwhile.
        Superseded, StorageError, JobFailed
            As in :meth:`mops.attempt.main_loop.Runner.run`.
        KeyboardInterrupt
            Ctrl-C has stopped it (:func:`stopping_on_signals`).
        """
        with (
            driving(self.files, self.record.job),
            collecting() as text_log,  # what is installed is told in the job's log
            ExitStack() as had,
        ):
            with self._ended_by_a_model_that_cannot_run(text_log):
                pool = had.enter_context(started_children(self.context))
                cluster = had.enter_context(connected_cluster(self.context, self.settings, self.pods))
                pool.check()
            if self.context.slots is None:
                close_pool(self.context.run)  # the cluster's workers have children of their own
            self.create()
            log = self._claimed(self.asked)
            groups = load_groups(self.files, self.record.job)
            with frozen_heap():
                job = ClaimedJob(self.files, self.record, groups, log, self.context, self.settings)
                runner = Runner(cluster, job, text_log, on_progress=self.on_progress, pods=self.pods)
                elsewhere = cluster.client if self.context.slots is None else None
                with (
                    stopping_on_signals(runner, self.record.job, self.grace_s),
                    exposed(self.settings.metrics_port, log.view.attempt, runner, elsewhere),
                ):
                    return runner.run()

    def _claimed(self, asked: Asked | None) -> JobLog:
        log = JobLog(self.files, JobPaths(self.record.job), host=socket.gethostname())
        log.claim(self.by, asked=asked)
        check_still_there(self.files, self.record)
        return log

    @contextmanager
    def _ended_by_a_model_that_cannot_run(self, text_log: TextLogBuffer) -> Iterator[None]:
        """End a job that nobody watches and nobody runs: its next runner would fail in the same way."""
        try:
            yield
        except (ModelError, InstallError) as bad:
            if self.unseen is not None:
                log = self._claimed(self.unseen)
                attempt = log.view.attempt
                logger.info("%s: attempt %d ends before anything has run: %s", self.record.job, attempt, bad)
                path, text = JobPaths(self.record.job).text(attempt, 1), text_log.take().encode(errors="replace")
                advisory.Writer(self.files).write("the text log", lambda files: files.put(path, text))
                log.end("failed", totals=log.view.counts)
            raise


def _first_line(error: MopsError) -> str:
    return error.what.partition("\n")[0]


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Have garbage collection leave alone what is there already: modules, most of all.

    A full collection looks through every object and stops all threads: 60 to 120 ms with Dask imported, several times
    in a minute where simulations are short. 10 % of the runner's CPU time at 0 ms. The smallest collections come every
    700 objects by default, fewer than one task brings; every 20,000, the tracebacks of Dask's timeouts (several a task,
    4 KiB each) were another 2 MiB. What was in flight at the first collection is garbage a few later, so that the next
    older objects are looked through after three and not ten.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def simulations_grace(until_kill_s: float | None) -> float:
    """Return how many seconds running simulations get after a signal.

    What a simulation has computed when the process is killed is lost, and so is all that is not committed. A third of
    the time, at least 15 s and at most a minute, is for a cluster that answers late and for the open checkpoint.

    Parameters
    ----------
    until_kill_s
        The time from the signal to the kill, such as a pod's grace period; None: nobody kills this process.
    """
    if until_kill_s is None:
        return GRACE_SECONDS
    kept_for_commits = min(max(until_kill_s / 3, 15.0), 60.0)
    return max(until_kill_s - kept_for_commits, until_kill_s / 3)


_is_command: ContextVar[bool] = ContextVar("mops-is-command", default=False)


@contextmanager
def as_command() -> Iterator[None]:
    """Run attempts in the body as the command ``mops``, whose process is theirs.

    There a stopped attempt returns, because the command says how it ended, and a third signal ends the process.
    """
    token = _is_command.set(True)
    try:
        yield
    finally:
        _is_command.reset(token)


@contextmanager
def stopping_on_signals(runner: Runner, job: str, grace_s: float) -> Iterator[None]:
    """Let Ctrl-C or SIGTERM stop the runner in good order; a second one at once; a third without a commit.

    Ctrl-C is a person's wish, and ends the job as cancelled. SIGTERM is that of a machine or of a Kubernetes that wants
    the place: the job goes on with the next runner. The third is for a storage that does not answer. Nothing that is
    committed is harmed by it: it is no worse than a kill.

    In the command (:func:`as_command`) the third ends the process, and the children with it. Elsewhere the process is
    the user's, a notebook's kernel perhaps: it lives on, the third is raised where it comes, and whoever has pressed
    Ctrl-C gets a KeyboardInterrupt at the end, behind the commit, so that nothing that follows runs on a stopped job.
    Only in the main thread: in another one of a user's program signals are the program's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        name = signal.Signals(number).name
        if len(asked) == 1:
            logger.warning("%s: running simulations get %g s, then what is finished is committed", name, grace_s)
            runner.stop(grace_s, to_go_on=number == signal.SIGTERM)
        elif len(asked) == 2:
            logger.warning("%s again: simulations are ended, what is finished is committed", name)
            runner.stop(0.0, to_go_on=number == signal.SIGTERM)
        elif _is_command.get():
            os._exit(128 + number)
        else:
            raise _raised(number, f"job {job!r} was given up: what is committed is kept")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in asked and not _is_command.get():
        raise _raised(signal.SIGINT, f"job {job!r} was stopped: what is finished is committed, mops.resume goes on")


def _raised(number: int, what: str) -> BaseException:
    """Return what a signal is in a user's program."""
    return KeyboardInterrupt(what) if number == signal.SIGINT else SystemExit(128 + number)
