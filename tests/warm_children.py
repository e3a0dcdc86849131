"""Starts the children of pools as forks of a process that has imported what a child imports, which saves 0.5 s of each.

For tests whose subject is not the child; conftest.py in the folder ``local`` says which. A forked child serves as a
real one does, in its own session, with its own descriptors and variables. It differs in what Python reads at its
start, in what ``/proc`` says of it, in its memory, and it is no descendant of its worker. A child whose interpreter,
or whose variables for the start of Python and its libraries, are not those of this process starts as usual.

    worker                          this program                       reaper
      arguments, variables,    ──►  fork ──► fork ──► reaper_main.main   fork ──► child.main.main
      folder, its socket                     │
      its pid, its exit code   ◄──           waits for it
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import mops.child.main
from mops.child.outputs import as_tables
from mops.system.signals import STOP_SIGNALS
from mops.worker import reaper_main
from warm import receive_request, run_and_end


def _read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python and its libraries read when they start."""
    names = ("PYTHON", "LC_", "LANG", "TZ", "OMP_", "OPENBLAS_", "MKL_", "MALLOC_", "ARROW_", "LD_")
    return {name: value for name, value in variables.items() if name.startswith(names)}


_AT_START = _read_at_start(os.environ)


def main() -> None:
    name, lifeline, ready = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.path.remove(str(Path(__file__).parent))  # a real child has neither the folder of tests nor its modules
    del sys.modules["warm"]
    as_tables({"warm": np.zeros(1)}, 0)  # pyarrow imports pandas
    gc.collect()
    gc.freeze()  # or each collection of a child would read, and so copy, every object of the imports
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the waiting processes
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # pytest's
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen(64)
        os.write(ready, b"1")
        os.close(ready)
        while True:
            if lifeline in select.select([listener, lifeline], [], [])[0]:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    os.close(lifeline)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    argv, fd = _become_reaper(connection)
    reaper_main.subprocess = types.SimpleNamespace(  # type: ignore[assignment]
        Popen=_start_child, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT
    )
    sys.argv = [argv[argv.index("mops.worker.reaper_main")], str(fd)]
    run_and_end(reaper_main.main)


def _become_reaper(connection: socket.socket) -> tuple[list[str], int]:
    """Fork once more: the first process waits for the second, in which this returns the arguments and the socket."""
    (argv, variables, folder), (fd,) = receive_request(connection)
    if pid := os.fork():
        os.close(fd)
        status = os.waitpid(pid, 0)[1]
        with contextlib.suppress(BrokenPipeError):  # the worker was killed
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)
    connection.sendall(f"{os.getpid()}\n".encode())
    connection.close()
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    return argv, fd


class _Child:
    """What a reaper uses of ``subprocess.Popen``."""

    def __init__(self, argv: list[str], files: dict[str, Any], env: dict[str, str]):
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run_child(argv, files, env)
        os.close(writing)
        os.read(reading, 1)  # until it leads its own session, and has closed this descriptor
        os.close(reading)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _start_child(argv: list[str], *, env: dict[str, str], **files: Any) -> _Child | subprocess.Popen[bytes]:
    """Fork a child; start it as a reaper does if its interpreter or what that reads at its start is another one."""
    if argv[0] != sys.executable or _read_at_start(env) != _AT_START:
        return subprocess.Popen(argv, env=env, **files)
    return _Child(argv, files, env)


def _run_child(argv: list[str], files: dict[str, Any], env: dict[str, str]) -> NoReturn:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, number in ((null, 0), (files["stdout"], 1), (files["stdout"], 2)):
        os.dup2(fd, number)
    first = 3
    for fd in sorted(files["pass_fds"]):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, "r" if fd == 0 else "w", closefd=False) for fd in range(3))
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
    sys.argv = argv[argv.index("mops.child.main") :]
    try:
        run_and_end(mops.child.main.main)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # what is above on the stack is the reaper's


if __name__ == "__main__":
    main()
