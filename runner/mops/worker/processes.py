"""The operating system's processes of children: the reaper that starts them, what they print, and their folders.

The program of the reaper is :mod:`mops.worker.reaper_main`. It leaves none of the processes behind that it started.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import selectors
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from filelock import lock_descriptor

from mops.child.channel import Channel, Message
from mops.child.texts import without_headings
from mops.errors import ClusterError, SystemUnfit
from mops.system import folders
from mops.system.signals import readable
from mops.task import JobContext
from mops.worker.environment import START, cannot_start, command, environment

ANSWER_SECONDS = 20.0
"""How long a reaper or a template has to answer, even on a busy machine."""

_REAPER_END_SECONDS = 5.0
_SILENT = f"the reaper does not answer within {ANSWER_SECONDS:g} s"
_FRAME_OF_MOPS = f'  File "{Path(__file__).parents[1]}/'  # as faulthandler writes it
_WHERE = "where it was when mops stopped it (most recent call first):"
_CHILDREN = Path("/proc/thread-self/children")


def _check_kernel() -> None:
    """Raise SystemUnfit on a system without what child processes need (Linux 5.3 or newer)."""
    where = f"{platform.node()} ({platform.platform()})"
    try:  # only the kernel knows: Python may have pidfd_open where gVisor lacks the call, or Docker forbids it
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as refused:
        # With EMFILE or ENFILE, the kernel has the call and no free descriptor.
        if getattr(refused, "errno", None) not in (errno.EMFILE, errno.ENFILE):
            raise SystemUnfit(
                f"this system cannot run simulations: it has no pidfd_open, or forbids it ({refused})",
                where=where,
                hint="use Linux 5.3 or newer; in a container, a runtime and a seccomp profile that allow pidfd_open",
            ) from refused
    if not _CHILDREN.exists():
        raise SystemUnfit(
            f"this system cannot run simulations: its kernel does not list the children of a process ({_CHILDREN})",
            where=where,
            hint="use a kernel with CONFIG_PROC_CHILDREN, as those of all large distributions",
        )


class Reaper:
    """A pool's reaper. Thread-safe."""

    def __init__(self) -> None:
        _check_kernel()
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
            self._process.wait(_REAPER_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


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


def spawn(context: JobContext, fds: Sequence[int], reaper: Reaper, folder: Path) -> int:
    """Start a process that imports the model itself, and return its number; ``fds`` as for :meth:`Reaper.spawn`.

    A ModelError: the job's interpreter was removed. An OSError: the system has no room for another process.
    """
    argv = [*command(context.python), "mops.child.main"]
    env = environment(context.env, n_threads=context.threads, python=context.python)
    try:
        return reaper.spawn(argv, env, fds, folder)
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
        self._lock_fd: int | None = None
        self._closed = False

    @property
    def path(self) -> Path:
        """The folder; ClusterError: it cannot be made, or was closed."""
        with self._lock:
            if self._closed:
                raise ClusterError("the folder for simulations is closed", where="its pool")
            try:
                if self._path is None:
                    self._path = Path(tempfile.mkdtemp(prefix="mops-work-"))
                # Again, at the path that children use: another program may have removed it, and a child made it again.
                self._path.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
                there = self._path.lstat()
                if there.st_uid != os.geteuid():  # another user has made it in a shared folder
                    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(self._path))
                if self._lock_fd is None or not os.path.samestat(os.fstat(self._lock_fd), there):
                    self._unlock()
                    self._lock_fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                    with contextlib.suppress(OSError):  # a file system without locks
                        lock_descriptor(self._lock_fd, blocking=False)  # keeps systemd-tmpfiles from removing old files
            except OSError as bad:
                raise ClusterError(
                    f"the folder for simulations cannot be made ({bad.strerror})",
                    where=bad.filename or os.environ.get("TMPDIR", "/tmp"),  # noqa: S108 - only named
                    hint="free space there, or set TMPDIR to another folder",
                ) from bad
            return self._path

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
            self._unlock()
            if path is not None:
                _remove(path)

    def _unlock(self) -> None:
        fd, self._lock_fd = self._lock_fd, None
        if fd is not None:
            os.close(fd)


def _remove(path: Path) -> None:
    # A process that the model has left may still write.
    with contextlib.suppress(OSError):
        folders.remove(path)
