"""The operating system's processes of children: how they start, what they print, and their folders."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from filelock import lock_descriptor

from mops.child.texts import without_headings
from mops.errors import ClusterError
from mops.system import folders
from mops.system.signals import readable
from mops.task import JobContext
from mops.worker.interpreter import cannot_start, command
from mops.worker.reaper import Reaper
from mops.worker.variables import environment

_FRAME_OF_MOPS = f'  File "{Path(__file__).parents[1]}/'  # as faulthandler writes it
_WHERE = "where it was when mops stopped it (most recent call first):"
_PREFIX = "mops-work-"
_LEFT_SECONDS = 60.0  # a younger folder may not have its lock yet


class Process:
    """A process that a reaper has spawned, or a template forked; ``returncode`` is None until :meth:`wait`."""

    # It is not a child process of the worker itself. Its descriptor (pidfd_open(2)) tells the worker that it has ended.
    # Only then does its parent wait for it and tell how it ended, so until then no other process can get its number.

    def __init__(
        self,
        pid: int,
        output: IO[bytes],  # what it prints; closed with the child
        ask_status: Callable[[int], int | None],  # takes its exit status, returns its return code; None: unknown
    ):
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

    @classmethod
    def started(cls, start: Callable[[int], int], ask_status: Callable[[int], int | None]) -> Process:
        """Start a process by a call of ``start`` with the descriptor for its output, which returns its number."""
        reading, writing = os.pipe()
        output = os.fdopen(reading, "rb", buffering=0)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(output.close)
            try:
                pid = start(writing)
            finally:
                os.close(writing)
            process = cls(pid, output, ask_status)
            on_failure.pop_all()
        return process

    def has_ended(self) -> bool:
        """Tell whether it has ended, without taking its exit status."""
        return readable(self._pidfd)

    def await_end(self, within_s: float) -> bool:
        """Wait for its end, without taking its exit status; return False if it does not end in time."""
        return readable(self._pidfd, within_s)

    def leave(self) -> None:
        """Leave a process that does not end to its parent; its return code stays unknown."""
        os.close(self._pidfd)

    def wait(self) -> None:
        """Take the exit status of a process that has ended: from then on another process may get its number."""
        try:
            self.returncode = self._ask_status(self.pid)
        finally:
            os.close(self._pidfd)


def spawned(context: JobContext, passed: tuple[int, ...], reaper: Reaper, folder: Path) -> Process:
    """Start a process that imports the model itself, with the descriptors of its socket, lifeline and page.

    A ModelError: the job's interpreter was removed. An OSError: the system has no room for another process.
    """
    argv = [*command(context.python), "mops.child.main"]
    env = environment(context.env, n_threads=context.threads, python=context.python)
    try:
        return Process.started(lambda output_fd: reaper.spawn(argv, env, (*passed, output_fd), folder), reaper.wait)
    except (FileNotFoundError, PermissionError) as gone:
        if context.python is None:
            raise
        raise cannot_start(context.python, gone, installed=context.install_s is not None) from gone


class Prints:
    """The output of a process: the last 64 KiB since it was taken, and its last words."""

    LIMIT_BYTES = 64 << 10
    READS_LEFT = 32  # of 64 KiB: more than a pipe holds. Limited, because a process may never stop printing.
    LAST_WORDS_BYTES = 4 << 10
    FATAL_BYTES = 32 << 10  # faulthandler's hundred frames of each thread

    def __init__(self, output: IO[bytes], selector: selectors.BaseSelector):
        self._output, self._selector = output, selector
        self._text, self._tail = bytearray(), bytearray()
        self._n_printed = 0  # bytes since the text was taken, with those that are not kept
        os.set_blocking(output.fileno(), False)
        selector.register(output, selectors.EVENT_READ)

    def read(self) -> None:
        """Read what is there, at most 64 KiB."""
        try:
            text = os.read(self._output.fileno(), 65536)
        except BlockingIOError:
            return
        if not text:
            self._selector.unregister(self._output)
            return
        self._n_printed += len(text)
        self._text = (self._text + text)[-self.LIMIT_BYTES :]
        self._tail = (self._tail + text)[-self.FATAL_BYTES :]

    def read_rest(self) -> None:
        """Read what is left of a process that has ended."""
        for _ in range(self.READS_LEFT):
            before = self._n_printed
            if self._selector.get_map().get(self._output) is not None:
                self.read()
            if self._n_printed == before:
                return

    def take(self) -> str:
        """Return what was printed since the last call, the last 64 KiB of it."""
        self.read_rest()
        dropped = self._n_printed - len(self._text)
        text = self._text.decode(errors="replace")
        self._n_printed = 0
        self._text.clear()
        return f"({dropped} bytes of output left out)\n{text}" if dropped > 0 else text

    def last_words(self, *, was_aborted: bool = False) -> str:
        """Return the end of what was printed; if faulthandler wrote, its start, which names the line."""
        printed = without_headings(self._tail.decode(errors="replace"))
        _, fatal, trace = printed.rpartition("Fatal Python error: ")
        if not fatal:
            return printed[-self.LAST_WORDS_BYTES :].strip()
        # Other threads come before the thread that died; the names of all extension modules, maybe hundreds, after it.
        what, _, frames = trace.partition("\nExtension modules:")[0].partition("\n\n")
        others, current, own = frames.partition("Current thread")
        text = f"{fatal}{what}\n\n{current}{own or others}"
        if was_aborted:  # mops has sent SIGABRT, to see where the process hangs: the signal is no news
            _, _, calls = (own or others).partition("\n")
            text = f"{_WHERE}\n{calls}"
        users = (line for line in text.splitlines() if not line.startswith(_FRAME_OF_MOPS))
        return "\n".join(users)[: self.LAST_WORDS_BYTES].strip()


class Scratch:
    """A folder for temporary files, made at its first use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the three below."""
        self._path: Path | None = None
        self._lock_fd = -1
        self._closed = False

    @property
    def path(self) -> Path:
        """The folder; ClusterError: it cannot be made, or was closed."""
        with self._lock:
            if self._closed:
                raise ClusterError("the folder for simulations is closed", where="its pool")
            path = self._path
            # Another program may have removed the folder; then a child may have made another one without a lock.
            if path is not None and path.is_dir() and os.path.samestat(path.stat(), os.fstat(self._lock_fd)):
                return path
            try:
                return self._make()
            except OSError as bad:
                raise ClusterError(
                    f"the folder for simulations cannot be made ({bad.strerror})",
                    where=bad.filename or os.environ.get("TMPDIR", "/tmp"),  # noqa: S108 - only named
                    hint="free space there, or set TMPDIR to another folder",
                ) from bad

    def _make(self) -> Path:
        if self._path is None:
            _sweep(Path(tempfile.gettempdir()))
            path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        else:  # again, and at the same place, because children use it
            path = self._path
            path.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        removed_fd = self._lock_fd
        try:
            # The kernel releases the lock when this process ends in any way. The lock also keeps systemd-tmpfiles away.
            self._lock_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if os.fstat(self._lock_fd).st_uid != os.geteuid():  # another user has made it in a shared folder
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        except OSError:
            with contextlib.suppress(OSError):
                path.rmdir()
            raise
        if self._path is not None:
            os.close(removed_fd)
        with contextlib.suppress(OSError):  # a file system without locks, on which no pool sweeps either
            lock_descriptor(self._lock_fd, blocking=False)
        self._path = path
        return path

    def leave(self, pid: int, *, keep_import: bool) -> None:
        """Remove the folders of a process that has ended."""
        if self._path is None:
            return
        _remove(self._path / str(pid))
        # Other processes may have links into the folder of its import, and may know the path of its temporary folder.
        if not keep_import:
            _remove(self._path / f"{pid}.import")
            _remove(self._path / f"{pid}.tmp")

    def close(self) -> None:
        """Remove the folder, after its processes have ended."""
        with self._lock:
            self._closed = True
            path, self._path = self._path, None
            if path is not None:
                _remove(path)
                os.close(self._lock_fd)


def _remove(path: Path) -> None:
    # A process that the model has left may still write. The next pool removes what stays.
    with contextlib.suppress(OSError):
        folders.remove(path)


def _sweep(temporary: Path) -> None:
    """Remove folders of killed workers."""
    for path in temporary.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or removed meanwhile
            if time.time() - path.stat().st_mtime <= _LEFT_SECONDS:
                continue
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(fd).st_uid == os.geteuid() and lock_descriptor(fd, blocking=False):
                    folders.remove(path)
            finally:
                os.close(fd)
