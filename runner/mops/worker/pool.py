"""A job's children on a worker: which runs what, and what follows where one dies.

A task drives its child in its own thread (:meth:`Pool.run`). One child is :mod:`mops.worker.child_process`'s, what is
left of a task after a death :mod:`mops.worker.task_progress`'s. How many there are beside those of other jobs is
:mod:`mops.worker.slots`'s and :mod:`mops.worker.children`'s.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mops.child.channel import Step
from mops.errors import ClusterError, InstallError, ModelError
from mops.system import memory_limits, process_memory
from mops.system.heap import resident_bytes
from mops.task import JobContext, ResultBuffer, TaskRequest, TaskResult
from mops.units import bytes_text
from mops.verdicts import Report
from mops.waiting import polls
from mops.worker import replacement_counts, result_buffers
from mops.worker.child_process import LEAVE_SECONDS, ChildProcess
from mops.worker.children import ChildRegistry
from mops.worker.deaths import Death, Verdict, verdict_of
from mops.worker.environment.install import install
from mops.worker.reaper.client import ANSWER_SECONDS, Reaper, can_reap
from mops.worker.scratch import Scratch
from mops.worker.slots import PoolSlots
from mops.worker.task_progress import TaskProgress

logger = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS = 0.25
_PAUSE_SHARE = 0.85  # of what the worker may take: above it, no further simulation starts beside one that runs
_DEATHS_BETWEEN_UNITS = 5
_LEAVE_SHARE = 0.9  # of the size at which a simulation found too little room in a process


class Pool:
    """The children of one job on one worker. Thread-safe: each task calls :meth:`run` in its own thread.

    Parameters
    ----------
    root
        The folder with the unpacked bundle.
    slots
        Children at once.
    worker_limit
        Bytes of memory that Dask was told for this worker; None: nothing.
    children
        Those of all pools of this worker; None: there is no other pool.
    """

    def __init__(
        self,
        context: JobContext,
        root: str,
        slots: int,
        worker_limit: int | None = None,
        children: ChildRegistry | None = None,
    ):
        self._children = children or ChildRegistry()
        self.context, self.slots = context, PoolSlots(slots, self._children.places)
        self._children.join(self.slots)
        self._usage = process_memory.Usage()
        taken = self._exact_bytes()
        self.allowed_bytes = memory_limits.usable_bytes(worker_limit, self._tree_bytes() if taken is None else taken)
        """What the worker may take, with all its processes, as far as others left it when the pool was made."""
        self._root, self._scratch = root, Scratch()
        self._lock = threading.Lock()
        self._preparing, self._installing, self._closing = threading.Lock(), threading.Lock(), threading.Lock()
        self._starting = threading.Lock()  # not the pool's: a fork may wait for what the model does there
        self._reaping = threading.Lock()
        self._reaper: Reaper | None = None
        self._installed = context.install_s is None
        self._install_failure: InstallError | None = None
        self._notes: list[str] = []
        self._spawns = context.start == "spawn"
        self._children_start = "each imports the model: MODELOPS_JOB_START=spawn" if self._spawns else ""
        self._template_prints = ""
        self._leave_at = 0
        self._stopping = self._ended = False
        self._killer: threading.Timer | None = None

    def install(self) -> None:
        """Have what the bundle asks for installed, once; until then no child is to start.

        Raises
        ------
        InstallError
            It cannot be. It is not tried again: tasks that waited have the same error.
        """
        with self._installing:
            if self._install_failure is not None:
                raise self._install_failure
            if self._installed or self._stopping:
                return
            try:
                found = install(self.context, Path(self._root), lambda: self._stopping)
            except InstallError as failure:
                self._install_failure = failure
                raise
            self._installed = True
            if found is not None:
                self.context = replace(self.context, python=found.python)
                self._note(found.said)

    def _note(self, said: str) -> None:
        logger.info("%s: %s", self.context.job, said)
        if self.context.slots is None:  # the runner is elsewhere, and so is the job's log
            self._notes.append(said)

    def _take_notes(self) -> list[str]:
        with self._lock:
            notes, self._notes = self._notes, []
        return notes

    @property
    def _template(self) -> ChildProcess | None:
        return self._children.template(self.slots)

    def warm(self) -> None:
        """Start every child now, side by side; they import the model while the caller goes on."""
        if not self._spawns:
            if self._template is None:
                self._start_template()
            return
        while len(self._children.of(self.slots)) < self.slots.n and (child := self._started()) is not None:
            self._children.rest(self.slots, child)

    def _started(self, *, last: bool = False) -> ChildProcess | None:
        """Start a child, in the place of one that idles if need be; None once the pool is stopped."""
        self._make_room()
        child = None
        try:
            with self._starting:
                if not self._over(last):
                    child = self._start()
        finally:
            kept = self._seen(child, last=last)
        return kept

    def _seen(self, child: ChildProcess | None, *, last: bool) -> ChildProcess | None:
        """Let who stops the pool see a child that has just been started; where that has come before, close it."""
        with self._lock:
            over = self._over(last)
            self._children.started(self.slots, None if over else child)
        if over and child is not None:
            _close([child])
        return None if over else child

    def _start_template(self) -> ChildProcess | None:
        """Start a template; None where the pool is stopped."""
        with self._starting:
            if self._stopping:
                return None
            template = self._spawned()
            if template is None:
                return None
            with self._lock:
                stopped = self._stopping
                too_many = [template] if stopped else self._children.set_template(self.slots, template)
            _close(too_many)
        return None if stopped else template

    def _spawned(self) -> ChildProcess | None:
        """Start a child by itself; None once the pool is closed."""
        try:
            try:
                return ChildProcess(self.context, self._root, self._scratch, reaper=self._living_reaper())
            except ConnectionError:  # the reaper has just been killed: with another one
                return ChildProcess(self.context, self._root, self._scratch, reaper=self._living_reaper())
        except (OSError, ClusterError):
            if self._ended:  # what it needs is closed
                return None
            raise

    def _living_reaper(self) -> Reaper | None:
        with self._reaping:
            if self._ended:
                raise ConnectionError("the pool is closed: nobody would close another reaper")
            if can_reap() and (self._reaper is None or not self._reaper.lives):
                if self._reaper is not None:
                    self._reaper.close()
                self._reaper = Reaper()
            return self._reaper

    def _make_room(self) -> None:
        """Have room for one more child, which counts from now on."""
        for child in self._children.reserve(self.slots):
            replacement_counts.replaced(replacement_counts.ROOM)
            child.close()

    def _over(self, last: bool) -> bool:
        return self._ended if last else self._stopping

    def _start(self) -> ChildProcess | None:
        template = self._template
        if template is not None and not self._spawns:
            try:
                return ChildProcess(self.context, self._root, self._scratch, template)
            except TimeoutError:
                why = f"the process that forks them did not answer within {ANSWER_SECONDS:g} s (os.register_at_fork?)"
                self._spawn_only(why, logging.WARNING)
            except (OSError, EOFError) as ended:
                # A template that has just ended is replaced before the next task; this child starts by itself.
                logger.debug("%s: no child is forked: %r", self.context.job, ended)
        return self._spawned()

    def _prepare(self) -> Death | None:
        """Have a template that has imported the model, or find out why not; return how it died, if it did.

        Raises
        ------
        ModelError, InstallError
            The model cannot be imported, or what it needs cannot be installed.
        """
        self.install()
        with self._preparing:
            if self._spawns or self._stopping:
                return None
            template = self._template
            if template is None or (template.loaded and not template.fit):
                if template is not None:
                    self._fewer_after(template.death())
                self._drop_template()
                template = self._start_template()
                if template is None:
                    return None
            death: Death | None = None
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(self._drop_template)
                death = template.ready()
                if death is None:
                    on_failure.pop_all()
            if template.why_not_forked is not None:
                self._adopt(template)
            elif death is None:
                self._keep_prints(template.take_template_prints())
                if not self._children_start:
                    self._say_start("forked from a process that has imported the model")
            return death

    def _say_start(self, how: str, level: int = logging.INFO) -> None:
        self._children_start = how
        logger.log(level, "%s: children are started so: %s", self.context.job, how)

    def _keep_prints(self, prints: str) -> None:
        with self._lock:
            self._template_prints += prints

    def _take_template_prints(self) -> str:
        """Return what the model has printed in the template, each once."""
        with self._lock:
            prints, self._template_prints = self._template_prints, ""
        return prints

    def _drop_template(self) -> None:
        _close(self._children.take_template(self.slots))

    def _adopt(self, template: ChildProcess) -> None:
        """Make an ordinary child of a template that may not fork."""
        self._children.take_template(self.slots)
        self._make_room()
        self._children.started(self.slots, template)
        self._give_back(template, fit=True)
        wished = self.context.start == "fork"
        self._spawn_only(f"{template.why_not_forked}", logging.WARNING if wished else logging.INFO)

    def _spawn_only(self, why: str, level: int = logging.INFO) -> None:
        """Start every child by itself from now on. A template that has forked stays, to tell how its processes end."""
        with self._lock:
            if self._spawns:
                return
            self._spawns = True
        self._say_start(f"each imports the model: {why}", level)

    def check(self) -> None:
        """Wait until one child has imported the model.

        Raises
        ------
        ModelError, InstallError
            It cannot be imported, or is not what STUDY.md asks for; or what it needs cannot be installed.
        """
        death = self._prepare()
        if death is None:
            with self._lent() as child:
                death = child.ready() if child is not None else None
        if death is None:
            return
        raise ModelError(
            f"the process that imports the model {death.how}",
            where=self.context.model,
            hint=f"its last output: {death.tail or '(none)'}",
        )

    def pids(self) -> list[int]:
        """Return the children's process ids."""
        return [child.pid for child in self._children.of(self.slots)]

    def busy_and_idle(self) -> tuple[int, int]:
        """Return how many of its children run something, and how many wait."""
        return self._children.busy_and_idle(self.slots)

    def run(
        self, request: TaskRequest, given: Sequence[ResultBuffer] = (), on_alone: Callable[[], None] = lambda: None
    ) -> TaskResult:
        """Run a task on one child, or on several in turn where they die.

        Parameters
        ----------
        given
            What earlier tasks gave of the group whose targets alone are to run.
        on_alone
            Called when a task that is to be alone has the worker for itself, before it runs.

        Raises
        ------
        ModelError, InstallError
            A child cannot import the model, or what it needs cannot be installed.
        ClusterError
            Children die again and again between simulations, so that nothing can be blamed.
        """
        work = TaskProgress(request, given)
        if request.per_worker is not None:
            self.slots.limit(request.per_worker)
            _close(self._children.take_idle(self.slots, above=self.slots.n))
        self.install()  # before it has a place: it may take minutes, and others wait
        last = request.replicates == ()
        with self._place(on_alone if request.alone else None, last=last):
            if request.replicates is None:
                room = self.context.held_bytes // self._children.n_pools
                result_buffers.wait_for_room(room, lambda: self._stopping, self.context.job, self.context.mark)
                self._wait_for_memory()
            deaths_between, goes_on = 0, True
            while goes_on and not work.finished:
                death = self._prepare()
                if death is None:
                    death, goes_on = self._turn(request, work)
                if death is not None:
                    deaths_between = deaths_between + 1 if death.unit is None else 0
                    self._explain(death, work, deaths_between)
                    if deaths_between >= _DEATHS_BETWEEN_UNITS:
                        raise _dying(request, death)
        work.prints = self._take_template_prints() + work.prints
        result = work.result(self._children_start)
        result.notes = self._take_notes()
        result.allowed_bytes, result.own_bytes = self.allowed_bytes, self._own_bytes()
        return result

    def _turn(self, request: TaskRequest, work: TaskProgress) -> tuple[Death | None, bool]:
        """Drive one child through what is left; return how it died, if it did, and whether another is to go on."""
        fresh = work.needs_fresh_process
        # One that is to show whether it needs less in a fresh process has that for itself: what is next could end it.
        leave_at = 1 if fresh else self._leave_at
        with self._lent(last=request.replicates == (), fresh=fresh) as child:
            if child is None:
                return None, False
            # A child that dies while it starts is no verdict on the model: an earlier one has imported it.
            death = child.ready() or child.drive(work, self._limit_bytes(alone=request.alone), leave_at)
            work.prints += child.take_prints()
            work.peak_bytes = max(work.peak_bytes, child.peak_bytes)
            self._learn(work)
            return death, death is not None or (bool(child.worn) and work.should_continue)

    def _learn(self, work: TaskProgress) -> None:
        """Have children leave before they are as large as one that left too little for a simulation."""
        most = int(_LEAVE_SHARE * work.worn_at())
        with self._lock:
            if not most or 0 < self._leave_at <= most:
                return
            self._leave_at = most
        message = "%s: children that take %d MiB between two simulations are replaced from now on"
        logger.info(message, self.context.job, most >> 20)

    @contextlib.contextmanager
    def _place(self, on_alone: Callable[[], None] | None, *, last: bool) -> Iterator[None]:
        """Have a place; the whole worker and the memory of what nobody uses, where ``on_alone`` is given."""
        if on_alone is None:
            with self.slots.one(lambda: self._over(last)):
                yield
            return
        with self.slots.all(lambda: self._over(last)) as had:
            if had:
                self._close_unused()
                on_alone()
            yield

    def _wait_for_memory(self) -> None:
        """Wait while all processes together take too much and another task runs; say so every 30 s.

        Dask's own pausing measures the worker's process only, which in an embedded worker is the whole runner.
        """
        for poll in polls(_LOOK_AGAIN_SECONDS, stopped=lambda: self._stopping, pause=self._children.await_change):
            most = self._pause_bytes()
            if not self._children.any_lent or (taken := self._taken_bytes(most)) <= most:
                return
            self._close_unused()
            if poll.log_is_due:
                message = "%s: waiting to start simulations: the worker's processes take %d MiB (limit %d MiB)"
                logger.warning(message, self.context.job, taken >> 20, most >> 20)

    def _pause_bytes(self) -> int:
        """Return what the worker's processes may take for another simulation to start beside one that runs."""
        # Of all that they have and could have now: others on the machine may take more than when the pool was made.
        now = memory_limits.available_bytes() * _PAUSE_SHARE / (1 - _PAUSE_SHARE)
        return int(min(_PAUSE_SHARE * self.allowed_bytes, now))

    def _close_unused(self) -> None:
        """Have the memory of every process of the worker that runs nothing, but for this pool's template."""
        _close(self._children.take_idle())
        _close(self._children.take_unused_templates(but=self.slots))

    def _tree_bytes(self) -> int:
        return resident_bytes() + self.children_bytes()

    def children_bytes(self) -> int:
        """Return the resident memory of all children of the worker and what they have started, of every pool."""
        return process_memory.tree_bytes(*self._children.pids())

    def _taken_bytes(self, limit_bytes: int) -> int:
        return self._usage.look(limit_bytes, self._tree_bytes, self._exact_bytes)

    def _exact_bytes(self) -> int | None:
        children = process_memory.own_bytes(*self._children.pids())
        return None if children is None else resident_bytes() + children

    def _own_bytes(self) -> int:
        """Return what is not for this pool's simulations: the worker's own, and all pools' templates."""
        return resident_bytes() + sum(map(resident_bytes, self._children.templates()))

    def _limit_bytes(self, *, alone: bool) -> int:
        """Return what one simulation may take now: what is set, else its slot's share of what is there."""
        share = memory_limits.share_bytes(self.allowed_bytes, self._own_bytes(), 1 if alone else self.slots.n)
        each = self.context.memory_bytes
        if each is None:
            return share
        return max(each, min(self.slots.there * each, share)) if alone else each

    @contextlib.contextmanager
    def _lent(self, *, last: bool = False, fresh: bool = False) -> Iterator[ChildProcess | None]:
        """Lend a child, None once the pool is stopped; keep it only if it is fit for the next task.

        Parameters
        ----------
        last
            It only scores what is there: also while a stop gives time, for its group would be lost without it.
        fresh
            It is to have run nothing before.
        """
        child = None if fresh or self._over(last) else self._children.lend(self.slots)
        child = child or self._started(last=last)
        fit = False
        try:
            yield child
            fit = child is not None and child.fit
        finally:
            if child is not None:
                self._give_back(child, fit=fit)

    def _give_back(self, child: ChildProcess, *, fit: bool) -> None:
        with self._lock:  # who stops the pool sees it idle, or it is closed here
            kept = fit and not self._stopping and self._children.rest(self.slots, child)
        if not kept:
            if child.worn:
                logger.info("%s: child %d is replaced: %s", self.context.job, child.pid, child.worn)
                replacement_counts.replaced(child.worn_by)
            child.close()
            self._children.remove(self.slots, child)

    def _explain(self, death: Death, work: TaskProgress, deaths_between: int) -> None:
        """Blame the unit that ran, and report it."""
        where = f"process {death.pid} on {socket.gethostname()}"
        if death.by == "stop":
            return
        replacement_counts.replaced(replacement_counts.REASONS[death.by])
        self._fewer_after(death)
        if death.unit is None:
            if death.by in ("itself", "silence"):
                times = f"time {deaths_between} of {_DEATHS_BETWEEN_UNITS} in a row"
                what = f"a child that ran no simulation {death.how}"
                self._report(work, Report(what, times, where, "no simulation is blamed", "the rest runs again"))
            return
        unit = work.describe(death.unit)
        if death.by == "start":
            what = f"a forked process did nothing for {death.seconds:.0f} s in its first simulation, {unit}"
            meaning = "it waits for a thread that a fork leaves behind; it runs again"
            self._report(work, Report(what, "time 1 of 1", where, meaning, "set MODELOPS_JOB_START=spawn"))
            self._spawn_only("a forked process hung")
            return
        verdict = verdict_of(death, self.context.timeout_s)
        then = self._count_death(death, death.unit, verdict, work)
        what, times = f"{unit} ({verdict.reason}): {verdict.happened}", work.how_often(death.unit, verdict.reason)
        self._report(work, Report(what, times, where, verdict.meaning, f"{then}; {verdict.remedy}"))

    def _fewer_after(self, death: Death) -> None:
        """Have one simulation fewer at a time where the kernel killed a process for memory, whatever that ran."""
        if death.by_kernel and self.slots.fewer():
            message = "%s: the kernel killed process %d for memory: %d simulations at a time on this worker from now on"
            logger.warning(message, self.context.job, death.pid, self.slots.n)

    def _count_death(self, death: Death, unit: Step, verdict: Verdict, work: TaskProgress) -> str:
        """Note that a unit ended its child; say what follows."""
        if death.by == "memory" and work.retry_in_fresh_process(unit, death.size_before):
            return f"its process had {bytes_text(death.size_before)} left from others: it is tried again in a fresh one"
        if death.by == "memory" and work.run_alone_later(unit):
            return "it is tried again at the end, alone on its worker"
        if work.blame(unit, verdict):
            return "it is tried again in a new process"
        return "it is recorded as failed, the rest goes on"

    def _report(self, work: TaskProgress, report: Report) -> None:
        logger.warning("%s: %s", self.context.job, report)
        if self.context.slots is None:  # the runner is elsewhere, and so is the job's log
            work.reports.append(report)

    def stop(self, grace_s: float) -> None:
        """Run nothing new; what runs gets ``grace_s`` seconds, then its process is ended."""
        with self._lock:
            self._stopping = True
            if self._killer is not None:
                self._killer.cancel()
            self._killer = threading.Timer(grace_s, self._kill_all)
            self._killer.daemon = True
            self._killer.start()
            for child in self._children.of(self.slots):
                child.ask_to_stop()
        self.slots.wake()
        result_buffers.wake()

    def _kill_all(self) -> None:
        with self._lock:
            self._ended = True
            for child in self._children.of(self.slots):
                child.kill()
            self._kill_waited_for()
        self.slots.wake()

    def _kill_waited_for(self) -> None:
        """End a template that somebody waits for; one that is ready tells how its processes ended, until the last."""
        template = self._template
        if template is not None:
            template.kill_if_it_forks()

    def close(self) -> None:
        """End every child; who drives one meanwhile sees it die, and has a result without an error.

        A second call waits for the first.
        """
        with self._closing:
            with self._lock:
                self._stopping = self._ended = True
                if self._killer is not None:
                    self._killer.cancel()
                idle = self._children.take_idle(self.slots)
                for child in self._children.of(self.slots):
                    child.kill()
                self._kill_waited_for()
            self.slots.wake()
            result_buffers.wake()
            _close(idle)
            self._children.await_end(self.slots, LEAVE_SECONDS)
            if self._starting.acquire(timeout=LEAVE_SECONDS):  # whoever starts one now sees that it is over
                self._starting.release()
            left = self._children.leave(self.slots)
            _close(left)  # their drivers are held up elsewhere
            self._drop_template()
            with self._reaping:
                if self._reaper is not None:
                    self._reaper.close()
            self._scratch.close()


def _close(children: list[ChildProcess]) -> None:
    for child in children:  # they end side by side: the kernel takes milliseconds for each
        child.kill()
    for child in children:
        child.close()


def _dying(request: TaskRequest, death: Death) -> ClusterError:
    return ClusterError(
        f"children died {_DEATHS_BETWEEN_UNITS} times in a row between simulations; the last one {death.how}",
        where=request.key,
        hint=f"its last output: {death.tail or '(none)'}",
    )
