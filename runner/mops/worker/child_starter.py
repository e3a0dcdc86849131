"""Starts the child processes of one pool: installs what they need, keeps the template, and forks or spawns children.

The first process that imports the model becomes the template, which forks the children. If forking is not safe, each
child imports the model itself (``spawn``). A reaper starts every process that the template does not fork.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mops.errors import ClusterError, ImportTimeout, InstallError
from mops.recovery import Death
from mops.task import JobContext
from mops.worker.child_process import ChildProcess
from mops.worker.install import install
from mops.worker.processes import ANSWER_SECONDS, Reaper, Scratch
from mops.worker.slots import PoolSlots, close_all, count
from mops.worker.template import Template

logger = logging.getLogger(__name__)

_Child = TypeVar("_Child", bound=ChildProcess)


class ChildStarter:
    """Starts one pool's child processes. Thread-safe."""

    def __init__(
        self,
        context: JobContext,
        root: str,  # of the unpacked bundle
        slots: PoolSlots,  # nothing starts any longer when they stop
        pool_id: str,
    ):
        self.context = context
        """The job, with the interpreter of its environment once that is installed."""
        self.how = "each import the model (MODELOPS_JOB_START=spawn)" if context.start == "spawn" else ""
        """How child processes start, and why; empty: not known yet."""
        self.unseeded: list[str] = []
        """The random generators without a seed that the import of the model makes, by name."""
        self._pool_id = pool_id
        self.has_imported = False
        """Whether a process here has imported the model."""
        self._import_timeout: ImportTimeout | None = None
        """The error of an import. Until another one succeeds, every task gets the same error."""
        self.scratch = Scratch()
        self._root, self._slots = root, slots
        self._installing = threading.Lock()
        """Held by the thread that installs; guards the two below."""
        self._is_installed = context.install_s is None
        self._install_failure: InstallError | None = None
        self._preparing = threading.Lock()
        """Held by the thread that starts a template or waits until it has imported the model."""
        self._starting = threading.Lock()
        """Held while a process starts. A fork may wait for the model's fork handlers. Closing waits for the lock."""
        self._reaper_lock = threading.Lock()
        """Guards the reaper."""
        self._reaper: Reaper | None = None
        self._lock = threading.Lock()
        """Guards the three below, and ``has_imported``."""
        self.spawns = context.start == "spawn"
        """Whether each child imports the model itself."""
        self._template_prints = ""
        self._notes: list[str] = []

    def install(self) -> None:
        """Install what the bundle asks for, once; until then no child may start."""
        with self._installing:
            if self._install_failure is not None:  # mops does not retry: every task gets the same error
                raise self._install_failure
            if self._is_installed or self._slots.stopped():
                return
            try:
                found = install(self.context, Path(self._root), self._slots.stopped)
            except InstallError as failure:
                self._install_failure = failure
                raise
            self._is_installed = True
            if found is None:
                return
            self.context = replace(self.context, python=found.python)
            logger.info("%s: %s", self.context.job, found.said)
            if self.context.slots is None:  # the runner, which keeps the job's log, is another process
                with self._lock:
                    self._notes.append(found.said)

    def prepare(self) -> Death | None:
        """Make sure that there is a template which has imported the model; return how it died, if it did."""
        self.install()
        with self._preparing:
            if self._import_timeout is not None and not self.has_imported:
                raise self._import_timeout
            if self.spawns or self._slots.stopped():
                return None
            template = self._slots.template()
            if template is not None and template.loaded and not template.is_reusable:
                self._slots.fewer_after(template.death(), self.context.job)
                close_all(self._slots.take_template())
                template = None
            template = template or self._start_template()
            if template is None:
                return None
            has_imported = False
            try:
                death = self.await_import(template)
                has_imported = death is None
            finally:
                if not has_imported:
                    close_all(self._slots.take_template())
            if death is not None:
                return death
            self.unseeded = template.unseeded
            if template.fork_refusal:
                self._adopt(template)
                return None
            prints = template.take_prints()
            with self._lock:
                self._template_prints += prints
            if not self.how:
                self._set_how("fork from a template that has imported the model", logging.INFO)
            return None

    def await_import(self, child: ChildProcess) -> Death | None:
        """Wait until a child has imported the model (:meth:`ChildProcess.ready`)."""
        try:
            death = child.ready(self._pool_id)
        except ImportTimeout as late:
            self._import_timeout = late
            raise
        if death is None:
            with self._lock:
                is_first, self.has_imported = not self.has_imported, True
                if is_first and child.unseeded and self.context.slots is None:  # else the runner's process checks it
                    self._notes.append(unseeded_text(child.unseeded))
        return death

    def warm(self) -> None:
        """Start the template, or all children, without waiting until they have imported the model."""
        with self._preparing:  # or a check or a task that comes meanwhile would start another process
            if not self.spawns:
                if self._slots.template() is None:
                    self._start_template()
                return
            while (before := self._slots.n_children) < self._slots.n:
                child = self.start()
                if child is None:
                    return
                if not self._slots.keep(child):  # the children of other pools are busy
                    close_all([child])
                    self._slots.remove(child)
                if self._slots.n_children <= before:  # it has replaced another one, for the same reason
                    return

    def warm_child(self) -> ChildProcess | None:
        """Return an idle child, or a new one if :meth:`warm` has started none; None once the pool is stopped."""
        with self._preparing:
            return None if self._slots.stopped() else self._slots.take() or self.start()

    def _start_template(self) -> Template | None:
        """Start a template, which imports the model meanwhile; None once the pool is stopped."""
        with self._starting:
            template = None if self._slots.stopped() else self._spawn(Template)
            if template is None:
                return None
            return template if self._slots.set_template(template) else None

    def take_said(self) -> tuple[str, list[str]]:
        """Return what the model has printed in templates, and lines for the job's log; each of them once."""
        with self._lock:
            said = self._template_prints, self._notes
            self._template_prints, self._notes = "", []
        return said

    def _adopt(self, template: Template) -> None:
        """Make an ordinary child of a template that must not fork."""
        self._slots.take_template()
        self._slots.reserve()
        if not (self._slots.started(template) and self._slots.keep(template)):
            template.close()
            self._slots.remove(template)
        self.spawn_only(template.fork_refusal, logging.WARNING if self.context.start == "fork" else logging.INFO)

    def spawn_only(self, reason: str, level: int = logging.INFO) -> None:
        """Fork no further child. A template that has forked stays, because it tells how its children end."""
        with self._lock:
            if self.spawns:
                return
            self.spawns = True
        self._set_how(f"each import the model: {reason}", level)

    def _set_how(self, how: str, level: int) -> None:
        self.how = how
        logger.log(level, "%s: child processes %s", self.context.job, how)

    def start(self, *, only_targets: bool = False) -> ChildProcess | None:
        """Start a child, in place of idle ones if all slots are used; None once the pool is stopped."""
        self._slots.reserve()
        child = None
        try:
            with self._starting:
                if not self._slots.stopped(only_targets=only_targets):
                    child = self._fork() or self._spawn(ChildProcess)
        finally:
            is_kept = self._slots.started(child, only_targets=only_targets)
        if child is not None and not is_kept:
            close_all([child])
        return child if is_kept else None

    def _fork(self) -> ChildProcess | None:
        """Fork a child; None if it must import the model itself."""
        template = self._slots.template()
        if template is None or self.spawns:
            return None
        try:
            child = template.fork()
        except TimeoutError:
            reason = f"the template did not answer within {ANSWER_SECONDS:g} s (os.register_at_fork?)"
            self.spawn_only(reason, logging.WARNING)
            return None
        except (OSError, EOFError) as ended:  # the next task replaces a template that has just ended
            logger.debug("%s: the template does not fork: %r", self.context.job, ended)
            return None
        count("forked")
        return child

    def _spawn(self, kind: type[_Child]) -> _Child | None:
        """Start a child that imports the model itself; None once the pool is closed."""
        try:
            try:
                child = kind(self.context, self._root, self.scratch, self._living_reaper())
            except ConnectionError:  # the reaper was killed just now: use another one
                child = kind(self.context, self._root, self.scratch, self._living_reaper())
        except (OSError, ClusterError):
            if self._slots.stopped(only_targets=True):  # the child's resources are closed
                return None
            raise
        count("spawned")
        return child

    def _living_reaper(self) -> Reaper:
        with self._reaper_lock:
            if self._slots.stopped(only_targets=True):
                raise ConnectionError("the pool is closed, so nothing would close another reaper")
            if self._reaper is None or not self._reaper.lives:
                if self._reaper is not None:
                    self._reaper.close()
                self._reaper = Reaper()
            return self._reaper

    def await_start(self, within_s: float) -> None:
        """Wait until no process starts any longer."""
        if self._starting.acquire(timeout=within_s):
            self._starting.release()

    def close(self) -> None:
        """Close the template, the reaper and the folder of the processes, which have ended."""
        close_all(self._slots.take_template())
        with self._reaper_lock:
            if self._reaper is not None:
                self._reaper.close()
        self.scratch.close()


def unseeded_text(names: Sequence[str]) -> str:
    """Warn that the import of the model makes these random generators without a seed."""
    what = f"importing the model makes a random generator without a seed ({', '.join(names)})"
    return f"{what}; a run that draws from it cannot be repeated; make it in the model: numpy.random.default_rng(seed)"
