"""The operating system's processes of children: spawned by a reaper, or forked by a template.

Neither is a child process of the worker itself. A descriptor of the process (pidfd_open(2)) tells the worker that it
has ended. Only then does its parent wait for it and tell how it ended, so until then no other process can get its
number.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

from mops.system.lifeline import readable
from mops.task import JobContext
from mops.waiting import polls
from mops.worker.environment.interpreter import cannot_start, child_command
from mops.worker.environment.variables import environment
from mops.worker.reaper.client import Reaper


class Process(Protocol):
    """A process; ``returncode`` is None until :meth:`wait`, and if it is unknown."""

    pid: int
    returncode: int | None
    output: IO[bytes]

    def has_ended(self) -> bool:
        """Tell whether it has ended, without taking its exit status."""

    def await_end(self, within_s: float) -> bool:
        """Wait for its end, without taking its exit status; return False if it does not end in time."""

    def leave(self) -> None:
        """Leave a process that does not end to its parent; its return code stays unknown."""

    def wait(self) -> None:
        """Take the exit status of a process that has ended: from then on another process may get its number."""


class Spawned:
    """A process that the worker has started itself: on systems without a reaper."""

    def __init__(self, argv: list[str], env: dict[str, str], passed: tuple[int, ...]):
        self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
            [*argv, *map(str, passed)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=passed,
            env=env,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.returncode: int | None = None
        assert self._process.stdout is not None
        self.output: IO[bytes] = self._process.stdout

    def has_ended(self) -> bool:
        """As :meth:`Process.has_ended`."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def await_end(self, within_s: float) -> bool:
        """As :meth:`Process.await_end`."""
        return any(self.has_ended() for _ in polls(0.002, within_s))

    def leave(self) -> None:
        """As :meth:`Process.leave`: Python waits for it whenever it starts another process."""

    def wait(self) -> None:
        """As :meth:`Process.wait`."""
        self.returncode = self._process.wait()


class Grandchild:
    """A process that a reaper has spawned, or a template forked.

    Parameters
    ----------
    output
        What it prints; closed with the child.
    ask_status
        Takes its exit status and returns its return code; None: unknown.
    """

    def __init__(self, pid: int, output: IO[bytes], ask_status: Callable[[int], int | None]):
        self.pid, self.output, self._ask_status = pid, output, ask_status
        self.returncode: int | None = None
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError as refused:
            # Without a descriptor the worker would not notice its end. It has no number if it has ended already.
            if not isinstance(refused, ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            ask_status(pid)
            raise

    def has_ended(self) -> bool:
        """As :meth:`Process.has_ended`."""
        return readable(self._pidfd)

    def await_end(self, within_s: float) -> bool:
        """As :meth:`Process.await_end`."""
        return readable(self._pidfd, within_s)

    def leave(self) -> None:
        """As :meth:`Process.leave`."""
        os.close(self._pidfd)

    def wait(self) -> None:
        """As :meth:`Process.wait`."""
        try:
            self.returncode = self._ask_status(self.pid)
        finally:
            os.close(self._pidfd)


def spawned(context: JobContext, passed: tuple[int, ...], reaper: Reaper | None, folder: Path) -> Process:
    """Start a process that runs tasks with these descriptors: its socket, lifeline and page.

    Parameters
    ----------
    reaper
        Starts the process. None: the worker starts the process, and nothing kills the processes that it leaves.
    folder
        The folder for its files.

    Raises
    ------
    ModelError
        The job's interpreter was removed.
    OSError
        The system has no room for another process.
    """
    argv = child_command(context.python)
    env = environment(context.env, n_threads=context.threads, python=context.python)
    try:
        if reaper is None:
            return Spawned(argv, env, passed)
        reading, writing = os.pipe()
        output = os.fdopen(reading, "rb", buffering=0)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(output.close)
            try:
                pid = reaper.spawn(argv, env, (*passed, writing), folder)
            finally:
                os.close(writing)
            process = Grandchild(pid, output, reaper.wait)
            on_failure.pop_all()
            return process
    except (FileNotFoundError, PermissionError) as gone:
        if context.python is None:
            raise
        raise cannot_start(context.python, gone, installed=context.install_s is not None) from gone
