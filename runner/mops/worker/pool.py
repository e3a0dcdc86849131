"""A worker's children: started, lent to tasks, watched, ended.

A task drives its child in its own thread (:meth:`Pool.run`): it reads parts and prints, watches the time limit,
and notices a death. What is left of an order after a death is :mod:`mops.worker.work`'s; what runs in a child is
:mod:`mops.worker.child`'s.
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

from mops.errors import ClusterError, ModelError
from mops.worker import held, memory
from mops.worker.heap import resident_bytes
from mops.worker.interpreter import command
from mops.worker.order import ArrowPart, Context, Order, Outcome
from mops.worker.parts import send_tables
from mops.worker.process import UNSAFE, Forked, Process, Spawned, why_not_forked
from mops.worker.verdict import Death, verdict_of
from mops.worker.wire import Channel, Message, ProgressPage, Unit
from mops.worker.work import Work

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
_SAY_SECONDS = 30.0
_PAUSE_SHARE = 0.85  # of what the worker may take: above it, no further simulation starts beside one that runs
_PRINTS_LIMIT = 64 << 10
_READS_LEFT = 32  # of 64 KiB: what any pipe may hold, and an end where somebody never stops printing
_TAIL_LIMIT = 4 << 10
_FATAL_LIMIT = 32 << 10  # faulthandler's hundred frames of each thread
_ABORT_SECONDS = 0.5  # for a child over its time limit to write where it hangs
_TERM_SECONDS = 0.1  # for a child over its memory limit to end by itself
_LOOK_SECONDS = 0.02  # at its memory, where it is near its limit
_ALLOCATES = 2.5e9  # bytes a second at most: how soon it can be over its limit
_START_SECONDS = 60.0  # without any work in a forked process's first simulation: a lock that nobody holds any more
_LEAVE_SECONDS = 5.0  # for a child that closed its socket to be gone
_DEATHS_BETWEEN_UNITS = 5


class Child:
    """One child process and this end of its sockets.

    Parameters
    ----------
    root
        The folder with the unpacked bundle.
    template
        A child that has imported the model and forks this one; None: it is started by itself.
    """

    def __init__(self, context: Context, root: str, template: Child | None = None):
        self._context = context
        self._page, page_fd = ProgressPage.create()
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(os.close, page_fd)
            self._selector = selectors.DefaultSelector()  # not after the process: there may be no descriptor left
            on_failure.callback(self._selector.close)
            ours, theirs = socket.socketpair()
            self._lifeline, their_lifeline = socket.socketpair()
            with theirs, their_lifeline:
                passed = (theirs.fileno(), their_lifeline.fileno(), page_fd)
                self._process: Process = template.fork(passed) if template else Spawned(context, passed)
            on_failure.pop_all()
        os.close(page_fd)
        self._guard = threading.RLock()
        self._channel = Channel(ours)
        self._ended_by = "itself"
        self._killed_at = 0.0
        self._limit_bytes: int | None = None
        self._peak_of: Unit | None = None
        self.peak_bytes = self._unit_peak_bytes = 0
        self._kills_before = memory.oom_kills()
        self._judged: Unit | None = None
        self._prints = bytearray()
        self._n_printed = 0  # bytes since they were last taken, dropped ones too
        self._tail = bytearray()
        self._stdout = self._process.output
        os.set_blocking(self._stdout.fileno(), False)
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._asking = threading.Lock()
        self._starting, self._worked = template is not None, 0.0
        self._first: Unit | None = None
        self._idle_since = time.monotonic()
        self.why_not_forked: str | None = None
        self.worn = ""
        self._loaded = template is not None
        if not self._loaded:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # ready() tells how it died
                self._channel.send(_load_message(context, root))

    def fork(self, passed: tuple[int, ...]) -> Forked:
        """Have a process forked that serves orders with these descriptors: its socket, lifeline and page.

        Raises
        ------
        BrokenPipeError, ConnectionResetError, EOFError
            This template has ended.
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
            forked = Forked(answer["pid"], output, self._status_of)
            on_failure.pop_all()
        return forked

    def _ask(self, question: Message, *fds: int) -> Message:
        """Ask a template: the question goes with each descriptor, or once without any."""
        with self._asking:
            for fd in fds or (None,):
                self._channel.send(question, fd)
            return self._channel.receive()[0]

    def _status_of(self, pid: int) -> int | None:
        try:
            found: int | None = self._ask({"kind": "wait", "pid": pid})["returncode"]
        except (OSError, EOFError):  # the template has ended
            return None
        return found

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
                    hint=_where_to_look(message["message"], self._context.python),
                )
            self._loaded = True
            self.why_not_forked = why_not_forked(self._context.start, message["threads"], message["modules"])
            return None
        return self.death()

    def drive(self, work: Work, limit_bytes: int) -> Death | None:
        """Run what is left of ``work``; return None when the child is ready for more, or how it died.

        Parameters
        ----------
        limit_bytes
            What each simulation may take, with all processes that it starts.
        """
        began = time.monotonic()
        self._limit_bytes = limit_bytes
        self._idle_since = began
        self._kills_before = memory.oom_kills()
        try:
            request = work.request()
            self._channel.send(request)
            if request["given"]:
                send_tables(self._channel, {"kind": "given"}, work.given(), request["name"])
            for message, fd in self._messages():
                if message["kind"] == "ended":
                    work.seconds += message["seconds"]
                    self._starting = False
                    self.worn = message["worn"]
                    return None
                work.take(message, None if fd is None else held.take(fd, request["name"]))
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
            ready = {key.fileobj for key, _ in self._selector.select(0 if ended else min(poll_s, self._next_look_s()))}
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

    def _watch(self) -> None:
        if self._ended_by == "itself":
            if (running := self._page.running()) is not None:
                unit, began = running
                self._watch_time(unit, began)
                self._watch_memory(unit)
                self._watch_start(unit)
        elif time.monotonic() >= self._killed_at:
            self._kill_group()

    def _end(self, unit: Unit, by: str, patience_s: float) -> None:
        """Have the child end because of what it runs; if it does not, it is killed after ``patience_s`` seconds."""
        if self._ended_by != "itself":
            return
        self._judged, self._ended_by = unit, by
        self._killed_at = time.monotonic() + patience_s
        if by == "memory":
            self._signal(os.killpg, signal.SIGTERM)
        else:
            self._signal(os.kill, signal.SIGABRT)  # faulthandler writes where it hangs

    def _watch_time(self, unit: Unit, began: float) -> None:
        limit = self._context.timeout_s
        if limit is not None and time.monotonic() - began > limit:
            self._end(unit, "timeout", _ABORT_SECONDS)

    def _watch_start(self, unit: Unit) -> None:
        """End a forked process that does no work at all in its first simulation."""
        if not self._starting:
            return
        self._first = self._first or unit
        if unit != self._first:
            self._starting = False
            return
        worked = memory.tree_cpu_seconds(self.pid)
        if worked > self._worked:
            self._worked, self._idle_since = worked, time.monotonic()
        elif time.monotonic() - self._idle_since > _START_SECONDS:
            self._end(unit, "start", _ABORT_SECONDS)

    def _next_look_s(self) -> float:
        """Return the seconds until the child could be over its memory limit."""
        if self._limit_bytes is None:
            return _POLL_SECONDS
        return max((self._limit_bytes - self._unit_peak_bytes) / _ALLOCATES, _LOOK_SECONDS)

    def _watch_memory(self, unit: Unit) -> None:
        if self._limit_bytes is None:
            return
        n_bytes = memory.tree_bytes(self.pid)
        if unit != self._peak_of:
            self._peak_of, self._unit_peak_bytes = unit, 0
        self._unit_peak_bytes = max(self._unit_peak_bytes, n_bytes)
        self.peak_bytes = max(self.peak_bytes, n_bytes)
        if n_bytes > self._limit_bytes:
            self._end(unit, "memory", _TERM_SECONDS)

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
            if not self._process.waited:
                with contextlib.suppress(ProcessLookupError):
                    send(self._process.pid, number)

    def _has_ended(self) -> bool:
        """Tell whether the process has ended, without taking its exit status."""
        with self._guard:
            return self._process.waited or self._process.has_ended()

    def _await_end(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while not self._has_ended():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def _reap(self) -> None:
        """End what the child started and left, then the child, and take its exit status."""
        with self._guard:
            if not self._process.waited:
                self._kill_group()
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
        if not self._await_end(within_s=_LEAVE_SECONDS) and self._ended_by == "itself":
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
        return Death(*ended, peak, self._limit_bytes, self._kernel_kills())

    def _kernel_kills(self) -> int | None:
        now = memory.oom_kills()
        return None if now is None or self._kills_before is None else now - self._kills_before

    def close(self) -> None:
        """End the child and give back its descriptors. Ending twice does no harm."""
        self._reap()
        self._selector.close()
        self._stdout.close()
        self._channel.close()
        self._lifeline.close()


def _load_message(context: Context, root: str) -> Message:
    return {
        "kind": "load",
        "root": root,
        "model": context.model,
        "scenario": context.scenario,
        "targets": list(context.targets),
        "outputs": None if context.outputs is None else list(context.outputs),
        "tasks_per_child": context.tasks_per_child,
        "growth_bytes": context.growth_bytes,
        "unsafe": list(UNSAFE),
    }


def _where_to_look(message: str, python: str | None) -> str:
    packed = "what runs is the packed project: mops study check shows what is in it"
    if not message.startswith("ModuleNotFoundError"):
        return packed
    return f"{packed}; a library must be installed for {command(python)[0]}, or for another that --python names"


def _last_words(printed: str) -> str:
    """Return the end of what a child printed; where faulthandler wrote, its start, which names the line."""
    _, fatal, trace = printed.rpartition("Fatal Python error: ")
    if not fatal:
        return printed[-_TAIL_LIMIT:].strip()
    # Before the thread that it was come the others; after it the names of all extension modules, which can be hundreds.
    what, _, frames = trace.partition("\nExtension modules:")[0].partition("\n\n")
    others, current, own = frames.partition("Current thread")
    return f"{fatal}{what}\n\n{current}{own or others}"[:_TAIL_LIMIT].strip()


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
    """

    def __init__(self, context: Context, root: str, slots: int, worker_limit: int | None = None):
        self.context, self.slots = context, slots
        self._allowed_bytes = memory.allowed_bytes(worker_limit)
        self._root = root
        self._slots = threading.Semaphore(slots)
        self._alone_turn = threading.Lock()
        self._to_give_up = 0
        self._lock = threading.Lock()
        self._returned = threading.Condition(self._lock)
        self._idle: list[Child] = []
        self._children: set[Child] = set()
        self._template: Child | None = None
        self._preparing = threading.Lock()
        self._spawns = context.start == "spawn"
        self._said_forked = False
        self._import_prints = ""
        self._stopping = self._ended = False
        self._killer: threading.Timer | None = None

    def warm(self) -> None:
        """Start every child now, side by side; they import the model while the caller goes on."""
        with self._lock:
            if not self._spawns and not self._stopping:
                self._template = self._template or Child(self.context, self._root)
            while self._spawns and not self._stopping and len(self._children) < self.slots:
                self._idle.append(self._start())

    def _start(self) -> Child:
        child = None
        if self._template is not None and not self._spawns:
            # A template that has just ended is replaced before the next order; this one starts by itself.
            with contextlib.suppress(OSError, EOFError):
                child = Child(self.context, self._root, self._template)
        child = child or Child(self.context, self._root)
        self._children.add(child)
        return child

    def _prepare(self) -> Death | None:
        """Have a template that has imported the model, or find out why not; return how it died, if it did.

        Raises
        ------
        ModelError
            The model cannot be imported.
        """
        with self._preparing:
            if self._spawns or self._stopping:
                return None
            with self._lock:
                template = self._template
            if template is None or (template.loaded and not template.fit):
                self._drop_template()
                with self._lock:
                    if self._stopping:
                        return None
                    self._template = template = Child(self.context, self._root)
            death: Death | None = None
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(self._drop_template)
                death = template.ready()
                if death is None:
                    on_failure.pop_all()
            if template.why_not_forked is not None:
                self._adopt(template)
            elif death is None and not self._said_forked:
                self._said_forked = True
                self._import_prints = template.take_prints()
                logger.info("%s: children are forked from a process that has imported the model", self.context.job)
            return death

    def _take_import_prints(self) -> str:
        """Return what the model printed when the template imported it, once."""
        with self._lock:
            prints, self._import_prints = self._import_prints, ""
        return prints

    def _drop_template(self) -> None:
        with self._lock:
            template, self._template = self._template, None
        if template is not None:
            template.close()

    def _adopt(self, template: Child) -> None:
        """Make an ordinary child of a template that may not fork."""
        with self._lock:
            self._template = None
            self._children.add(template)
            self._idle.append(template)
        self._spawn_only(template.why_not_forked)

    def _spawn_only(self, why: str | None) -> None:
        """Start every child by itself from now on. A template that has forked stays, to tell how its processes end."""
        with self._lock:
            if self._spawns:
                return
            self._spawns = True
        logger.info("%s: children import the model each by itself: %s", self.context.job, why)

    def check(self) -> None:
        """Wait until one child has imported the model.

        Raises
        ------
        ModelError
            It cannot be imported, or is not what STUDY.md asks for.
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
        with self._lock:
            return [child.pid for child in self._children]

    def run(self, order: Order, given: Sequence[ArrowPart] = ()) -> Outcome:
        """Run an order on one child, or on several in turn where they die.

        Parameters
        ----------
        given
            What earlier orders gave of the group whose targets alone are to run.

        Raises
        ------
        ModelError
            A child cannot import the model.
        ClusterError
            Children die again and again between simulations, so that nothing can be blamed.
        """
        work, prints, peak_bytes = Work(order, given), "", 0
        with self._alone() if order.alone else self._slot():
            if order.replicates is None:
                held.wait_for_room(self.context.held_bytes, lambda: self._stopping, self.context.job)
                self._wait_for_memory()
            deaths_between = 0
            while not work.finished:
                if (death := self._prepare()) is not None:
                    self._explain(death, work)
                    deaths_between += 1
                    if deaths_between >= _DEATHS_BETWEEN_UNITS:
                        raise _dying(order, death)
                    continue
                with self._lent(last=order.replicates == ()) as child:
                    if child is None:
                        break
                    # A child that dies while it starts is no verdict on the model: an earlier one has imported it.
                    death = child.ready() or child.drive(work, self._limit_bytes(alone=order.alone))
                    prints += child.take_prints()
                    peak_bytes = max(peak_bytes, child.peak_bytes, memory.peak_bytes(child.pid) if order.alone else 0)
                if death is None and not (child.worn and work.wants_more):
                    break
                if death is None:
                    continue
                self._explain(death, work)
                deaths_between = deaths_between + 1 if death.unit is None else 0
                if deaths_between >= _DEATHS_BETWEEN_UNITS:
                    raise _dying(order, death)
        outcome = work.outcome(self._take_import_prints() + prints)
        outcome.peak_bytes = peak_bytes
        return outcome

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        """Have a slot; after a kill by the kernel it is not given back, so that one fewer runs at a time."""
        self._slots.acquire()
        try:
            yield
        finally:
            with self._lock:
                given_up, self._to_give_up = self._to_give_up > 0, max(self._to_give_up - 1, 0)
            if not given_up:
                self._slots.release()

    def _narrow(self) -> None:
        """Have one simulation fewer run at a time here, but at least one."""
        with self._lock:
            if self.slots == 1:
                return
            self.slots -= 1
            self._to_give_up += 1
        logger.warning("%s: %d simulations at a time on this worker from now on", self.context.job, self.slots)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Have all slots, and the memory of the children that nobody uses."""
        with self._alone_turn, contextlib.ExitStack() as slots:
            for _ in range(self.slots):
                slots.enter_context(self._slot())
            with self._lock:
                idle = self._take_idle()
            for child in idle:
                child.close()
            yield

    def _take_idle(self) -> list[Child]:
        """Take out the children that nobody uses, to be closed. Called with the lock held."""
        idle, self._idle = self._idle, []
        self._children.difference_update(idle)
        return idle

    def _wait_for_memory(self) -> None:
        """Wait while all processes together take too much and another order runs; say so every 30 s.

        Dask's own pausing measures the worker's process only, which in an embedded worker is the whole runner.
        """
        most, said_at = int(_PAUSE_SHARE * self._allowed_bytes), time.monotonic()
        with self._returned:
            while not self._stopping and len(self._children) > len(self._idle) and self._tree_bytes() > most:
                for child in self._take_idle():
                    child.close()
                if time.monotonic() - said_at > _SAY_SECONDS:
                    said_at = time.monotonic()
                    took = (self._tree_bytes() >> 20, most >> 20)
                    message = "%s: waiting to start simulations: the worker's processes take %d MiB (limit %d MiB)"
                    logger.warning(message, self.context.job, *took)
                self._returned.wait(_POLL_SECONDS)

    def _tree_bytes(self) -> int:
        children = (*self._children, *([self._template] if self._template else []))
        return resident_bytes() + sum(memory.tree_bytes(child.pid) for child in children)

    def children_bytes(self) -> int:
        """Return the resident memory of all children and what they have started."""
        with self._lock:
            return self._tree_bytes() - resident_bytes()

    def _limit_bytes(self, *, alone: bool) -> int:
        """Return what one simulation may take now: what is set, else its slot's share of what is there."""
        n_shares = self.slots if alone else 1
        if self.context.memory_bytes is not None:
            return n_shares * self.context.memory_bytes
        mine = resident_bytes() + (resident_bytes(self._template.pid) if self._template else 0)
        return memory.share_bytes(self._allowed_bytes, mine, self.slots // n_shares)

    @contextlib.contextmanager
    def _lent(self, *, last: bool = False) -> Iterator[Child | None]:
        """Lend a child, None once the pool is stopped; keep it only if it is fit for the next order.

        Parameters
        ----------
        last
            It only scores what is there: also while a stop gives time, for its group would be lost without it.
        """
        with self._lock:
            over = self._ended if last else self._stopping
            child = None if over else self._idle.pop() if self._idle else self._start()
        fit = False
        try:
            yield child
            fit = child is not None and child.fit
        finally:
            if child is not None:
                self._give_back(child, fit=fit)

    def _give_back(self, child: Child, *, fit: bool) -> None:
        with self._lock:
            keep = fit and not self._stopping
            if keep:
                self._idle.append(child)
        if not keep:
            if child.worn:
                logger.info("%s: child %d is replaced: %s", self.context.job, child.pid, child.worn)
            child.close()
            with self._returned:
                self._children.discard(child)
                self._returned.notify_all()

    def _explain(self, death: Death, work: Work) -> None:
        """Blame the unit that ran, and log what happened, how often, and what to do."""
        if death.by == "stop" or death.unit is None:
            if death.by in ("itself", "silence"):
                logger.warning(
                    "%s: a child that ran no simulation %s; the rest runs again", self.context.job, death.how
                )
            return
        if death.by == "start":
            logger.warning(
                "%s: a forked process did nothing for %g s in its first simulation, %s; set MODELOPS_JOB_START=spawn",
                *(self.context.job, _START_SECONDS, work.describe(death.unit)),
            )
            self._spawn_only("a forked process hung")
            return
        verdict = verdict_of(death, self.context.timeout_s)
        if verdict.reason == "oom" and death.by == "itself":
            self._narrow()
        if death.by == "memory" and work.postpone(death.unit):
            then = "it is tried again at the end, alone on its worker"
        elif work.blame(death.unit, verdict):
            then = "it is tried again in a new process"
        else:
            then = "it is recorded as failed, the rest goes on"
        logger.warning("%s: %s: %s; %s", self.context.job, work.describe(death.unit), verdict.message, then)

    def stop(self, grace_s: float) -> None:
        """Run nothing new; what runs gets ``grace_s`` seconds, then its process is ended."""
        with self._lock:
            self._stopping = True
            if self._killer is not None:
                self._killer.cancel()
            self._killer = threading.Timer(grace_s, self._kill_all)
            self._killer.daemon = True
            self._killer.start()
            for child in self._children:
                child.ask_to_stop()
        held.wake()

    def _kill_all(self) -> None:
        with self._lock:
            self._ended = True
            for child in self._children:
                child.kill()
            self._kill_importing()

    def _kill_importing(self) -> None:
        """End a template that somebody waits for; one that is ready tells how its processes ended, until the last."""
        if self._template is not None and not self._template.loaded:
            self._template.kill()

    def close(self) -> None:
        """End every child; who drives one meanwhile sees it die, and has an outcome without an error."""
        with self._returned:
            self._stopping = self._ended = True
            if self._killer is not None:
                self._killer.cancel()
            idle = self._take_idle()
            for child in self._children:
                child.kill()
            self._kill_importing()
        held.wake()
        for child in idle:
            child.close()
        with self._returned:
            self._returned.wait_for(lambda: not self._children, timeout=_LEAVE_SECONDS)
            left, self._children = self._children, set()
        for child in left:  # its driver is held up elsewhere
            child.close()
        self._drop_template()


def _dying(order: Order, death: Death) -> ClusterError:
    return ClusterError(
        f"children died {_DEATHS_BETWEEN_UNITS} times in a row between simulations; the last one {death.how}",
        where=order.key,
        hint=f"its last output: {death.tail or '(none)'}",
    )
