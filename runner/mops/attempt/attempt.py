"""Sets up one attempt of a job: child processes, cluster, claim and signals; then runs its main loop."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

from mops.attempt.claimed_job import GRACE_SECONDS, ClaimedJob
from mops.attempt.text_log import TextLogBuffer, collecting
from mops.cluster.base import Cluster
from mops.cluster.worker_losses import Pods
from mops.errors import (
    DataError,
    InstallError,
    Interrupted,
    ModelError,
    MopsError,
    Superseded,
    SystemUnfit,
    UsageError,
)
from mops.project.project import ModelSpec
from mops.settings import Settings
from mops.storage import advisory
from mops.storage.compaction import compact_at_end
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, check_not_deleted, driving
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import COMPLETE, By, RunRequest
from mops.storage.params_file import load_groups
from mops.storage.progress_record import Progress, write_error
from mops.system.resources import n_processors
from mops.system.signals import STOP_SIGNALS, handled, signals_with_default_action
from mops.task import JobContext
from mops.worker.child_starter import unseeded_text
from mops.worker.pool import Pool
from mops.worker.run_task import close_pool, pool_of

if TYPE_CHECKING:
    from mops.attempt.main_loop import MainLoop

logger = logging.getLogger(__name__)


def job_context(
    job: str, bundle: str, storage: str, spec: ModelSpec, settings: Settings, *, job_id: str = ""
) -> JobContext:
    """Return what all tasks of an attempt share."""
    return JobContext(
        job=job,
        job_id=job_id,
        run_id=f"{secrets.randbelow(10**12):012d}",
        bundle=bundle,
        storage=storage,
        model=spec.model,
        scenario=spec.scenario,
        targets=spec.targets,
        outputs=spec.outputs,
        import_folders=spec.import_folders,
        slots=None if settings.scheduler else embedded_slots(settings),
        threads=settings.sim_threads,
        timeout_s=settings.sim_timeout,
        retries=settings.retries,
        memory_bytes=settings.sim_memory,
        alone_elsewhere=settings.memory_pool not in (None, settings.pool),
        tasks_per_child=settings.tasks_per_child,
        growth_bytes=settings.child_growth,
        start=settings.start,
        install_s=install_seconds(settings),
        import_s=settings.import_timeout,
        # Twice the results that the runner itself may hold: an open checkpoint and a queue.
        held_bytes=4 * settings.checkpoint_bytes,
    )


def embedded_slots(settings: Settings) -> int:
    """Return how many simulations run at once on this machine: MODELOPS_JOB_SLOTS, or by its processors."""
    return settings.slots or max(n_processors() // settings.sim_threads, 1)


def install_seconds(settings: Settings) -> float | None:
    """Return how long installing the model's dependencies may take; None: they are not installed."""
    wanted = settings.install == "always" or (settings.install == "auto" and settings.scheduler is not None)
    return settings.install_timeout if wanted else None


@contextmanager
def started_children(context: JobContext, *, warm: bool = True) -> Iterator[Pool]:
    """Start child processes, which import the model in parallel, and end them after the body."""
    # If the simulations run on other workers, one child process is enough. It checks that the model can be imported
    # together with the dependencies that the workers will install.
    pool = pool_of(context if context.slots else replace(context, slots=1))
    assert pool is not None  # no two attempts share a pool
    try:
        pool.install()
        if warm and context.slots:
            threading.Thread(target=_warm, args=(pool,), name="mops-warm", daemon=True).start()
        yield pool
    finally:
        close_pool(context.run_id)


@contextmanager
def connected_cluster(context: JobContext, settings: Settings, pods: Pods | None = None) -> Iterator[Cluster]:
    """Connect to the cluster of MODELOPS_SCHEDULER, or start one in this process, while the body runs."""
    if settings.scheduler is None:
        from mops.cluster.embedded import start_embedded  # noqa: PLC0415 - see Attempt._run

        assert context.slots is not None
        if pool := settings.pool or settings.memory_pool:
            raise UsageError(
                f"pool {pool!r}: this machine has no pools of workers",
                where="MODELOPS_JOB_POOL" if settings.pool else "MODELOPS_JOB_MEMORY_POOL",
                hint="leave it out, or run the job on a service or a Dask cluster",
            )
        with start_embedded(context.run_id, context.slots) as embedded:
            yield embedded
        return
    if context.storage.startswith("memory:"):
        raise UsageError(
            "workers in other processes cannot reach memory:// storage",
            where=context.storage,
            hint="use a shared folder or abfs://container/prefix, or unset MODELOPS_SCHEDULER",
        )
    from mops.cluster import doctor, external  # noqa: PLC0415 - they import Dask, which the embedded cluster does without

    with external.connect_external(settings.scheduler, context.run_id, settings, context.job, pods) as cluster:
        doctor.warn(cluster.calls, context.job, settings.sim_threads)
        yield cluster


def check_import(pool: Pool, *, other_packages: bool) -> None:
    """Check that the model can be imported; warn if its import makes random generators without a seed."""
    try:
        pool.check()
    except ModelError as bad:
        if not (other_packages and "ModuleNotFoundError: " in bad.what):
            raise
        what, _, _ = bad.what.partition("\n")
        logger.warning("the model is not checked here, because a package is missing on this machine: %s", what)
    if pool.unseeded:
        logger.warning("%s: %s", pool.context.job, unseeded_text(pool.unseeded))


def _warm(pool: Pool) -> None:
    """Start the first processes of a pool, which takes 0.05 s, most of it until the reaper answers."""
    with contextlib.suppress(MopsError, OSError):  # the check of the pool meets the same fault
        pool.warm()


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job by this process."""

    files: Files
    record: JobRecord
    context: JobContext
    settings: Settings
    # Writes a new job's records, or a job's new options, when the model is imported. None: another process wrote them.
    create: Callable[[], None] | None = None
    on_progress: Callable[[Progress], None] = lambda _: None  # called about four times a second
    by: By = "person"  # with ``auto``, the attempt does not resume a job that has ended
    asked: RunRequest | None = None  # the request to run; None: Kubernetes restarted a pod without a new request
    pods: Pods | None = None  # knows why pods ended; None: this runner is not a pod
    # A request to end the job as failed if its model cannot run, for a runner whose output no person watches. None:
    # leave the job as it is, because a person sees the error.
    unseen: RunRequest | None = None
    # Wait for the cluster without end: this process would only be started again, and a wait is no failure.
    is_patient: bool = False
    grace_s: float = GRACE_SECONDS  # how long running simulations may continue after a signal

    def create_only(self, *, other_packages: bool = False) -> None:
        """Check that the model can be imported, and create the job for a runner in another process.

        If the runner has other packages than this machine, a package may be missing here.
        """
        with started_children(self.context, warm=False) as pool:
            if not other_packages and self.context.slots is not None:
                pool.check_data()
            check_import(pool, other_packages=other_packages)
            if self.create is not None:
                self.create()

    @property
    def _imports_here(self) -> bool:
        """Whether this process checks that the model can be imported, in a child process.

        A runner that another process started for workers elsewhere leaves this to its first tasks. So it has no process
        with code of the model, or of packages that the model asks for.
        """
        return self.context.slots is not None or self.create is not None

    def run(self) -> str:
        """Run until the job ends or is stopped; return its state.

        Raises
        ------
        ModelError, InstallError, DataError
            The model cannot run. Nothing was written, unless ``unseen`` is set.
        Overtaken
            Another process has cancelled, ended or claimed the job after the request.
        JobError
            The job is complete already, or was deleted meanwhile.
        Superseded
            A newer attempt owns the job.
        StorageError
            Finished results cannot be stored.
        JobFailed, UsageError
            Nothing can run. The log ends with ``failed``.
        ClusterError, Terminated
            The cluster stays out of reach, or a signal stopped the runner for the next one. Finished results are
            committed, and the log has no end.
        KeyboardInterrupt
            Ctrl-C has stopped the attempt (:func:`stopping_on_signals`).
        """
        state = self._run()
        if state in COMPLETE:
            compact_at_end(self.files, self.record)
        return state

    def _run(self) -> str:
        with (
            driving(self.files, self.record.paths),
            collecting() as text_log,
            ExitStack() as stack,
        ):
            with self._ending_job_if_unseen(text_log):
                pool = stack.enter_context(started_children(self.context)) if self._imports_here else None
                if pool is not None and self.context.slots is not None:  # else workers elsewhere check their data
                    pool.check_data()
                # These imports take 0.27 s, while the template process imports the model.
                from mops.attempt.main_loop import MainLoop  # noqa: PLC0415
                from mops.attempt.metrics import serving_metrics  # noqa: PLC0415

                patience = {"cluster_timeout": math.inf} if self.is_patient else {}
                settings = self.settings.model_copy(update=patience)
                cluster = stack.enter_context(connected_cluster(self.context, settings, self.pods))
                if pool is not None:
                    check_import(pool, other_packages=False)
            if self.context.slots is None:
                close_pool(self.context.run_id)  # simulations run on the cluster's workers
            if self.create is not None:
                self.create()
            log = self._claim(self.asked)
            groups = load_groups(self.files, self.record.paths)
            with frozen_heap():
                job = ClaimedJob(self.files, self.record, groups, log, self.context, self.settings)
                process, host = os.getpid(), socket.gethostname()
                message = "%s: attempt %d by process %d on %s: %d of %d parameter sets are left; slots: %d"
                n_groups = (len(job.todo), len(groups))
                logger.info(message, job.name, job.attempt, process, host, *n_groups, max(cluster.slots, 1))
                runner = MainLoop(cluster, job, text_log, on_progress=self.on_progress, pods=self.pods)
                has_children = self.context.slots is not None
                with (
                    stopping_on_signals(runner, job.name, self.grace_s),
                    serving_metrics(self.settings.metrics_port, job.attempt, runner, has_children=has_children),
                ):
                    return self._ending(runner, job)

    @staticmethod
    def _ending(runner: MainLoop, job: ClaimedJob) -> str:
        try:
            return runner.run()
        except Exception as error:
            # An end in the log has stored its error. A runner that has lost the job must write nothing into it.
            if not job.log.view.end and not isinstance(error, Superseded):
                job.record_error(error)
            raise

    def _claim(self, asked: RunRequest | None) -> JobLog:
        log = JobLog(self.files, self.record.paths, host=socket.gethostname())
        log.claim(self.by, asked=asked)
        check_not_deleted(self.files, self.record.paths)
        return log

    @contextmanager
    def _ending_job_if_unseen(self, text_log: TextLogBuffer) -> Iterator[None]:
        """End an unwatched job as failed if its model cannot run, because its next runner would fail too."""
        start = time.monotonic()
        try:
            yield
        except (ModelError, InstallError, DataError, SystemUnfit) as bad:
            if self.unseen is not None:
                log = self._claim(self.unseen)
                attempt = log.view.attempt
                how = f"{type(bad).__name__}: {bad}"
                logger.info("%s: attempt %d ends before any simulation: %s", self.record.job, attempt, how)
                paths, text = self.record.paths, text_log.take().encode(errors="replace")
                writer, seconds, error = advisory.Writer(self.files), time.monotonic() - start, bad
                writer.write("the text log", lambda files: files.put(paths.text(attempt, 1), text))
                writer.write("its error", lambda files: write_error(files, paths, attempt, seconds, error))
                log.end("failed", totals=log.view.counts)
            raise


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Exclude all present objects, which are mostly modules, from garbage collection."""
    # A full collection reads every object and stops all threads. With Dask imported, it takes 60 to 120 ms and happens
    # several times a minute if simulations are short. bench/tricks.py, 0 ms, with Dask: -14 % of the runner's CPU time.
    before = gc.get_threshold()
    gc.freeze()
    # Python's default is 700 new objects, and one task creates more. With 20,000, the tracebacks of Dask's timeouts
    # (several a task, 4 KiB each) use 2 MiB more. The next generation is collected after three of these collections
    # instead of ten, because most objects in flight are garbage by then.
    gc.set_threshold(5_000, 3, before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def simulations_grace(until_kill_s: float | None) -> float:
    """Return how long running simulations may continue after a signal; ``until_kill_s`` None: no kill follows."""
    if until_kill_s is None:
        return GRACE_SECONDS
    # A kill loses unfinished simulations and uncommitted results. So time is kept for a slow cluster and a last commit.
    kept_for_commits = min(max(until_kill_s / 3, 15.0), 60.0)
    return max(until_kill_s - kept_for_commits, until_kill_s / 3)


_is_command: ContextVar[bool] = ContextVar("mops-is-command", default=False)


@contextmanager
def as_command() -> Iterator[None]:
    """Run attempts in the body as the command ``mops``: a stopped attempt then returns instead of raising."""
    token = _is_command.set(True)
    try:
        yield
    finally:
        _is_command.reset(token)


@contextmanager
def stopping_on_signals(runner: MainLoop, job: str, grace_s: float) -> Iterator[None]:
    """Stop the runner at Ctrl-C or a stop signal; at once at a second signal, and without a commit at a third.

    Ctrl-C comes from a person and cancels the job. The signals of :data:`mops.system.signals.STOP_SIGNALS` come from
    machines, and the next runner continues the job.
    """
    if threading.current_thread() is not threading.main_thread():  # there, signals belong to the user's program
        yield
        return
    asked: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGXCPU and number in asked:
            return  # the kernel repeats it for every second of CPU time
        asked.append(number)
        name, by = signal.Signals(number).name, None if number == signal.SIGINT else number
        if len(asked) == 1:
            runner.stop(grace_s, by=by)
            logger.warning("%s: running simulations get %g s; then mops commits what is finished", name, grace_s)
        elif len(asked) == 2:
            runner.stop(0.0, by=by)
            logger.warning("%s again: mops kills running simulations and commits what is finished", name)
        # A third signal helps if the storage does not answer. It harms no more than a kill: what is committed stays.
        elif _is_command.get():  # the children end too
            os._exit(128 + number)
        elif number == signal.SIGINT:
            raise Interrupted(f"job {job!r} was stopped without a last commit; to continue it, call mops.resume")
        else:
            raise SystemExit(128 + number)

    # Other signals are left alone if they have another action than to end the process: nohup ignores SIGHUP, and a
    # user's program may have a handler.
    taken = {signal.SIGINT, signal.SIGTERM, *signals_with_default_action(STOP_SIGNALS)}
    with handled(taken, stop):
        yield
    # A user's program, such as a notebook's kernel, must not continue with a stopped job.
    if signal.SIGINT in asked and not _is_command.get():
        raise Interrupted(
            f"job {job!r} was stopped, and finished results are committed; to continue it, call mops.resume"
        )
