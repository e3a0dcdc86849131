"""The worker's handle of a reaper: the process that starts a pool's processes and leaves none of them behind.

The program of the reaper is :mod:`mops.worker.reaper_main`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mops.child.channel import Channel, Message
from mops.errors import SystemUnfit
from mops.system.signals import readable
from mops.worker.environment import START

ANSWER_SECONDS = 20.0
"""How long a reaper or a template has to answer, even on a busy machine."""

_END_SECONDS = 5.0
_SILENT = f"the reaper does not answer within {ANSWER_SECONDS:g} s"


def check_kernel() -> None:
    """Raise SystemUnfit on a system without what child processes need (Linux 5.3 or newer)."""
    try:  # only the kernel knows: Python may have pidfd_open where gVisor lacks the call, or Docker forbids it
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as refused:
        if isinstance(refused, OSError) and refused.errno in (errno.EMFILE, errno.ENFILE):
            return  # the kernel has the call and no free descriptor
        raise SystemUnfit(
            f"this system cannot run simulations: it has no pidfd_open, or forbids it ({refused})",
            where=f"{platform.node()} ({platform.platform()})",
            hint="use Linux 5.3 or newer; in a container, a runtime and a seccomp profile that allow pidfd_open",
        ) from refused


class Reaper:
    """A pool's reaper. Thread-safe."""

    def __init__(self) -> None:
        check_kernel()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                    [sys.executable, "-I", "-S", START, "mops.worker.reaper_main", str(theirs.fileno())],
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
        """Held by the thread that asks: the answer is for that thread."""
        self._forked: set[int] = set()
        self._closed = False
        self._fault = ""
        """Why it serves no more requests; empty: it does."""

    @property
    def lives(self) -> bool:
        """Whether it can serve requests."""
        return not self._closed and not self._fault and self._process.poll() is None

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], fds: Sequence[int], folder: Path) -> int:
        """Start a process in a new session; return its number.

        The numbers of its descriptors (socket, lifeline, page) follow its command; the last of ``fds`` is its output.
        A ConnectionError: this reaper has ended or does not answer, so the pool needs another one.
        """
        request = {"kind": "spawn", "argv": list(argv), "env": dict(env), "folder": str(folder)}
        answer = self._ask(request, fds)
        if answer["kind"] == "not_spawned":
            raise OSError(answer["errno"], answer["message"])
        return int(answer["pid"])

    def forked(self, pid: int) -> None:
        """Protect a process that a template has forked: it lives on if its template ends first."""
        self._forked.add(pid)

    def wait(self, pid: int) -> int | None:
        """Take the return code of a process that has ended, and kill all that it has left; None: unknown."""
        try:
            found: int | None = self._ask({"kind": "wait", "pid": pid, "living": list(self._forked)})["returncode"]
        except OSError:  # the reaper has ended, or does not answer
            return None
        finally:
            self._forked.discard(pid)  # not before: the wait of another thread would take its return code
        return found

    def keep(self) -> None:
        """Protect the processes that the import of a model has left: its simulations may use them."""
        # Between the end of another process and its wait(), this also protects what that process has left, until the
        # pool is closed: the kernel does not tell which process left another.
        with contextlib.suppress(OSError):  # it has ended, or does not answer
            self._ask({"kind": "keep"})

    def _ask(self, question: Message, fds: Sequence[int] = ()) -> Message:
        deadline = time.monotonic() + ANSWER_SECONDS
        if not self._asking.acquire(timeout=ANSWER_SECONDS):
            raise ConnectionError(_SILENT)
        try:
            if self._fault:  # while this thread waited for its turn
                raise ConnectionError(self._fault)
            self._channel.send(question)
            for fd in fds:
                self._channel.send({}, fd)
            if not readable(self._channel.fileno(), max(deadline - time.monotonic(), 0.0)):
                self._process.kill()  # a later answer would be taken for the answer to another question
                self._fault = _SILENT
                raise ConnectionError(_SILENT)
            return self._channel.receive()[0]
        except (BrokenPipeError, ConnectionResetError, EOFError) as ended:
            self._fault = "the reaper has ended"
            raise ConnectionError(self._fault) from ended
        finally:
            self._asking.release()

    def close(self) -> None:
        """Make the reaper kill every process that is left, and wait for its end."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)  # a thread that waits for an answer stops waiting
        with self._asking:
            self._channel.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
