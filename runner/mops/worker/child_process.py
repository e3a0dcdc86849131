"""A worker's handle of one child process: starts it, talks to it, ends it, and tells how it died.

The program of the child is :mod:`mops.child.main`. :mod:`mops.worker.limits` decides when a child breaks a limit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from mops.child.buffers import send_tables
from mops.child.channel import Channel, Message, ProgressPage, Step
from mops.errors import ClusterError, ImportTimeout, ModelError
from mops.project.bundle_cache import in_project
from mops.project.missing_code import advice_for_entry, advice_for_import, advice_for_imported, python_files
from mops.recovery import ABORTED, Death, EndedBy
from mops.storage.backends.base import Spool
from mops.system import resources
from mops.system.clock import monotonic
from mops.task import JobContext, RunningStep
from mops.verdicts import Report
from mops.worker.dask_worker import tell_runner
from mops.worker.environment import command
from mops.worker.limits import LONG_SECONDS, LimitWatch
from mops.worker.processes import Prints, Process, Reaper, Scratch, spawn
from mops.worker.results import folder_for_parts, take_buffer, take_file
from mops.worker.task_progress import TaskProgress

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0  # for a child that closed its socket to end
SLOW_IMPORT_SECONDS = 30.0  # after which the job's log says that the import takes long
_ABORT_SECONDS = 2.0  # for a child over its time limit to write where it hangs, before it is killed
_TERM_SECONDS = 0.1  # for a child over its memory limit to end by itself
_KILL_SECONDS = 10.0  # for a killed child to end: one that waits for a file server ends when the server answers


class Forks(Protocol):
    """What forks a child: a template (:mod:`mops.worker.template`)."""

    limits: LimitWatch

    def start_fork(self, fds: Sequence[int]) -> int:
        """Fork a process with the descriptors of its socket, lifeline, page and output; return its number."""

    def wait(self, pid: int) -> int | None:
        """Take the return code of a process that it has forked."""


class ChildProcess:
    """One child process, which imports the model itself, or which a template forks."""

    has_forked = False
    """Whether it is a template that has forked processes, which have links into the folder of its import."""

    def __init__(
        self,
        context: JobContext,
        root: str,  # of the unpacked bundle
        scratch: Scratch,
        reaper: Reaper,  # kills the processes that the child leaves
        template: Forks | None = None,  # that forks it
    ):
        self._context, self._root, self._scratch, self._reaper = context, root, scratch, reaper
        load = None if template else load_message(context, root, scratch)
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as on_failure:
            self._page, page_fd = ProgressPage.create()
            theirs.callback(os.close, page_fd)
            self._selector = selectors.DefaultSelector()  # before the process: there may be no descriptor left
            on_failure.callback(self._selector.close)
            ours, its_socket = socket.socketpair()
            theirs.enter_context(its_socket)
            self._lifeline, its_lifeline = socket.socketpair()
            theirs.enter_context(its_lifeline)
            reading, writing = os.pipe()
            theirs.callback(os.close, writing)
            output = on_failure.enter_context(os.fdopen(reading, "rb", buffering=0))
            fds = (its_socket.fileno(), its_lifeline.fileno(), page_fd, writing)
            pid = template.start_fork(fds) if template else spawn(context, fds, reaper, scratch.path)
            self._process = Process(pid, output, template.wait if template else reaper.wait)
            on_failure.pop_all()
        self.pid = self._process.pid
        """The process, which is also its session and process group."""
        self._channel = Channel(ours)
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._prints = Prints(self._process.output, self._selector)
        self.limits: LimitWatch = LimitWatch(self.pid, context.timeout_s, template.limits if template else None)
        self._guard = threading.RLock()
        """Prevents a signal to a process whose exit status was taken: another process may have its number by then."""
        self._is_collected = False
        self._progress: TaskProgress | None = None
        """Of the task that it runs."""
        self._reaping = threading.Lock()
        """Held by the thread that waits for the exit status, which may take seconds."""
        self._ended_by: EndedBy = "itself"
        self._ended_step: Step | None = None
        self._kill_at = 0.0
        self._killed_at: float | None = None
        self._is_left = False
        self._kills_before = resources.kernel_kills()
        self.fork_refusal = ""
        """Why it must not serve as a template, once it has imported the model; empty: it may."""
        self.unseeded: list[str] = []
        """The random generators without a seed that the import has made, by name."""
        self.replace_reason = self.replace_code = ""
        """Why another child should replace it, for people and in one word; empty: nothing does."""
        self._import_since = 0.0
        self._pool_id = ""
        self._is_slow_reported = False
        self.loaded = load is None
        """Whether it has imported the model."""
        if load is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # ready() tells how it died
                self._channel.send(load)

    @property
    def is_reusable(self) -> bool:
        """Whether it can run another task: it has imported the model, need not be replaced, and is alive."""
        return self.loaded and not self.replace_reason and self._ended_by == "itself" and not self._has_ended()

    @property
    def peak_bytes(self) -> int:
        """The most memory that simulations of its last task took."""
        return self.limits.peak_bytes

    def ready(self, pool_id: str = "") -> Death | None:
        """Wait until the model is imported; return how the child died, if it did.

        If the import takes long, the runner of this pool logs it at once. A ModelError says why the model cannot be
        imported, an ImportTimeout that the import takes longer than MODELOPS_JOB_IMPORT_TIMEOUT.
        """
        if self.loaded:
            return None
        self._import_since, self._pool_id = monotonic(), pool_id
        for message, _ in self._messages():
            if message is None:
                continue
            if message["kind"] == "refused":
                raise _refusal(message, self._context, self._root)
            self.loaded = True
            self._reaper.keep()
            self.fork_refusal = message["refusal"]
            self.unseeded = message["unseeded"]
            return None
        death = self.death()
        if death.by == "import":
            raise ImportTimeout(
                f"the import of the model takes more than {self._context.import_s:g} s{death.last_output}",
                where=f"{self._context.model} on {socket.gethostname()}",
                hint="if it needs more time, set MODELOPS_JOB_IMPORT_TIMEOUT higher",
            )
        return death

    def run(
        self,
        progress: TaskProgress,
        limit_bytes: int,  # of each simulation, with all processes that it starts
        replacement_size: int = 0,  # bytes at which the child asks for its replacement; 0: never
    ) -> Death | None:
        """Run what is left of a task; return None when the child is ready for more, or how it died."""
        began = time.monotonic()
        self._progress = progress
        self.limits.start_task(limit_bytes)
        self._kills_before = resources.kernel_kills()
        try:
            request = progress.message() | {"replacement_size": replacement_size}
            request["part_folder"] = folder_for_parts(self._context) if request["encode"] else None
            contents: list[pa.Buffer | Spool | None] = []
            self._channel.send(request)
            if request["given"]:
                send_tables(self._channel, {"kind": "given"}, progress.given_tables(), request["name"])
            long_s = max(LONG_SECONDS, request["seconds"])
            for message, fd in self._messages():
                if message is None:
                    running = self._page.running()
                    if running and not running.has_ended and self.limits.seconds_since(running.since) > long_s:
                        progress.release(running.step)
                elif message["name"] != request["name"]:  # its positions mean other groups
                    if fd is not None:
                        os.close(fd)
                    what = f"child process {self.pid} sent results of another task ({message['name']})"
                    raise ClusterError(what, where=request["name"])
                elif message["kind"] == "ended":
                    self.limits.end_task()
                    self.replace_reason, self.replace_code = message["replace_reason"], message["replace_code"]
                    progress.seconds += message["seconds"]
                    progress.written = message["written"]
                    return None
                elif message["kind"] == "file":
                    assert fd is not None
                    contents.append(take_file(self._context, fd, request["name"]))
                else:
                    progress.take(message, None if fd is None else take_buffer(fd, request["name"]), contents)
                    contents = []
        except (BrokenPipeError, ConnectionResetError):
            logger.debug("child process %s ended before it got its task", self.pid)
        finally:
            self._progress = None
        progress.seconds += time.monotonic() - began
        return self.death()

    def _messages(self) -> Iterator[tuple[Message | None, int | None]]:
        """Yield what the child sends until it ends, and None after each look at its limits; read what it prints."""
        while True:
            # Checked before the socket is read: if the child has ended, the socket has all its messages. A process that
            # the model forked may keep the socket open, so there may be no end-of-file.
            ended = self._has_ended()
            if ended:
                self._kill()
            ready = {key.fileobj for key, _ in self._selector.select(0.0 if ended else self.limits.wait_s())}
            if self._process.output in ready:
                self._prints.read()
            if self._channel in ready:
                try:
                    message, fd = self._channel.receive()
                except EOFError:
                    return
                yield message, fd
            elif ended or self._does_not_end:
                return
            self._enforce_limits()
            yield None, None

    def running(self) -> RunningStep | None:
        """Return what runs now; None: nothing does. From any thread."""
        progress, running = self._progress, self._page.running()
        if progress is None or running is None or progress is not self._progress:  # the step may be of the next task
            return None
        return progress.running(running.step, socket.gethostname(), self.limits.seconds_since(running.since))

    def _enforce_limits(self) -> None:
        """Ask a child that breaks a limit to end, and kill it soon after."""
        self.limits.look()
        if self._ended_by != "itself":
            if time.monotonic() >= self._kill_at:
                self._kill()
            return
        running = self._page.running()
        breach: EndedBy | None = None
        if self.loaded:
            breach = self.limits.breach(running) if running is not None else None
        else:
            breach = self._breach_of_import()
        if breach is None or self._ended_by != "itself":  # or another thread has stopped it meanwhile
            return
        self._ended_step, self._ended_by = running.step if running is not None else None, breach
        self._kill_at = time.monotonic() + (_TERM_SECONDS if breach == "memory" else _ABORT_SECONDS)
        if breach == "memory":
            self._signal(os.killpg, signal.SIGTERM)
        else:
            self._signal(os.kill, signal.SIGABRT)  # faulthandler writes where it hangs

    def _breach_of_import(self) -> EndedBy | None:
        """Tell whether the import of the model takes longer than its limit, and log once that it takes long."""
        seconds, limit_s = self.limits.seconds_since(self._import_since), self._context.import_s
        if limit_s is None:
            return None
        if seconds > SLOW_IMPORT_SECONDS and not self._is_slow_reported:
            self._is_slow_reported = True
            what = f"the import of the model has taken {seconds:.0f} s on {socket.gethostname()}"
            report = Report("slow_import", what, f"waiting up to {limit_s:g} s (MODELOPS_JOB_IMPORT_TIMEOUT)")
            logger.warning("%s: %s", self._context.job, report)
            if self._context.slots is None:  # at once, because a task that waits for the import may return late
                tell_runner(self._pool_id, str(report))
        return "import" if seconds > limit_s else None

    def take_prints(self) -> str:
        """Return what was printed since the last call, the last 64 KiB of it."""
        return self._prints.take()

    def ask_to_stop(self) -> None:
        """Ask the child to start no further simulation or target."""
        self._page.ask_to_stop()

    def kill(self) -> None:
        """Kill the child now, with all that it has started."""
        self._ended_by = "stop"
        self._kill()

    def _kill(self) -> None:
        # A reaper kills the rest later: a resource tracker has removed what the child left by then.
        self._killed_at = self._killed_at or time.monotonic()
        self._signal(os.kill if self._reaper.lives else os.killpg, signal.SIGKILL)

    def _signal(self, send: Callable[[int, int], None], number: int) -> None:
        # Not by Popen.send_signal, which takes the exit status of a child that has just ended.
        with self._guard:
            if not self._is_collected:
                with contextlib.suppress(ProcessLookupError):
                    send(self._process.pid, number)

    def _has_ended(self) -> bool:
        with self._guard:
            return self._is_collected or self._process.has_ended()

    @property
    def _left_to_end_s(self) -> float:  # for a killed child
        return _KILL_SECONDS if self._killed_at is None else max(self._killed_at + _KILL_SECONDS - time.monotonic(), 0)

    @property
    def _does_not_end(self) -> bool:
        return not self._left_to_end_s and not self._has_ended()

    def _reap(self) -> None:
        """Kill the child with all that it has started, and take its exit status; leave it if it does not end."""
        with self._reaping:
            if self._is_collected:
                return
            self._kill()
            self._is_left = not self._process.await_end(self._left_to_end_s)
            with self._guard:
                self._is_collected = True
            if self._is_left:
                self._process.leave()
            else:
                self._process.wait()

    def death(self) -> Death:
        """Wait for the end of a child that closed its socket, and tell how it ended."""
        self.limits.look()  # before the wait: the child may have died right after a pause
        if not self._does_not_end:
            with self._reaping:  # another thread that closes the child has killed it before
                has_ended = self._is_collected or self._process.await_end(LEAVE_SECONDS)
            # A child that lives on closed the socket: its model closes descriptors. It is killed all the same.
            if not has_ended and self._ended_by == "itself":
                self._ended_by = "silence"
        self._prints.read_rest()
        # Before resource trackers print what it left.
        tail = in_project(self._prints.last_words(was_aborted=self._ended_by in ABORTED), self._context.bundle)
        self._reap()
        self._prints.read_rest()
        running, by = self._page.running(), self._ended_by
        step = running.step if running is not None else None
        if by in ("timeout", "reading", "memory", "start") and step != self._ended_step:
            step, by = None, "stop"  # the child had just finished the step that broke a limit
        kills = resources.kernel_kills()
        return Death(
            returncode=self._process.returncode,
            step=step,
            by=by,
            seconds=self.limits.seconds_since(running.since) if running is not None else 0.0,
            tail=tail,
            peak_bytes=None if step is None else self.limits.peak_of(step),
            limit_bytes=self.limits.limit_bytes,
            kernel_kills=None if kills is None or self._kills_before is None else kills - self._kills_before,
            pid=self.pid,
            size_before=self._page.size_before,
            is_exact=self.limits.is_exact,
            is_left=self._is_left,
        )

    def close(self) -> None:
        """End the child and close its descriptors. A second call does no harm."""
        self._reap()
        self._selector.close()
        self._process.output.close()
        self._channel.close()
        self._lifeline.close()
        self._scratch.leave(self.pid, keep_import=self.has_forked)


def load_message(context: JobContext, root: str, scratch: Scratch) -> Message:
    """Return the message from which a child process loads the model and the targets."""
    return {
        "kind": "load",
        "root": root,
        "scratch": str(scratch.path),
        "model": context.model,
        "scenario": context.scenario,
        "targets": list(context.targets),
        "parameters": list(context.parameters),
        "import_folders": list(context.import_folders),
        "outputs": None if context.outputs is None else list(context.outputs),
        "tasks_per_child": context.tasks_per_child,
        "growth_bytes": context.growth_bytes,
    }


def _refusal(message: Message, context: JobContext, root: str) -> ModelError:
    """Return the error for a child that could not import the model or a target."""
    texts = message["message"], message["traceback"].rstrip()
    said, trace = (in_project(text, context.bundle) for text in texts)
    missing = message["missing"]
    target = next((name for name in context.targets if name == missing or repr(name) in said), None)
    advice, hint = None, _where_to_look(said, context)
    if missing:
        advise = advice_for_entry if missing in (context.model, *context.targets) else advice_for_import
        files = python_files(Path(root))
        advice = advice_for_imported(missing, files) or advise(missing, files, context.import_folders)
    found = advice.found if advice is not None else ""
    return ModelError(
        f"the {'target' if target else 'model'} cannot be loaded: {said}{found}"
        + (f"\n{trace}" if trace not in ("", said) else "")
        + "".join(f"\nalso: {in_project(other, context.bundle)}" for other in message["others"]),
        where=target or context.model,
        hint=advice.hint if advice is not None else hint,
    )


def _where_to_look(message: str, context: JobContext) -> str | None:
    """Return what to do about a file or a module that is missing; None: the message says what is wrong."""
    if message.startswith(("FileNotFoundError", "the project has no file")):
        return "check the path; the bundle leaves out exported results, large files and what .mopsignore lists"
    if not message.startswith("ModuleNotFoundError") and not message.endswith("was not found"):
        return None
    if context.install_s is not None:
        install = "name it in requirements.txt, uv.lock or pyproject.toml"
    else:
        install = f"install it for {command(context.python)[0]}"
    return f"if the module is in the project, check .mopsignore; if it is a library, {install}"
