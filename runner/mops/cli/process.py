"""The process of a command: Ctrl-C during imports, and standard streams that are closed or that no reader takes."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mops.errors import not_written


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process while the body imports modules.

    Imports take up to a second. A KeyboardInterrupt there would print a traceback, or an import would swallow it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def prepare_streams() -> None:
    """Open the standard streams that are closed, and let no write to stdout or stderr end the command.

    Without this, the first files that mops opens would get the numbers of closed streams.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:  # the lower descriptors are open, so the next file gets this number
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the process ends
    sys.stdout = sys.__stdout__ = _Output.instead_of(sys.stdout, 1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _Output.instead_of(sys.stderr, 2)  # type: ignore[misc]


def end_without_reader() -> None:
    """Let the command end when its stdout cannot be written: it only prints data."""
    if isinstance(sys.stdout, _Output):
        sys.stdout.is_needed = True


class _Output(io.TextIOWrapper):
    """Stdout or stderr. After a write that fails, it drops all text: a job does not depend on who reads its output."""

    is_needed = False
    """Whether a write that fails ends the command."""

    @classmethod
    def instead_of(cls, stream: object, fd: int) -> _Output:
        """Return a stream in place of Python's; Python has none if the descriptor was closed."""
        if not isinstance(stream, io.TextIOWrapper):
            return cls(open(fd, "wb", closefd=False), "utf-8", "backslashreplace")
        how = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
        return cls(stream.detach(), stream.encoding, stream.errors, "\n", **how)

    def write(self, text: str, /) -> int:
        """Write text, or drop it."""
        with self._dropping():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or drop it."""
        with self._dropping():
            super().flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:  # a signal handler prints while the stream writes
            return
        except OSError as reason:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if not self.is_needed:
                return
            if isinstance(reason, BrokenPipeError):  # as if the signal had ended the command
                sys.exit(128 + signal.SIGPIPE)
            raise not_written(Path("stdout"), "the output", reason, hint="write to another file") from reason
