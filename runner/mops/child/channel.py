"""Both ends of the socket between a worker and a child process: framed JSON messages, and the progress page.

A message is a JSON object and may carry one file descriptor (``SCM_RIGHTS``). JSON keeps the value of floats (``repr``
round-trips) and the size of integers, so parameters and seeds arrive unchanged.

Runs in children: the standard library only.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import socket
import struct
import tempfile
from typing import Any, NamedTuple, NoReturn

from mops.system.clock import monotonic

# The exit code of a child after another program has removed files of a simulation or import; no step runs when it ends.
FILES_LOST = 74  # EX_IOERR of sysexits.h

_HEADER = struct.Struct("!IB")  # bytes of the body, descriptors that the header carries
_SIZE, _STARTED, _RETURNED, _POSITION, _STOP = range(5)  # of eight bytes each

Message = dict[str, Any]

# Not json.dumps and json.loads, which a model may replace, such as by those of orjson.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


def end_for_lost_files() -> NoReturn:
    """End this process, because another program has removed files of the step or import, which then runs again."""
    os.write(2, b"another program has removed a simulation's working folder, or the project's files in the cache\n")
    os._exit(FILES_LOST)


class Channel:
    """A blocking, framed connection over one end of a Unix socket pair."""

    def __init__(self, sock: socket.socket):
        self._sock = sock
        self._fd = sock.fileno()
        self._identity = _identity(self._fd)

    @property
    def intact(self) -> bool:
        """Whether the descriptor is still this socket: a model may close every descriptor that it finds."""
        return _identity(self._fd) == self._identity

    def fileno(self) -> int:
        """Return the socket's descriptor, for selectors."""
        return self._sock.fileno()

    def send(self, message: Message, fd: int | None = None) -> None:
        """Send one message; raise BrokenPipeError or ConnectionResetError if the other end is closed."""
        body = _encode(message).encode()
        fds = [] if fd is None else [fd]
        socket.send_fds(self._sock, [_HEADER.pack(len(body), len(fds))], fds)
        self._sock.sendall(body)

    def receive(self) -> tuple[Message, int | None]:
        """Wait for one message and its descriptor; raise EOFError if the other end is closed, maybe in the middle."""
        fds: list[int] = []
        try:
            head, fds, _, _ = socket.recv_fds(self._sock, _HEADER.size, 1)  # which ignores flags (Python 3.11)
            for fd in fds:
                os.set_inheritable(fd, False)  # as Python does with descriptors that it opens
            head += self._exactly(_HEADER.size - len(head))
            size, n_fds = _HEADER.unpack(head)
            body = self._exactly(size)
        except (EOFError, ConnectionResetError) as gone:
            for fd in fds:  # the rest of its message will never come
                os.close(fd)
            raise EOFError from gone
        if len(fds) < n_fds:  # the kernel had no number in this process for the descriptor, and dropped it
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return _decode(body.decode()), fds[0] if n_fds else None

    def _exactly(self, size: int) -> bytes:
        body = bytearray(size)
        view = memoryview(body)
        while view:
            got = self._sock.recv_into(view)
            if not got:
                raise EOFError
            view = view[got:]
        return bytes(body)

    def close(self) -> None:
        """Close this end."""
        self._sock.close()


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Step(NamedTuple):
    """A simulation or a target: a child runs one at a time."""

    group_position: int  # in the task
    number: int  # the replicate of a simulation; `n_replicates + i` for the i-th target


class Running(NamedTuple):
    """A step that runs."""

    step: Step
    since: float  # s, mops.system.clock
    returned_at: float = 0.0  # when the model or the target returned; infinite: mops has read the result

    @property
    def has_ended(self) -> bool:
        """Whether mops has read the result, so that the child is on its way to the next step."""
        return self.returned_at == math.inf


class ProgressPage:
    """One page of memory that a child and its worker share: what runs since when, and whether the child should stop.

    The worker knows at any time, and after any death, which simulation that is. With a message for each simulation and
    each target the runner would take 90 % more CPU time at 0 ms (docs/internals/tricks.md).
    """

    _IDLE = -1

    def __init__(self, fd: int):
        page = memoryview(mmap.mmap(fd, mmap.PAGESIZE))
        # Each number is stored at once. Not by struct, which clears all that it packs before it writes: a look at that
        # moment would show a step that has been running since the machine started.
        self._numbers, self._times = page.cast("q"), page.cast("d")

    @classmethod
    def create(cls) -> tuple[ProgressPage, int]:
        """Make a page; return it with the descriptor that the child inherits."""
        fd = anonymous_file("mops-progress")
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            page = cls(fd)  # which duplicates the descriptor
        except OSError:
            os.close(fd)
            raise
        page.idle()
        return page, fd

    def begin(self, group_position: int, number: int, size_before: int = 0) -> None:
        """Write that a step starts now, after simulations that have left the process with so many resident bytes."""
        self._numbers[_SIZE] = size_before
        self._times[_STARTED] = monotonic()
        self._times[_RETURNED] = 0.0
        self._numbers[_POSITION] = group_position << 32 | number

    def returned(self) -> None:
        """Write that the model has returned, and that mops reads its result."""
        self._times[_RETURNED] = monotonic()

    def finished(self) -> None:
        """Write that mops has read the result. The step is still to blame if the process dies with it."""
        self._times[_RETURNED] = math.inf

    def idle(self) -> None:
        """Write that no step is running."""
        self._numbers[_POSITION] = self._IDLE

    def running(self) -> Running | None:
        """Return the step that runs."""
        # In the reverse order of the writes, so that no time is that of an earlier step.
        position, returned_at, since = self._numbers[_POSITION], self._times[_RETURNED], self._times[_STARTED]
        if position == self._IDLE:
            return None
        return Running(Step(position >> 32, position & 0xFFFFFFFF), since, returned_at)

    @property
    def size_before(self) -> int:
        """The last value given to :meth:`begin`."""
        return self._numbers[_SIZE]

    def ask_to_stop(self) -> None:
        """Ask the child to start no further step."""
        self._numbers[_STOP] = 1

    @property
    def stop_asked(self) -> bool:
        """Whether the worker asks the child to stop."""
        return self._numbers[_STOP] == 1


def anonymous_file(name: str) -> int:
    """Return a descriptor of a file without a path, which no death leaves behind."""
    if hasattr(os, "memfd_create"):  # its bytes do not count against a pod's small /dev/shm
        return os.memfd_create(name)
    # The Python is built for an early C library, as uv's and conda's were until 2026.
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())
