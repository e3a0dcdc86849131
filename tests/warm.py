"""Runs commands in processes forked from a process that has imported mops or Dask, which saves the second of an import.

A forked command leads a session, and has its own descriptors, environment, working folder and exit code, like a
command from a shell. Two things differ: what Python reads at its start (``PYTHON*`` variables, warnings), and what
``/proc`` says of its command line and environment. Tests of these start Python.

    tests                                          this program
      argv, environment, folder, three files ──►   fork ──► fork ──► mops.cli.main, on two of the files
      its pid, on the third file             ◄──                     │
      its exit code, on the third file       ◄──   waits for it ◄────┘
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import types
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, Any, NoReturn

HEADER_BYTES = 8
VARIABLE = "WARM_CHILDREN"
"""Names the socket of the program of warm_children.py, for commands that tests start."""


class Warm:
    """The tests' handle of the process that has imported the commands of a program."""

    def __init__(self, environment: dict[str, str], program: str = "mops"):
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), program],
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
            )

    def run(
        self, arguments: list[str], environment: dict[str, str], cwd: Path, timeout_s: float
    ) -> tuple[int, str, str]:
        """Run a command, or Python (a file, or ``-c`` and a program), to its end; return its exit code and output.

        The exit code is negative for a signal.

        Raises
        ------
        TimeoutError
            The command has not ended in time.
        """
        pipes = [os.pipe() for _ in range(3)]
        self._send(arguments, environment, cwd, [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        reads = [read for read, _ in pipes]
        status = os.read(reads[2], 64).decode()  # its pid, and perhaps its exit code already
        try:
            out, err, rest = read_all(reads, timeout_s)
        except TimeoutError:
            os.kill(int(status.split()[0]), signal.SIGKILL)
            raise
        return int((status + rest).split()[1]), out, err

    def start(
        self,
        arguments: list[str],
        environment: dict[str, str],
        cwd: Path,
        *,
        out: IO[bytes],
        err: IO[bytes],
        terminal: IO[bytes] | None = None,
    ) -> WarmProcess:
        """Start a command that writes into two files, and reads from a terminal, which sends signals to it."""
        status, theirs = os.pipe()
        read = [] if terminal is None else [terminal.fileno()]
        self._send(arguments, environment, cwd, [out.fileno(), err.fileno(), theirs, *read])
        os.close(theirs)
        return WarmProcess(arguments, status)

    def start_with_pipes(self, arguments: list[str], environment: dict[str, str], cwd: Path) -> WarmProcess:
        """Start a command that writes into the pipes ``stdout`` and ``stderr`` of what is returned."""
        (stdout, out), (stderr, err) = os.pipe(), os.pipe()
        with os.fdopen(out, "wb") as out_file, os.fdopen(err, "wb") as err_file:
            process = self.start(arguments, environment, cwd, out=out_file, err=err_file)
        process.stdout, process.stderr = os.fdopen(stdout), os.fdopen(stderr)
        return process

    def _send(self, arguments: list[str], environment: dict[str, str], cwd: Path, fds: list[int]) -> None:
        with self._lock:
            send_request(self._socket, [arguments, environment, str(cwd)], fds)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(timeout=30)


class WarmProcess:
    """A started command, with what the tests use of ``subprocess.Popen``."""

    def __init__(self, arguments: list[str], status: int):
        self.arguments = arguments
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self._status = open(status, "rb", buffering=0)  # noqa: SIM115 - open until the exit code is read
        self.pid = int(self._line())

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.arguments, timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both pipes to their ends, and wait for the end. TimeoutExpired: it was killed after this time."""
        assert self.stdout is not None
        assert self.stderr is not None
        limit_s, is_late = timeout or 240.0, threading.Event()
        timer = threading.Timer(limit_s, lambda: (is_late.set(), self.kill()))
        timer.start()
        with ThreadPoolExecutor(1) as thread:
            err = thread.submit(self.stderr.read)
            out = self.stdout.read()
        timer.cancel()
        self.wait(timeout)
        if is_late.is_set():
            raise subprocess.TimeoutExpired(self.arguments, limit_s, out, err.result())
        return out, err.result()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> WarmProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipes, and wait for the end."""
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()

    def _end(self) -> None:
        self.returncode = int(self._line())
        self._status.close()

    def _line(self) -> bytes:
        line = self._status.readline()
        assert line.endswith(b"\n"), "the process that forks commands has ended"
        return line


@functools.cache
def warm() -> Warm:
    """Return a process that has imported the commands. It starts a command in 0.03 s instead of a second."""
    from programs import environment  # not above: this file is also the program, and programs.py imports pytest

    return Warm(environment())


@functools.cache
def warm_figures() -> Warm:
    """Return a process that has also imported what fits models and draws figures, which takes 3 s."""
    from programs import environment

    return Warm(environment(), "figures")


def warm_for(arguments: Sequence[str]) -> Warm:
    """Return the process that has imported what a command needs."""
    figures = ("study calibrate ", "study sample ", "jobs report ", "ui ")
    return warm_figures() if " ".join(arguments).startswith(figures) else warm()


@functools.cache
def warm_dask() -> Warm:
    """Return a process that has imported the commands of Dask, and what mops runs in workers."""
    from programs import environment

    return Warm(environment(), "dask")


@functools.cache
def warm_children() -> str:
    """Start the program of warm_children.py, which ends with this process, and return the name of its socket."""
    from mops.worker.environment import environment

    name = f"mops-warm-children-{uuid.uuid4()}"
    lifeline, ours = os.pipe()
    ready, theirs = os.pipe()
    subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("warm_children.py")), name, str(lifeline), str(theirs)],
        env=environment({}, n_threads=1, python=None),
        pass_fds=(lifeline, theirs),
        cwd="/",
        stdin=subprocess.DEVNULL,
    )
    os.close(lifeline)
    os.close(theirs)
    atexit.register(os.close, ours)
    assert os.read(ready, 1), "the process that forks children has not started"
    os.close(ready)
    return name


def reapers(name: str) -> types.SimpleNamespace:
    """Return what ``mops.worker.processes`` uses of ``subprocess``, with reapers from the program with this socket."""

    def start(argv: list[str], *, pass_fds: Sequence[int], **_: object) -> WarmProcess:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect("\0" + name)
        send_request(connection, [argv, dict(os.environ), str(Path.cwd())], list(pass_fds))
        return WarmProcess(argv, connection.detach())

    return types.SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)


def send_request(connection: socket.socket, request: list[object], fds: list[int]) -> None:
    body = json.dumps(request).encode()
    socket.send_fds(connection, [len(body).to_bytes(HEADER_BYTES, "big")], fds)
    connection.sendall(body)


def receive_request(connection: socket.socket) -> tuple[list[Any], list[int]]:
    """Return a request and its descriptors; EOFError: the other side has closed the connection."""
    head, fds, _, _ = socket.recv_fds(connection, HEADER_BYTES, 4)
    if not head:
        raise EOFError
    body, size = b"", int.from_bytes(head, "big")
    while len(body) < size:
        body += connection.recv(size - len(body))
    return json.loads(body), fds


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
        try:
            request, fds = receive_request(requests)
        except EOFError:
            os._exit(0)
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    out, err, status, *terminal = fds
    if pid := os.fork():
        for fd in (out, err, *terminal):
            os.close(fd)
        os.write(status, f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
        os._exit(0)
    os.setsid()
    os.write(status, f"{os.getpid()}\n".encode())
    arguments, environment, cwd = request
    become(fds, environment, cwd)
    return list(arguments)


def become(fds: list[int], environment: dict[str, str], cwd: str) -> None:
    """Take over the files, the variables and the folder of a command."""
    out, err, _, *terminal = fds
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in terminal:
        os.dup2(fd, 0)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that the terminal sends it SIGINT
    for fd in fds:
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    if name := os.environ.pop(VARIABLE, None):
        from mops.worker import processes

        processes.subprocess = reapers(name)  # type: ignore[assignment]
    os.chdir(cwd)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(requests.fileno(), False)
    sys.path.remove(str(Path(__file__).parent))  # a real command does not have the folder of tests on its path
    commands = {"mops": mops_commands, "figures": figure_commands, "dask": dask_commands}[sys.argv[2]]
    run_and_end(lambda: commands(requests))


def run_and_end(program: Callable[[], None]) -> NoReturn:
    """Run a program, and end as Python does, but do not take down the modules, which needs up to 0.3 s."""
    code = 0
    try:
        program()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)  # Python says that a stream is broken


def dask_commands(requests: socket.socket) -> None:
    import dask.cli

    import mops.worker.run_task  # noqa: F401

    for command in entry_points(group="dask_cli"):
        command.load()  # dask.cli does it when it runs: half a second, for distributed, in each process
    gc.collect()
    gc.freeze()
    sys.argv = ["dask", *serve(requests)]
    dask.config.refresh()  # it has read the variables of the environment at its import
    dask.cli.run_cli()


def figure_commands(requests: socket.socket) -> None:
    mops_commands(requests, "altair", "mops.report.outputs", "scipy.stats", "vl_convert")


def mops_commands(requests: socket.socket, *more: str) -> None:
    from mops.cli.process import prepare_streams
    from mops.cli.start import WithoutPandas

    prepare_streams()  # before the imports, as in a real command
    sys.meta_path.insert(0, WithoutPandas)
    from mops.cli import main as commands
    from mops.cli import terminal

    for verbs in commands.VERBS.values():
        for verb in verbs.values():
            pkgutil.resolve_name(verb.where)
    # A command imports them when it runs a job: 0.27 s.
    running = ("mops.attempt.main_loop", "mops.attempt.metrics", "mops.cluster.embedded")
    for module in ("pyarrow.parquet", *running, *more):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # or each collection of a command would read, and so copy, every object of the imports
    arguments = serve(requests)
    if arguments[0] == "-c" or arguments[0].endswith(".py"):
        sys.meta_path.remove(WithoutPandas)
        run_python(arguments)
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.isatty(2):
        importlib.reload(terminal)  # a console looks for a terminal when it is made
    sys.argv = ["mops", *arguments]
    commands.main()


def run_python(arguments: list[str]) -> None:
    """Run a file of Python, or the program after ``-c``, which has no file."""
    sys.argv = arguments
    if arguments[0] != "-c":
        path = Path(arguments[0]).absolute()
        sys.path.insert(0, str(path.parent))
        runpy.run_path(str(path), run_name="__main__")
        return
    sys.path.insert(0, "")
    sys.modules["__main__"] = program = types.ModuleType("__main__")
    exec(compile(arguments[1], "<string>", "exec"), vars(program))


if __name__ == "__main__":
    main()
