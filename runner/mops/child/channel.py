"""Both ends of the socket between a worker and a child process: framed JSON messages, and the progress page.

A message is a JSON object; it may carry one file descriptor (``SCM_RIGHTS``). Floats keep their value through
JSON (``repr`` round-trips), integers their size, so parameters and seeds arrive as they were sent.

The progress page is one shared page of memory: the child notes what it runs and since when, at the cost of three
stores, so that its parent knows after any death, and at any time, which simulation it was. The parent asks the
child to stop through the same page. Who reacts to what is in :mod:`mops.worker.pool` and
:mod:`mops.child.main`. Standard library only: children import this.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import socket
import struct
import tempfile
import time
from typing import Any, NamedTuple

_HEADER = struct.Struct("!IB")  # bytes of the body, descriptors that ride on the header
_SIZE, _STARTED, _POSITION, _STOP = range(4)  # of eight bytes each

Message = dict[str, Any]


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
        """Send one message, with a descriptor if there is one.

        Raises
        ------
        BrokenPipeError, ConnectionResetError
            The other end is gone.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        fds = [] if fd is None else [fd]
        socket.send_fds(self._sock, [_HEADER.pack(len(body), len(fds))], fds)
        self._sock.sendall(body)

    def receive(self) -> tuple[Message, int | None]:
        """Wait for one message and the descriptor that came with it.

        Raises
        ------
        EOFError
            The other end is gone, perhaps in the middle of a message.
        OSError
            This process has no room for the descriptor.
        """
        fds: list[int] = []
        try:
            head, fds, _, _ = socket.recv_fds(self._sock, _HEADER.size, 1)  # which passes no flags on (Python 3.11)
            for fd in fds:
                os.set_inheritable(fd, False)  # as Python does with those that it opens itself
            head += self._exactly(_HEADER.size - len(head))
            size, n_fds = _HEADER.unpack(head)
            body = self._exactly(size)
        except (EOFError, ConnectionResetError) as gone:
            for fd in fds:  # nobody will get it with a message that never comes whole
                os.close(fd)
            raise EOFError from gone
        if len(fds) < n_fds:  # the kernel had no number left for it, and drops it
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return json.loads(body), fds[0] if n_fds else None

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
    """What a child is running: a simulation, or a target, of one group of its task.

    ``step`` is the replicate for a simulation and ``n_replicates + i`` for the i-th target.
    """

    place: int
    step: int


class ProgressPage:
    """The page that a child and its parent share."""

    _IDLE = -1

    def __init__(self, fd: int):
        page = memoryview(mmap.mmap(fd, mmap.PAGESIZE))
        # Each is stored at once. Not by struct: it clears all that it packs before it writes any of it, and who looks
        # then sees a unit that has been running since the machine was started.
        self._numbers, self._times = page.cast("q"), page.cast("d")

    @classmethod
    def create(cls) -> tuple[ProgressPage, int]:
        """Make a page; return it with the descriptor that the child is to inherit."""
        fd = anonymous_file("mops-progress")
        os.ftruncate(fd, mmap.PAGESIZE)
        page = cls(fd)
        page.idle()
        return page, fd

    def begin(self, place: int, step: int, size_before: int = 0) -> None:
        """Note that a unit starts now.

        Parameters
        ----------
        size_before
            Resident bytes of the process after the simulations that it has run before; 0: it has run none.
        """
        self._numbers[_SIZE] = size_before
        self._times[_STARTED] = time.monotonic()
        self._numbers[_POSITION] = place << 32 | step

    def idle(self) -> None:
        """Note that no unit is running."""
        self._numbers[_POSITION] = self._IDLE

    def running(self) -> tuple[Step, float] | None:
        """Return the unit that runs and the monotonic time (s) of its start, or None."""
        position = self._numbers[_POSITION]  # before the time, which is never an earlier unit's then
        if position == self._IDLE:
            return None
        return Step(position >> 32, position & 0xFFFFFFFF), self._times[_STARTED]

    @property
    def size_before(self) -> int:
        """What :meth:`begin` was told."""
        return self._numbers[_SIZE]

    def ask_to_stop(self) -> None:
        """Ask the child to run nothing more after its present unit."""
        self._numbers[_STOP] = 1

    @property
    def stop_asked(self) -> bool:
        """Whether the parent wants the child to stop."""
        return self._numbers[_STOP] == 1


def anonymous_file(name: str) -> int:
    """Return a descriptor of a file without a path, so that no death leaves it behind.

    ``memfd_create`` where there is one (its bytes do not count against a pod's small /dev/shm); elsewhere an
    unlinked temporary file.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())
