"""Runs commands in processes forked from a process that has imported mops, which saves the second of each import.

A forked command has its own descriptors, environment, working folder and exit code, like a command from a shell. The
only difference is what Python reads at its start (``PYTHON*`` variables, warnings); tests of these start Python.

    tests                                           this program
      argv, environment, folder, three pipes ──►   fork ──► fork ──► mops.cli.main, on two of the pipes
      its exit code, on the third pipe       ◄──   waits for it
"""

from __future__ import annotations

import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

HEADER_BYTES = 8


class Warm:
    """The tests' handle of the process that has imported the commands."""

    def __init__(self, environment: dict[str, str]):
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
            )

    def run(
        self, arguments: list[str], environment: dict[str, str], cwd: Path, timeout_s: float
    ) -> tuple[int, str, str]:
        """Run a command to its end; return its exit code (negative for a signal), stdout and stderr.

        Raises
        ------
        TimeoutError
            The command has not ended in time.
        """
        pipes = [os.pipe() for _ in range(3)]
        body = json.dumps([arguments, environment, str(cwd)]).encode()
        with self._lock:
            socket.send_fds(self._socket, [len(body).to_bytes(HEADER_BYTES, "big")], [write for _, write in pipes])
            self._socket.sendall(body)
        for _, write in pipes:
            os.close(write)
        out, err, code = read_all([read for read, _ in pipes], timeout_s)
        return int(code), out, err

    def close(self) -> None:
        self._socket.close()
        self._process.wait(timeout=30)


def read_all(fds: list[int], timeout_s: float) -> list[str]:
    """Read pipes concurrently to their ends, and close them."""
    found: dict[int, bytes] = dict.fromkeys(fds, b"")
    open_fds = set(fds)
    try:
        while open_fds:
            ready, _, _ = select.select(list(open_fds), [], [], timeout_s)
            if not ready:
                raise TimeoutError(f"for {timeout_s} s a command has written nothing and not ended: {found}")
            for fd in ready:
                data = os.read(fd, 1 << 16)
                found[fd] += data
                if not data:
                    open_fds.remove(fd)
    finally:
        for fd in fds:
            os.close(fd)
    return [found[fd].decode() for fd in fds]


def serve(requests: socket.socket) -> list[str]:
    """Fork two processes per command: one runs it, the other waits for it. Return the arguments in the first."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the waiting processes
    while True:
        head, fds, _, _ = socket.recv_fds(requests, HEADER_BYTES, 3)
        if not head:
            os._exit(0)
        body, size = b"", int.from_bytes(head, "big")
        while len(body) < size:
            body += requests.recv(size - len(body))
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    out, err, status = fds
    if pid := os.fork():
        for fd in (out, err):
            os.close(fd)
        os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in fds:
        os.close(fd)
    arguments, environment, cwd = json.loads(body)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    return list(arguments)


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(requests.fileno(), False)
    sys.path.remove(str(Path(__file__).parent))  # a real command does not have the folder of tests on its path
    from mops.cli.start import WithoutPandas

    sys.meta_path.insert(0, WithoutPandas)
    from mops.cli import main as commands

    for verbs in commands.VERBS.values():
        for verb in verbs.values():
            pkgutil.resolve_name(verb.where)
    import pyarrow.parquet  # noqa: F401

    arguments = serve(requests)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["mops", *arguments]
    commands.main()


if __name__ == "__main__":
    main()
