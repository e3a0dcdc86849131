"""The worker's end of a reaper: the process through which a pool starts its processes, and which leaves none behind.

What it does is :mod:`mops.worker.reaper.main`'s.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from mops.child.channel import Channel, Message
from mops.system.lifeline import can_adopt, can_watch, readable
from mops.worker.environment.interpreter import START

ANSWER_SECONDS = 20.0
"""For a process that starts others to answer, however busy the machine is."""

_END_SECONDS = 5.0


def can_reap() -> bool:
    """Tell whether this system's kernel can do it: Linux 5.3 or newer."""
    return can_adopt() and can_watch()


class Reaper:
    """A pool's reaper. Thread-safe."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                    [sys.executable, "-I", "-S", START, "mops.worker.reaper.main", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        self.pid = self._process.pid
        self._socket, self._channel = ours, Channel(ours)
        self._asking = threading.Lock()
        self._forked: set[int] = set()
        self._closed = self._broken = False

    @property
    def lives(self) -> bool:
        """Whether it can be asked for anything."""
        return not self._closed and not self._broken and self._process.poll() is None

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], fds: Sequence[int]) -> int:
        """Start a process of its own session; return its number.

        Parameters
        ----------
        argv
            The command; the numbers of all descriptors but the last follow.
        fds
            Its socket, lifeline and page, and where it prints to.

        Raises
        ------
        ConnectionError
            This reaper has ended, or does not answer: another one is needed.
        OSError
            The process cannot be started.
        """
        answer = self._ask({"kind": "spawn", "argv": list(argv), "env": dict(env)}, fds)
        if answer["kind"] == "not_spawned":
            raise OSError(answer["errno"], answer["message"])
        return int(answer["pid"])

    def forked(self, pid: int) -> None:
        """Note a process that a template has forked: it is to live also where its template ends before it."""
        self._forked.add(pid)

    def wait(self, pid: int) -> int | None:
        """Take the return code of a process that has ended, and end all that it has left; None: nobody can tell."""
        try:
            found: int | None = self._ask({"kind": "wait", "pid": pid, "living": list(self._forked)})["returncode"]
        except OSError:  # the reaper has ended
            return None
        finally:
            self._forked.discard(pid)  # not before: what others wait for meanwhile would take its return code
        return found

    def keep(self) -> None:
        """Leave alone what the import of a model has left running: its simulations may use it.

        Where it comes in the moment between another process's end and its :meth:`wait`, what that one has left stays,
        too, until the pool is closed: the kernel does not say who has left a process.
        """
        with contextlib.suppress(OSError):  # it has ended
            self._ask({"kind": "keep"})

    def _ask(self, question: Message, fds: Sequence[int] = ()) -> Message:
        deadline = time.monotonic() + ANSWER_SECONDS
        if not self._asking.acquire(timeout=ANSWER_SECONDS):
            raise ConnectionError("the reaper does not answer")
        try:
            self._channel.send(question)
            for fd in fds:
                self._channel.send({}, fd)
            return self._answer(deadline)
        except (ConnectionError, EOFError) as ended:
            self._broken = True
            raise ConnectionError("the reaper has ended") from ended
        finally:
            self._asking.release()

    def _answer(self, deadline: float) -> Message:
        if not readable(self._channel.fileno(), max(deadline - time.monotonic(), 0.0)):
            self._process.kill()  # what it would answer later would be taken for the answer to another question
            raise ConnectionError("the reaper does not answer")
        return self._channel.receive()[0]

    def close(self) -> None:
        """Have it end every process that is left, and wait for that."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer has none now
        with self._asking:
            self._channel.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
