"""Runs one job's tasks on a worker, each task in the thread that calls :meth:`Pool.run`."""

# Lock order: a thread that holds one of these takes only those further down.
#
# 1. Pool._closing
# 2. ChildStarter._installing, _preparing, _starting, _reaper_lock, in this order
# 3. ChildProcess._reaping of a child, then Template._asking of its template; Reaper._asking
# 4. conditions and locks under which nothing is called that locks: ChildProcess._guard, WorkerSlots.changed, and all
#    others

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mops.errors import ClusterError, ModelError
from mops.project.mops_toml import check_data, read_data_paths
from mops.recovery import DEATHS_BETWEEN, BetweenSteps, Death, after_death_between_steps, replacement_size
from mops.task import JobContext, ResultBuffer, RunningStep, TaskRequest, TaskResult
from mops.units import bytes_text
from mops.verdicts import Report
from mops.waiting import polls
from mops.worker import results
from mops.worker.child_process import LEAVE_SECONDS, ChildProcess
from mops.worker.child_starter import ChildStarter
from mops.worker.dask_worker import announce_alone
from mops.worker.slots import LEFTOVERS, REPLACED_DEATHS, PoolSlots, WorkerMemory, WorkerSlots, close_all, count
from mops.worker.task_progress import TaskProgress

logger = logging.getLogger(__name__)

_MEMORY_WAIT_SECONDS = 0.25  # between two looks for free memory, at most


class Pool:
    """Runs the tasks of one job on one worker. Thread-safe: each task calls :meth:`run` in its own thread."""

    def __init__(
        self,
        context: JobContext,
        root: str,  # of the unpacked bundle
        slots: int,
        worker_limit: int | None = None,  # Dask's memory limit of this worker in bytes
        worker: WorkerSlots | None = None,  # what all pools of this worker share; None: this is the only pool
        restore: Callable[[], object] = lambda: None,  # unpacks the bundle again if files of it were removed
        pool_id: str = "",  # by which its runner in another process knows it
    ):
        worker = worker or WorkerSlots()
        self._memory = WorkerMemory(worker, worker_limit)
        n_slots = slots if context.memory_bytes is not None else self._memory.slots_with_room(slots)
        self.slots = PoolSlots(n_slots, worker)
        self._starter = ChildStarter(context, root, self.slots, pool_id)
        self._root, self._has_data, self._restore = root, False, restore
        self._closing = threading.Lock()
        """Held by the thread that closes the pool; a second call waits for the first."""
        self._lock = threading.Lock()
        """Guards the four below."""
        self._killer: threading.Timer | None = None
        self._replacement_size = 0
        self._reports: list[Report] = []
        self._leftovers: set[str] = set()
        if n_slots < slots:
            what = f"{socket.gethostname()} has {bytes_text(self.allowed_bytes)}, enough for {n_slots} of {slots} slots"
            then = f"simulations at a time on this worker: {n_slots}; to use all slots, give the worker more memory"
            self._report(Report("memory", what, then))

    @property
    def context(self) -> JobContext:
        """The job, with the interpreter of its environment once that is installed."""
        return self._starter.context

    @property
    def unseeded(self) -> list[str]:
        """The random generators without a seed that the import of the model makes, by name; known after a check."""
        return self._starter.unseeded

    @property
    def allowed_bytes(self) -> int:
        """The memory that the worker may take with all its processes."""
        return self._memory.allowed_bytes

    def install(self) -> None:
        """Install what the bundle asks for, once (:meth:`ChildStarter.install`)."""
        self._starter.install()

    def check_data(self) -> None:
        """Raise DataError if this machine lacks data outside the bundle which the bundle's mops.toml declares."""
        if not self._has_data:  # after an error check again, because data may arrive
            check_data(read_data_paths(Path(self._root)))
            self._has_data = True

    def warm(self) -> None:
        """Start child processes without waiting until they have imported the model (:meth:`ChildStarter.warm`)."""
        self._starter.warm()

    def check(self) -> None:
        """Wait until one child has imported the model.

        Raises
        ------
        ModelError, InstallError
            The model cannot be imported or does not meet docs/reference/models.md, or its dependencies cannot be
            installed.
        """
        for n_deaths in itertools.count(1):
            death = self._import_once()
            if death is None:
                return
            then = after_death_between_steps(death, n_deaths, has_bundle=True)
            if then is not BetweenSteps.UNPACK_AGAIN:  # the model may be to blame: no second import
                raise self._import_died(death)
            # The next import has another folder. Nothing is unpacked: the bundle of a new job is stored later.
            where = f"on {socket.gethostname()} (TMPDIR or XDG_CACHE_HOME)"
            what = f"the files of the model were removed while it was imported {where}"
            self._report(Report("removed", what, "importing it again"))

    def _import_once(self) -> Death | None:
        death = self._starter.prepare()
        child = self._starter.warm_child() if death is None else None
        if child is not None:
            with self._used(child):
                death = self._starter.await_import(child)
                self._starter.unseeded = child.unseeded
        return death

    def _import_died(self, death: Death) -> ModelError:
        what = f"the process that imports the model {death.how}{death.last_output}"
        return ModelError(what, where=self.context.model)

    def pids(self) -> list[int]:
        """Return the children's process ids."""
        return [child.pid for child in self.slots.children()]

    def running(self) -> list[RunningStep]:
        """Return the simulations and targets that run now."""
        return [step for child in self.slots.children() if (step := child.running()) is not None]

    def run(self, request: TaskRequest, given: Sequence[ResultBuffer] = ()) -> TaskResult:
        """Run a task on one child, and on another one each time a child dies or must be replaced.

        Raises
        ------
        ModelError, InstallError, DataError
            A child cannot import the model (in time), or what it needs cannot be installed, or is not on this machine.
        ClusterError
            Children die again and again while they run nothing, although one has imported the model. So neither the
            model nor a simulation is to blame.
        """
        progress = TaskProgress(request, given)
        only_targets = request.replicates == ()
        if request.per_worker is not None:
            self.slots.limit(request.per_worker)
        self.check_data()
        self._starter.install()  # before the task has a slot: it may take minutes, and other jobs wait
        with self.slots.use(alone=request.alone, only_targets=only_targets) as is_taken:
            if is_taken and request.alone:  # it gets the memory of unused processes too
                self.slots.close_unused()
                if request.context.slots is None:
                    announce_alone(request.key)
            if not only_targets:  # targets free the results of their group
                room = self.context.held_bytes // self.slots.worker.n_pools
                results.wait_for_room(room, self.slots.stopped, self.context.job, self.context.mark)
                self._wait_for_memory()
            while not progress.finished:
                if (death := self._starter.prepare()) is not None:
                    self._record(death, progress, request)
                    continue
                takes_idle = not progress.needs_fresh_process and not self.slots.stopped(only_targets=only_targets)
                child = self.slots.take() if takes_idle else None
                child = child or self._starter.start(only_targets=only_targets)
                if child is None:  # the pool is stopped
                    break
                with self._used(child):
                    death = self._run_on(child, progress, request)
                    needs_another = bool(child.replace_reason) and progress.should_continue
                if death is not None:
                    self._record(death, progress, request)
                elif not needs_another:
                    break
        result = progress.result()
        prints, result.notes = self._starter.take_said()
        result.prints = prints + result.prints
        with self._lock:
            result.reports, self._reports = self._reports, []
        result.children = self._starter.how
        result.allowed_bytes, result.own_bytes = self._memory.allowed_bytes, self._memory.own_bytes()
        return result

    def _wait_for_memory(self) -> None:
        """Wait while all processes together take too much memory and another task runs; log it every 30 s."""
        # Dask's own pausing measures the worker's process only.
        for poll in polls(_MEMORY_WAIT_SECONDS, stopped=self.slots.stopped, pause=self.slots.worker.await_freed):
            if not self.slots.worker.any_busy:
                return
            taken, limit = self._memory.taken_and_pause_limit()
            if taken <= limit:
                return
            self.slots.close_unused()
            if poll.log_is_due:
                message = "%s: waiting to start simulations: the worker's processes take %s (limit %s)"
                logger.warning(message, self.context.job, bytes_text(taken), bytes_text(limit))

    @contextlib.contextmanager
    def _used(self, child: ChildProcess) -> Iterator[None]:
        """Keep a child for the pool's next task after the body, or close it if it cannot run another one."""
        is_kept = False
        try:
            yield
            is_kept = child.is_reusable and self.slots.keep(child)
        finally:
            if not is_kept:
                if child.replace_reason:
                    self._tell_replacement(child)
                child.close()
                self.slots.remove(child)

    def _tell_replacement(self, child: ChildProcess) -> None:
        """Log that a child must be replaced: what its simulations leave, once in the job's log."""
        code = child.replace_code
        count(code)
        with self._lock:
            is_new = code in LEFTOVERS and code not in self._leftovers
            self._leftovers.add(code)
        if is_new:
            what = f"replacing child process {child.pid} because {child.replace_reason}"
            then = "the model should close its files, end its threads and processes, and lower no hard limits"
            self._report(Report("leftovers", what, then))
        else:
            logger.info("%s: replacing child process %d: %s", self.context.job, child.pid, child.replace_reason)

    def _run_on(self, child: ChildProcess, progress: TaskProgress, request: TaskRequest) -> Death | None:
        """Run what is left of a task on a child; return how the child died, if it did."""
        # A fresh process shows the memory of one simulation alone. The next simulation might break the limit again.
        most_bytes = 1 if progress.needs_fresh_process else self._replacement_size
        # A child that dies while it starts says nothing about the model, which an earlier one has imported.
        death = self._starter.await_import(child)
        if death is None:
            limit_bytes = self._memory.simulation_bytes(
                self.slots, self.context.memory_bytes, alone=request.alone, is_larger=self.context.alone_elsewhere
            )
            death = child.run(progress, limit_bytes, most_bytes)
        progress.prints += child.take_prints()
        progress.peak_bytes = max(progress.peak_bytes, child.peak_bytes)
        with self._lock:
            before = self._replacement_size
            size = self._replacement_size = replacement_size(before, progress.too_large_bytes)
        if size != before:
            message = "%s: from now on replacing child processes that take %s between two simulations"
            logger.info(message, self.context.job, bytes_text(size))
        return death

    def _report(self, report: Report) -> None:
        """Log a warning, also in the job's log: with the result of a task."""
        logger.warning("%s: %s", self.context.job, report)
        if self.context.slots is None:  # else this process is the runner, which keeps the job's log
            with self._lock:
                self._reports.append(report)

    def _record(self, death: Death, progress: TaskProgress, request: TaskRequest) -> None:
        """Log how a child died and what follows, and count it; raise after too many deaths while nothing ran."""
        is_stopping = self.slots.stopped(only_targets=request.replicates == ())
        report = progress.record_death(death, socket.gethostname(), is_stopping=is_stopping)
        if report is not None:
            count(REPLACED_DEATHS[death.by])
            self.slots.fewer_after(death, self.context.job)
            self._report(report)
        if death.by == "start":
            self._starter.spawn_only("a forked process hung")
        if death.step is not None:
            return
        then = after_death_between_steps(death, progress.deaths_between, has_bundle=Path(self._root).is_dir())
        if then is BetweenSteps.RAISE and not self._starter.has_imported:
            raise self._import_died(death)
        if then is BetweenSteps.RAISE:
            what = f"{DEATHS_BETWEEN} child processes in a row died while they ran nothing; the last one {death.how}"
            raise ClusterError(f"{what}{death.last_output}", where=request.key)
        if then is BetweenSteps.UNPACK_AGAIN:
            self._restore()

    def stop(self, grace_s: float) -> None:
        """Start nothing from now on; kill what still runs after ``grace_s`` seconds."""
        self.slots.stop()
        with self._lock:
            if self._killer is not None:
                self._killer.cancel()
            self._killer = threading.Timer(grace_s, self._kill_all)
            self._killer.daemon = True
            self._killer.start()
        for child in self.slots.children():
            child.ask_to_stop()
        results.wake()

    def _kill_all(self) -> None:
        self.slots.stop(targets_too=True)
        for child in self.slots.children():
            child.kill()
        if (template := self.slots.template()) is not None:
            template.kill_if_it_starts()

    def close(self) -> None:
        """End every child; a task that still runs sees its child die, and returns a result without an error."""
        with self._closing:
            self.slots.stop(targets_too=True)
            with self._lock:
                if self._killer is not None:
                    self._killer.cancel()
            self._kill_all()  # first: closing an idle child may wait for a template that hangs in a fork
            self.slots.close_idle()
            results.wake()
            self._starter.await_start(LEAVE_SECONDS)
            close_all(self.slots.leave(LEAVE_SECONDS))  # the threads that run them are busy elsewhere
            self._starter.close()
