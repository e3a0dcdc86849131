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
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from mops.errors import ClusterError, ModelError
from mops.worker import held
from mops.worker.order import Context, Order, Outcome
from mops.worker.parts import send_tables
from mops.worker.wire import Channel, Message, ProgressPage, Unit
from mops.worker.work import Verdict, Work

logger = logging.getLogger(__name__)

_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "MOPS_CHILD_THREADS",
)
_POLL_SECONDS = 0.25
_PRINTS_LIMIT = 64 << 10
_TAIL_LIMIT = 4 << 10
_ABORT_SECONDS = 0.5  # for a child over its time limit to write where it hangs
_LEAVE_SECONDS = 5.0  # for a child that closed its socket to be gone
_DEATHS_BETWEEN_UNITS = 5


@dataclass(frozen=True)
class Death:
    """How a child ended: its return code (negative: a signal), the unit it ran, and who ended it."""

    returncode: int
    unit: Unit | None
    by: str  # "itself", "timeout" or "stop"
    seconds: float
    tail: str

    @property
    def how(self) -> str:
        """Say how, for people."""
        if self.returncode >= 0:
            return f"ended by itself with exit code {self.returncode} (os._exit?)"
        number = -self.returncode
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(number).name} ({signal.strsignal(number)})"
        return f"was ended by signal {number}"


class Child:
    """One child process and this end of its sockets."""

    def __init__(self, context: Context):
        self._context = context
        self._page, page_fd = ProgressPage.create()
        ours, theirs = socket.socketpair()
        self._lifeline, their_lifeline = socket.socketpair()
        passed = (theirs.fileno(), their_lifeline.fileno(), page_fd)
        self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
            [sys.executable, "-P", "-m", "mops.worker.child", *map(str, passed)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=passed,
            env=_environment(context.threads),
            start_new_session=True,
        )
        theirs.close()
        their_lifeline.close()
        os.close(page_fd)
        self._guard = threading.RLock()
        self._channel = Channel(ours)
        self._ended_by = "itself"
        self._killed_at = 0.0
        self._judged: Unit | None = None
        self._prints = bytearray()
        self._tail = bytearray()
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._loaded = False
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # ready() tells how it died
            self._channel.send(
                {
                    "kind": "load",
                    "root": context.root,
                    "model": context.model,
                    "scenario": context.scenario,
                    "targets": list(context.targets),
                    "outputs": None if context.outputs is None else list(context.outputs),
                }
            )

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
                    hint="what runs is the packed project: mops study check shows what is in it",
                )
            self._loaded = True
            return None
        return self.death()

    def drive(self, work: Work) -> Death | None:
        """Run what is left of ``work``; return None when the child is ready for more, or how it died."""
        try:
            request = work.request()
            self._channel.send(request)
            if request["given"]:
                send_tables(self._channel, {"kind": "given"}, work.given(), request["name"])
            for message, fd in self._messages():
                if message["kind"] == "ended":
                    work.seconds += message["seconds"]
                    return None
                work.take(message, None if fd is None else held.take(fd, request["name"]))
        except (BrokenPipeError, ConnectionResetError):
            logger.debug("child %s is gone before it had its order", self.pid)
        return self.death()

    def _messages(self) -> Iterator[tuple[Message, int | None]]:
        """Yield what the child sends until it is gone; reads its prints and watches its time meanwhile."""
        poll = min(_POLL_SECONDS, (self._context.timeout_s or 1.0) / 4)
        while True:
            for key, _ in self._selector.select(poll):
                if key.fileobj is self._stdout:
                    self._read_prints()
                    continue
                try:
                    message, fd = self._channel.receive()
                except EOFError:
                    return
                yield message, fd
            self._watch()

    def _watch(self) -> None:
        if self._ended_by == "itself":
            self._watch_time()
        elif time.monotonic() >= self._killed_at:
            self._kill_group()

    def _watch_time(self) -> None:
        limit, running = self._context.timeout_s, self._page.running()
        if limit is not None and running is not None and time.monotonic() - running[1] > limit:
            self._judged = running[0]
            self._ended_by = "timeout"
            self._killed_at = time.monotonic() + _ABORT_SECONDS
            with contextlib.suppress(ProcessLookupError):  # faulthandler writes where it hangs
                self._process.send_signal(signal.SIGABRT)

    def ask_to_stop(self) -> None:
        """Ask the child to run nothing after its present unit."""
        self._page.ask_to_stop()

    def kill(self) -> None:
        """End the child and what it started, now."""
        self._ended_by = "stop"
        self._kill_group()

    def _kill_group(self) -> None:
        # Not after the child was waited for: its number, and its group's, may be somebody else's by then.
        with self._guard:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def _await_end(self, within_s: float) -> bool:
        """Wait for the end of the process without taking its exit status."""
        deadline = time.monotonic() + within_s
        while os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def _reap(self) -> None:
        """End what the child started and left, then the child, and take its exit status."""
        with self._guard:
            if self._process.returncode is None:
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
        self._prints += text
        self._tail = (self._tail + text)[-_TAIL_LIMIT:]

    def take_prints(self) -> str:
        """Return what was printed since the last call, the last 64 KiB of it."""
        self._read_prints_left()
        dropped = len(self._prints) - _PRINTS_LIMIT
        text = bytes(self._prints[-_PRINTS_LIMIT:]).decode(errors="replace")
        self._prints.clear()
        return f"({dropped} bytes of output left out)\n{text}" if dropped > 0 else text

    def _read_prints_left(self) -> None:
        while self._selector.get_map().get(self._stdout) is not None:
            before = len(self._prints)
            self._read_prints()
            if len(self._prints) == before:
                return

    def death(self) -> Death:
        """Wait for the end of a child that closed its socket, and say how it came."""
        # One that lives on closed the socket: a model that closes descriptors. It is ended all the same.
        self._await_end(within_s=_LEAVE_SECONDS)
        self._reap()
        self._read_prints_left()
        running = self._page.running()
        unit, began = running if running is not None else (None, time.monotonic())
        by = self._ended_by
        if by == "timeout" and unit != self._judged:
            unit, by = None, "stop"  # it had just finished the unit that was over its time
        tail = bytes(self._tail).decode(errors="replace").strip()
        return Death(self._process.returncode, unit, by, time.monotonic() - began, tail)

    def close(self) -> None:
        """End the child and give back its descriptors. Ending twice does no harm."""
        self._reap()
        self._selector.close()
        self._stdout.close()
        self._channel.close()
        self._lifeline.close()


def _environment(threads: int) -> dict[str, str]:
    limits = dict.fromkeys(_THREAD_LIMITS, str(threads))
    return {**os.environ, **limits, "PYTHONHASHSEED": "0"}


class Pool:
    """The children of one job on one worker: at most ``context.slots`` at once.

    Thread-safe: each task calls :meth:`run` in its own thread.
    """

    def __init__(self, context: Context):
        self.context = context
        self._slots = threading.Semaphore(context.slots)
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._children: set[Child] = set()
        self._stopping = False
        self._killer: threading.Timer | None = None

    def warm(self) -> None:
        """Start every child now, side by side; they import the model while the caller goes on."""
        with self._lock:
            while len(self._children) < self.context.slots:
                self._idle.append(self._start())

    def _start(self) -> Child:
        child = Child(self.context)
        self._children.add(child)
        return child

    def check(self) -> None:
        """Wait until one child has imported the model.

        Raises
        ------
        ModelError
            It cannot be imported, or is not what STUDY.md asks for.
        """
        child = self._lend()
        death = child.ready()
        if death is None:
            self._give_back(child)
            return
        self._discard(child)
        raise ModelError(
            f"the process that imports the model {death.how}",
            where=self.context.model,
            hint=f"its last output: {death.tail or '(none)'}",
        )

    def pids(self) -> list[int]:
        """Return the children's process ids."""
        with self._lock:
            return [child.pid for child in self._children]

    def run(self, order: Order) -> Outcome:
        """Run an order on one child, or on several in turn where they die.

        Raises
        ------
        ModelError
            A child cannot import the model.
        ClusterError
            Children die again and again between simulations, so that nothing can be blamed.
        """
        work, prints = Work(order), ""
        with self._slots:
            held.wait_for_room(self.context.held_bytes, lambda: self._stopping, self.context.job)
            deaths_between = 0
            while not self._stopping:
                child = self._lend()
                # A child that dies while it starts is no verdict on the model: an earlier one has imported it.
                death = child.ready() or child.drive(work)
                prints += child.take_prints()
                if death is None:
                    self._give_back(child)
                    break
                self._discard(child)
                self._explain(death, work)
                deaths_between = deaths_between + 1 if death.unit is None else 0
                if deaths_between >= _DEATHS_BETWEEN_UNITS:
                    raise _dying(order, death)
        return work.outcome(prints)

    def _lend(self) -> Child:
        with self._lock:
            child = self._idle.pop() if self._idle else self._start()
            if self._stopping:
                child.ask_to_stop()
            return child

    def _give_back(self, child: Child) -> None:
        with self._lock:
            self._idle.append(child)

    def _discard(self, child: Child) -> None:
        with self._lock:
            self._children.discard(child)
        child.close()

    def _explain(self, death: Death, work: Work) -> None:
        """Blame the unit that ran, and log what happened, how often, and what to do."""
        if death.by == "stop" or death.unit is None:
            if death.by == "itself":
                logger.warning(
                    "%s: a child that ran no simulation %s; the rest runs again", self.context.job, death.how
                )
            return
        verdict = _verdict(death, self.context.timeout_s)
        again = work.blame(death.unit, verdict)
        logger.warning(
            "%s: %s: %s; %s",
            self.context.job,
            work.describe(death.unit),
            verdict.message,
            "it is tried again in a new process" if again else "it is recorded as failed, the rest goes on",
        )

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
            for child in self._children:
                child.kill()

    def close(self) -> None:
        """End every child."""
        self._stopping = True
        with self._lock:
            if self._killer is not None:
                self._killer.cancel()
            children, self._children = self._children, set()
            self._idle.clear()
        for child in children:
            child.close()


def _verdict(death: Death, timeout_s: float | None) -> Verdict:
    if death.by == "timeout":
        message = f"ran for more than {timeout_s:g} s (MODELOPS_JOB_SIM_TIMEOUT) and was ended"
        return Verdict("timeout", message, death.tail)
    message = f"the process that ran it {death.how} after {death.seconds:.1f} s"
    if death.returncode == -signal.SIGKILL:
        message += (
            ", which mops did not send: probably the system ran out of memory; "
            "lower MODELOPS_JOB_SLOTS or MODELOPS_JOB_BATCH_SIZE, or give it more memory"
        )
    return Verdict("crashed", message, death.tail)


def _dying(order: Order, death: Death) -> ClusterError:
    return ClusterError(
        f"children died {_DEATHS_BETWEEN_UNITS} times in a row between simulations; the last one {death.how}",
        where=order.key,
        hint=f"its last output: {death.tail or '(none)'}",
    )
