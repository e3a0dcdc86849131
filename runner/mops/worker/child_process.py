"""The parent's end of one child: it is started, driven through tasks, watched for time and memory, and ended.

What runs in the child is :mod:`mops.child.main`'s; which child runs what is :mod:`mops.worker.pool`'s.
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
from collections.abc import Callable, Iterator

from mops.child.buffers import send_tables
from mops.child.channel import Channel, Message, ProgressPage, Step
from mops.errors import ModelError
from mops.system import cgroup, process_memory
from mops.task import JobContext
from mops.waiting import polls
from mops.worker import replacement_counts, result_buffers
from mops.worker.deaths import Death
from mops.worker.environment.interpreter import command
from mops.worker.processes import UNSAFE, Grandchild, Process, fork_refusal, spawned
from mops.worker.reaper.client import ANSWER_SECONDS, Reaper
from mops.worker.scratch import Scratch
from mops.worker.task_progress import TaskProgress

logger = logging.getLogger(__name__)

START_SECONDS = 60.0
"""Without any work in a forked process's first simulation: it waits for a lock that nobody holds any more."""

LEAVE_SECONDS = 5.0
"""For a child that closed its socket to be gone."""

_POLL_SECONDS = 0.25
_PRINTS_LIMIT = 64 << 10
_READS_LEFT = 32  # of 64 KiB: what any pipe may hold, and an end where somebody never stops printing
_TAIL_LIMIT = 4 << 10
_FATAL_LIMIT = 32 << 10  # faulthandler's hundred frames of each thread
_ABORT_SECONDS = 2.0  # for a child over its time limit to write where it hangs; it is gone when it has
_TERM_SECONDS = 0.1  # for a child over its memory limit to end by itself
_LOOK_SECONDS = 0.02  # at least between two looks at its memory
_WORK_SECONDS = 0.1  # between looks whether a forked process does anything
_ALLOCATES = 2.5e9  # bytes a second at most: how soon it can be over its limit


class ChildProcess:
    """One child process and this end of its sockets.

    Parameters
    ----------
    root
        The folder with the unpacked bundle.
    scratch
        The folder for working folders.
    template
        A child that has imported the model and forks this one; None: it is started by itself.
    reaper
        Starts it then, and ends what it leaves; a forked one has its template's.
    """

    def __init__(
        self,
        context: JobContext,
        root: str,
        scratch: Scratch,
        template: ChildProcess | None = None,
        reaper: Reaper | None = None,
    ):
        self._context, self._scratch, self._has_forked = context, scratch, False
        self._reaper: Reaper | None = template._reaper if template is not None else reaper
        load = None if template else _load_message(context, root, scratch)
        self._page, page_fd = ProgressPage.create()
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(os.close, page_fd)
            self._selector = selectors.DefaultSelector()  # not after the process: there may be no descriptor left
            on_failure.callback(self._selector.close)
            ours, theirs = socket.socketpair()
            self._lifeline, their_lifeline = socket.socketpair()
            with theirs, their_lifeline:
                passed = (theirs.fileno(), their_lifeline.fileno(), page_fd)
                self._process: Process = template.fork(passed) if template else spawned(context, passed, reaper)
            on_failure.pop_all()
        replacement_counts.started("forked" if template else "spawned")
        os.close(page_fd)
        self._guard = threading.RLock()
        self._channel = Channel(ours)
        self._ended_by = "itself"
        self._killed_at = 0.0
        self._limit_bytes: int | None = None
        self._peak_of: Step | None = None
        self.peak_bytes = self._unit_peak_bytes = 0
        self._template = template
        self._shared_bytes: int | None = None
        self._usage = process_memory.Usage()
        self._look_at = self._work_at = 0.0
        self._kills_before = cgroup.kernel_kills()
        self._judged: Step | None = None
        self._prints = bytearray()
        self._n_printed = 0  # bytes since they were last taken, dropped ones too
        self._tail = bytearray()
        self._stdout = self._process.output
        os.set_blocking(self._stdout.fileno(), False)
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._asking, self._reaping = threading.Lock(), threading.Lock()
        self._collected = self._forks = False
        self._starting, self._worked = template is not None, 0.0
        self._first: Step | None = None
        self._idle_since = time.monotonic()
        self.why_not_forked: str | None = None
        self.worn = self.worn_by = ""
        self._loaded = load is None
        if load is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # ready() tells how it died
                self._channel.send(load)

    def fork(self, passed: tuple[int, ...]) -> Process:
        """Have a process forked that serves tasks with these descriptors: its socket, lifeline and page.

        Raises
        ------
        TimeoutError
            This template does not answer: it waits for what the model does when it is forked. It is killed.
        ConnectionError, EOFError
            This template has ended, or is closed.
        OSError
            The system has no room for another process.
        """
        reading, writing = os.pipe()
        output = os.fdopen(reading, "rb", buffering=0)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(output.close)
            try:
                answer = self._ask({"kind": "fork"}, *passed, writing)
            finally:
                os.close(writing)
            if answer["kind"] == "not_forked":
                raise OSError(answer["message"])
            self._has_forked = True
            if self._reaper is not None:
                self._reaper.forked(answer["pid"])
            forked = Grandchild(answer["pid"], output, self._status_of)
            on_failure.pop_all()
        return forked

    def _ask(self, question: Message, *fds: int) -> Message:
        """Ask a template: the question goes with each descriptor, or once without any. What it prints is read."""
        deadline = time.monotonic() + ANSWER_SECONDS
        if not self._asking.acquire(timeout=ANSWER_SECONDS):
            raise TimeoutError
        try:
            self._forks = question["kind"] == "fork"
            for fd in fds or (None,):
                self._channel.send(question, fd)
            while True:
                ready = {key.fileobj for key, _ in self._selector.select(max(deadline - time.monotonic(), 0.0))}
                if self._stdout in ready:
                    self._read_prints()
                if self._channel in ready:
                    return self._channel.receive()[0]
                if time.monotonic() >= deadline:
                    self.kill()  # what it would answer later would be taken for the answer to another question
                    raise TimeoutError
        except ValueError as closed:  # as selectors and files say it, while another thread closes this template
            raise ConnectionError("this template is closed") from closed
        finally:
            self._forks = False
            self._asking.release()

    def _status_of(self, pid: int) -> int | None:
        """Take the return code of a process that this template has forked, and end what that has left."""
        found: int | None = None
        with contextlib.suppress(OSError, EOFError):  # this template has ended
            found = self._ask({"kind": "wait", "pid": pid})["returncode"]
        left = self._reaper.wait(pid) if self._reaper is not None else None
        return left if found is None else found

    def kill_if_it_forks(self) -> None:
        """End a template that somebody waits for: to import the model, or to fork."""
        if self._forks or not self._loaded:
            self.kill()

    def take_template_prints(self) -> str:
        """Return what a template has printed since the last call, when it imported the model or when it forked."""
        with self._asking:
            return self.take_prints()

    @property
    def fit(self) -> bool:
        """Whether it can be lent again: it has imported the model, is not worn, and lives as far as anybody knows."""
        return self._loaded and not self.worn and self._ended_by == "itself" and not self._has_ended()

    @property
    def loaded(self) -> bool:
        """Whether it has imported the model."""
        return self._loaded

    @property
    def pid(self) -> int:
        """The process, which is also its session and process group."""
        return self._process.pid

    def ready(self) -> Death | None:
        """Wait until the model is imported; return how the child died, if it did.

        Raises
        ------
        ModelError
            The model cannot be imported: why, and the user's part of the traceback.
        """
        if self._loaded:
            return None
        for message, _ in self._messages():
            if message["kind"] == "refused":
                trace = f"\n{message['traceback'].rstrip()}" if message["traceback"] else ""
                raise ModelError(
                    f"the model cannot be loaded: {message['message']}{trace}",
                    where=self._context.model,
                    hint=_where_to_look(message["message"], self._context),
                )
            self._loaded = True
            if self._reaper is not None:
                self._reaper.keep()
            self.why_not_forked = fork_refusal(message["threads"], message["modules"])
            return None
        return self.death()

    def drive(self, work: TaskProgress, limit_bytes: int, leave_at: int = 0) -> Death | None:
        """Run what is left of ``work``; return None when the child is ready for more, or how it died.

        Parameters
        ----------
        limit_bytes
            What each simulation may take, with all processes that it starts.
        leave_at
            Resident bytes at which the child is to leave between two simulations; 0: at any.
        """
        began = time.monotonic()
        self._limit_bytes = limit_bytes
        self.peak_bytes = 0
        self._usage = process_memory.Usage()
        self._look_at = began + self._next_look_s(self._look(limit_bytes))
        process_memory.reset_peak(self.pid)
        self._idle_since = began
        self._kills_before = cgroup.kernel_kills()
        try:
            request = work.request() | {"leave_at": leave_at}
            self._channel.send(request)
            if request["given"]:
                send_tables(self._channel, {"kind": "given"}, work.given(), request["name"])
            for message, fd in self._messages():
                if message["kind"] == "ended":
                    self.peak_bytes = max(self.peak_bytes, process_memory.peak_bytes(self.pid) - self._shared())
                    work.seconds += message["seconds"]
                    self._starting = False
                    self.worn, self.worn_by = message["worn"], message["reason"]
                    work.written = message["written"]
                    return None
                work.take(message, None if fd is None else result_buffers.take(fd, request["name"]))
        except (BrokenPipeError, ConnectionResetError):
            logger.debug("child %s is gone before it had its order", self.pid)
        work.seconds += time.monotonic() - began
        return self.death()

    def _messages(self) -> Iterator[tuple[Message, int | None]]:
        """Yield what the child sends until it is gone; reads its prints and watches its time meanwhile."""
        poll_s = min(_POLL_SECONDS, (self._context.timeout_s or 1.0) / 4)
        while True:
            # Looked at first: what it had sent is in the socket then. There may be no end-of-file, where a process that
            # the model forked keeps the socket open.
            ended = self._has_ended()
            if ended:
                self._kill_group()
            ready = {key.fileobj for key, _ in self._selector.select(0.0 if ended else self._wait_s(poll_s))}
            if self._stdout in ready:
                self._read_prints()
            if self._channel in ready:
                try:
                    message, fd = self._channel.receive()
                except EOFError:
                    return
                yield message, fd
            elif ended:
                return
            self._watch()

    def _wait_s(self, poll_s: float) -> float:
        if self._limit_bytes is None:
            return poll_s
        return min(poll_s, max(self._look_at - time.monotonic(), _LOOK_SECONDS))

    def _watch(self) -> None:
        if self._ended_by == "itself":
            if (running := self._page.running()) is not None:
                unit, began = running
                self._watch_time(unit, began)
                self._watch_memory(unit)
                self._watch_start(unit)
        elif time.monotonic() >= self._killed_at:
            self._kill_group()

    def _end(self, unit: Step, by: str, patience_s: float) -> None:
        """Have the child end because of what it runs; if it does not, it is killed after ``patience_s`` seconds."""
        if self._ended_by != "itself":
            return
        self._judged, self._ended_by = unit, by
        self._killed_at = time.monotonic() + patience_s
        if by == "memory":
            self._signal(os.killpg, signal.SIGTERM)
        else:
            self._signal(os.kill, signal.SIGABRT)  # faulthandler writes where it hangs

    def _watch_time(self, unit: Step, began: float) -> None:
        limit = self._context.timeout_s
        if limit is not None and time.monotonic() - began > limit:
            self._end(unit, "timeout", _ABORT_SECONDS)

    def _watch_start(self, unit: Step) -> None:
        """End a forked process that does no work at all in its first simulation."""
        if not self._starting:
            return
        self._first = self._first or unit
        if unit != self._first:
            self._starting = False
            return
        if time.monotonic() < self._work_at:
            return
        self._work_at = time.monotonic() + _WORK_SECONDS
        worked = process_memory.tree_cpu_seconds(self.pid)
        if worked > self._worked:
            self._worked, self._idle_since = worked, time.monotonic()
        elif time.monotonic() - self._idle_since > START_SECONDS:
            self._end(unit, "start", _ABORT_SECONDS)

    def _next_look_s(self, taken_bytes: int) -> float:
        """Return the seconds until the child could be over its memory limit."""
        if self._limit_bytes is None:
            return _POLL_SECONDS
        return min(max((self._limit_bytes - taken_bytes) / _ALLOCATES, _LOOK_SECONDS), _POLL_SECONDS)

    def _watch_memory(self, unit: Step) -> None:
        # By the clock, and not whenever the child prints: a look takes as long as a short simulation.
        if self._limit_bytes is None or time.monotonic() < self._look_at:
            return
        n_bytes = self._look(self._limit_bytes)
        self._look_at = time.monotonic() + self._next_look_s(n_bytes)
        if unit != self._peak_of:
            self._peak_of, self._unit_peak_bytes = unit, 0
        self._unit_peak_bytes = max(self._unit_peak_bytes, n_bytes)
        self.peak_bytes = max(self.peak_bytes, n_bytes)
        if n_bytes > self._limit_bytes:
            self._end(unit, "memory", _TERM_SECONDS)

    def _look(self, limit_bytes: int) -> int:
        return self._usage.look(limit_bytes, lambda: process_memory.tree_bytes(self.pid), self._own_bytes)

    def _own_bytes(self) -> int | None:
        template = self._template
        return process_memory.own_bytes(self.pid, template=template.pid if template is not None else None)

    def _shared(self) -> int:
        """Return the bytes that a process forked by the same template shares with it, measured once for all."""
        if self._template is None:
            return 0
        if self._template._shared_bytes is None:
            own = self._own_bytes()
            self._template._shared_bytes = 0 if own is None else max(process_memory.tree_bytes(self.pid) - own, 0)
        return self._template._shared_bytes

    def ask_to_stop(self) -> None:
        """Ask the child to run nothing after its present unit."""
        self._page.ask_to_stop()

    def kill(self) -> None:
        """End the child and what it started, now."""
        self._ended_by = "stop"
        self._kill_group()

    def _kill_group(self) -> None:
        self._signal(os.killpg, signal.SIGKILL)

    def _signal(self, send: Callable[[int, int], None], number: int) -> None:
        # Not after the child was waited for: its number, and its group's, may be somebody else's by then. And not by
        # Popen.send_signal, which takes the exit status of a child that has just ended.
        with self._guard:
            if not self._collected:
                with contextlib.suppress(ProcessLookupError):
                    send(self._process.pid, number)

    def _has_ended(self) -> bool:
        """Tell whether the process has ended, without taking its exit status."""
        with self._guard:
            return self._collected or self._process.has_ended()

    def _reap(self) -> None:
        """End what the child started and left, then the child, and take its exit status."""
        with self._reaping:  # not with the guard, under which others kill: to ask for the status may take seconds
            if self._collected:
                return
            self._kill_group()
            self._process.await_end()
            with self._guard:
                self._collected = True
            self._process.wait()

    def _read_prints(self) -> None:
        try:
            text = os.read(self._stdout.fileno(), 65536)
        except BlockingIOError:
            return
        if not text:
            self._selector.unregister(self._stdout)
            return
        self._n_printed += len(text)
        self._prints = (self._prints + text)[-_PRINTS_LIMIT:]
        self._tail = (self._tail + text)[-_FATAL_LIMIT:]

    def take_prints(self) -> str:
        """Return what was printed since the last call, the last 64 KiB of it."""
        self._read_prints_left()
        dropped = self._n_printed - len(self._prints)
        text = self._prints.decode(errors="replace")
        self._n_printed = 0
        self._prints.clear()
        return f"({dropped} bytes of output left out)\n{text}" if dropped > 0 else text

    def _read_prints_left(self) -> None:
        for _ in range(_READS_LEFT):
            before = self._n_printed
            if self._selector.get_map().get(self._stdout) is not None:
                self._read_prints()
            if self._n_printed == before:
                return

    def death(self) -> Death:
        """Wait for the end of a child that closed its socket, and say how it came."""
        # One that lives on closed the socket: a model that closes descriptors. It is ended all the same.
        has_ended = any(self._has_ended() for _ in polls(0.002, LEAVE_SECONDS))
        if not has_ended and self._ended_by == "itself":
            self._ended_by = "silence"
        self._reap()
        self._read_prints_left()
        running = self._page.running()
        unit, began = running if running is not None else (None, time.monotonic())
        by = self._ended_by
        if by in ("timeout", "memory", "start") and unit != self._judged:
            unit, by = None, "stop"  # it had just finished the unit that was over its limit
        tail = _last_words(self._tail.decode(errors="replace"))
        peak = self._unit_peak_bytes if unit is not None and unit == self._peak_of else None
        ended = (self._process.returncode, unit, by, time.monotonic() - began, tail)
        kills, size_before = self._kernel_kills(), self._page.size_before
        return Death(*ended, peak, self._limit_bytes, kills, self.pid, size_before, self._usage.is_exact)

    def _kernel_kills(self) -> int | None:
        now = cgroup.kernel_kills()
        return None if now is None or self._kills_before is None else now - self._kills_before

    def close(self) -> None:
        """End the child and give back its descriptors. Ending twice does no harm."""
        self._reap()
        self._selector.close()
        self._stdout.close()
        self._channel.close()
        self._lifeline.close()
        self._scratch.leave(self.pid, keep_import=self._has_forked)


def _load_message(context: JobContext, root: str, scratch: Scratch) -> Message:
    return {
        "kind": "load",
        "root": root,
        "scratch": str(scratch.path),
        "model": context.model,
        "scenario": context.scenario,
        "targets": list(context.targets),
        "parameters": list(context.parameters),
        "outputs": None if context.outputs is None else list(context.outputs),
        "tasks_per_child": context.tasks_per_child,
        "growth_bytes": context.growth_bytes,
        "unsafe": list(UNSAFE),
    }


def _where_to_look(message: str, context: JobContext) -> str:
    packed = "what runs is the packed project: mops study check shows what is in it"
    if not message.startswith("ModuleNotFoundError"):
        return packed
    if context.install_s is not None:
        return f"{packed}; a library must be named in its requirements.txt, uv.lock or pyproject.toml"
    return f"{packed}; a library must be installed for {command(context.python)[0]}, or for another that --python names"


def _last_words(printed: str) -> str:
    """Return the end of what a child printed; where faulthandler wrote, its start, which names the line."""
    _, fatal, trace = printed.rpartition("Fatal Python error: ")
    if not fatal:
        return printed[-_TAIL_LIMIT:].strip()
    # Before the thread that it was come the others; after it the names of all extension modules, which can be hundreds.
    what, _, frames = trace.partition("\nExtension modules:")[0].partition("\n\n")
    others, current, own = frames.partition("Current thread")
    return f"{fatal}{what}\n\n{current}{own or others}"[:_TAIL_LIMIT].strip()
