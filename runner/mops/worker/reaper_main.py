"""The program of a reaper: starts a pool's processes, and kills every process that they have started.

Standard library only, and the worker's interpreter.
"""

# A process that starts a new session or daemonizes is in no process group that could be killed. But it stays in the
# tree: if its parent ends, the kernel gives it to the nearest ancestor that adopts orphans (PR_SET_CHILD_SUBREAPER).
# Every child process adopts while it runs tasks, so what its simulations leave stays in its tree; the reaper adopts
# what an ended child has left. The reaper kills only its own children, and a process keeps its number until its parent
# has waited for it, so no signal can reach another process.
#
#   worker (processes.py)                                 reaper (this file)
#     spawn {argv, env, folder}                           ──►  (removes the folder at its own end)
#       + socket, lifeline, page, output                  ──►  (a message for each)
#                                                         ◄──  spawned {pid} | not_spawned {errno, message}
#     wait {pid, living}                                  ──►  (kills what the process has left)
#                                                         ◄──  status {returncode}
#     keep                                                ──►  (protects what a model's import has left)
#                                                         ◄──  kept
#     the socket's end                                    ──►  (kills all, whatever happened to the worker)

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from mops.child.channel import Channel, Message
from mops.system import folders
from mops.system.process_tree import children_of
from mops.system.signals import STOP_SIGNALS, adopt_orphans

_SWEEP_SECONDS = 2.0  # no later sweep waits for a process that the kernel cannot kill in this time
_TRACKER_SECONDS = 5.0  # a resource tracker needs 0.02 s to end, and on a busy machine more than 1 s to start
_LAST_SWEEP_SECONDS = 10.0
_DESCRIPTORS = 4


def main() -> None:
    """Serve a worker until it closes the socket, then kill every process."""
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    for number in (signal.SIGINT, *STOP_SIGNALS):
        # Only the socket's end ends this process: a service manager also signals it, before it has killed the others.
        # A handler, and not SIG_IGN, which the processes that it starts would inherit.
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, the kernel frees the number of each ended process
    adopt_orphans()
    reaper = _Reaper(Channel(socket.socket(fileno=fd)))
    try:
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while True:
                reaper.serve()
    finally:
        reaper.end_leftovers(but=(), within_s=_LAST_SWEEP_SECONDS)
        for folder in reaper.folders:  # if the worker was killed before it could remove them
            with contextlib.suppress(OSError):
                folders.remove(Path(folder))


class _Reaper:
    """The processes that it has started and not waited for, and those that it protects."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._kept: set[int] = set()
        self._lasting: set[int] = set()
        self._spared_until: dict[int, float] = {}
        self.folders: set[str] = set()

    def serve(self) -> None:
        """Serve one request of the worker."""
        request, _ = self._channel.receive()
        if request["kind"] == "spawn":
            self._channel.send(self._spawn(request))
        elif request["kind"] == "keep":
            self._kept = {*children_of(os.getpid())} - self._started.keys()
            self._channel.send({"kind": "kept"})
        else:
            returncode = self._wait(request["pid"])
            self._kept = {pid for pid in self._kept.difference(request["living"]) if not _take_status(pid)}
            self.end_leftovers(but={*request["living"], *self._started, *self._kept}, within_s=_SWEEP_SECONDS)
            self._channel.send({"kind": "status", "returncode": returncode})

    def _spawn(self, request: Message) -> Message:
        fds: list[int] = []
        self.folders.add(request["folder"])
        try:
            self._take_descriptors(fds)
            *passed, output = fds
            process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                [*request["argv"], *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=passed,
                env=request["env"],
                start_new_session=True,
            )
        except OSError as refused:
            return {"kind": "not_spawned", "errno": refused.errno, "message": refused.strerror}
        except Exception as refused:  # noqa: BLE001 - a bad request must not end the other processes
            return {"kind": "not_spawned", "errno": errno.EINVAL, "message": str(refused)}
        finally:
            for fd in fds:
                os.close(fd)
        self._started[process.pid] = process
        return {"kind": "spawned", "pid": process.pid}

    def _take_descriptors(self, fds: list[int]) -> None:
        """Receive all messages with descriptors, even if no descriptor is free: the next message is a request."""
        refused: OSError | None = None
        for _ in range(_DESCRIPTORS):
            try:
                _, fd = self._channel.receive()
            except OSError as error:
                refused = error
            else:
                assert fd is not None
                fds.append(fd)
        if refused is not None:
            raise refused

    def _wait(self, pid: int) -> int | None:
        """Return the return code of a process that has ended; None: another process has taken it."""
        process = self._started.pop(pid, None)
        self._kept.discard(pid)
        if process is not None:
            return process.wait()
        try:  # a process whose template has ended since
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            return None

    def end_leftovers(self, *, but: Collection[int], within_s: float) -> None:
        """Kill this process's children, and their children, which it adopts, until there are none."""
        # Later calls kill a process again that did not end in time, without waiting for it: it may be another user's
        # (sudo in a model), or hang in a file system.
        deadline = time.monotonic() + within_s
        while left := {*children_of(os.getpid())}.difference(but):
            spared = {pid for pid in left if self._is_spared(pid)}
            for pid in left - spared:
                try:
                    os.kill(pid, signal.SIGKILL)
                except PermissionError:
                    self._lasting.add(pid)
            ended = {pid for pid in left if _take_status(pid)}
            for pid in ended:
                self._spared_until.pop(pid, None)  # another process may get its number
            left -= ended
            self._lasting &= left
            if time.monotonic() > deadline:
                self._lasting = left - spared
                return
            if not ended:
                if left == self._lasting:
                    return
                time.sleep(0.001)

    def _is_spared(self, pid: int) -> bool:
        """Tell whether a process is a resource tracker, or may become one, and still has time to end."""
        # As soon as the processes that a tracker of multiprocessing or joblib serves have ended, it removes the shared
        # memory and the temporary folders that they have left, and ends.
        command = b""  # also of a process whose program the system is just starting, and of one that has ended
        with contextlib.suppress(OSError):
            command = Path("/proc", str(pid), "cmdline").read_bytes()
        now = time.monotonic()
        may_be_tracker = not command or b"resource_tracker" in command
        return may_be_tracker and now < self._spared_until.setdefault(pid, now + _TRACKER_SECONDS)


def _take_status(pid: int) -> bool:
    """Take the exit status of a child; return whether it has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False
