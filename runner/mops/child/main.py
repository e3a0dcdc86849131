"""The program of a child process: runs simulations and targets of one bundle until its worker closes the socket.

::

    worker (worker/child_process.py)                   child (this file)
      load {root, scratch, model, ...}          ──►
                                                ◄──    loaded {threads, modules} | refused {message, traceback}
      run {groups, reference, seconds, bytes,
           leave_at, keep_folder}               ──►
        given {segments} + memfd (0 or 1)       ──►    replicates that an earlier child handed over
                                                ◄──    part {sims, outputs, losses, failures, done} + memfd, repeated
                                                ◄──    ended {seconds, worn, reason, written}

A child may serve as a template instead: it has imported the model, and forks the children that run it::

      fork + socket, lifeline, page, output     ──►    (a message for each descriptor)
                                                ◄──    forked {pid} | not_forked {message}
      wait {pid}                                ──►
                                                ◄──    status {returncode}

What a simulation prints goes to descriptors 1 and 2, which are the parent's log and never the protocol. A death is
the parent's to notice: the progress page says what ran. The child dies with its parent by a signal from the
kernel (see :func:`die_with_parent`), also inside a C function that never returns.

Imports the standard library, numpy, pyarrow and the user's model only.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import os
import resource
import socket
import sys
from pathlib import Path

import pyarrow as pa

from mops.child.buffers import tables_of
from mops.child.channel import Channel, Message, ProgressPage
from mops.child.load import CannotLoad, UserCode, folder_of_its_own
from mops.child.task_run import TaskRun, flush_prints
from mops.child.tracebacks import describe
from mops.child.working_folder import WorkingFolder, links_to, obey_modes
from mops.system.lifeline import adopt_orphans, die_with_parent

_FORK_DESCRIPTORS = 4


def main() -> None:
    """Serve tasks until the parent closes the socket."""
    channel_fd, lifeline_fd, page_fd = map(int, sys.argv[1:4])
    for fd in (channel_fd, lifeline_fd, page_fd):
        os.set_inheritable(fd, False)  # a process of the model that kept the channel would hide this one's death
    die_with_parent(lifeline_fd)
    _prepare_process()
    channel = Channel(socket.socket(fileno=channel_fd))
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is gone, and so are we
        load, _ = channel.receive()
        bundle = _load(load, channel)
        page = ProgressPage(page_fd)
        while bundle is not None:
            channel, page = _serve(bundle, channel, page)


def _serve(bundle: UserCode, channel: Channel, page: ProgressPage) -> tuple[Channel, ProgressPage]:
    """Do one thing that the parent asks for; return what to go on with, which is another in a process just forked."""
    request, fd = channel.receive()
    if request["kind"] == "fork":
        own = _fork(channel, page, [fd, *(channel.receive()[1] for _ in range(_FORK_DESCRIPTORS - 1))])
        if own[0] is not channel:  # in the forked process
            bundle.folder = bundle.folder.of(folder_of_its_own(bundle.scratch))
        return own
    if request["kind"] == "wait":
        channel.send({"kind": "status", "returncode": _returncode_of(request["pid"])})
    else:
        _run(bundle, request, channel, page)
    return channel, page


def _returncode_of(pid: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the model's import has told the kernel to forget children (SIGCHLD ignored)
        return None


def _fork(channel: Channel, page: ProgressPage, fds: list[int | None]) -> tuple[Channel, ProgressPage]:
    """Fork a child that serves tasks with these descriptors: its socket, lifeline, page and output."""
    ours = [fd for fd in fds if fd is not None]
    flush_prints()  # or both would print what is not written yet
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError as refused:
        channel.send({"kind": "not_forked", "message": str(refused)})
        pid = -1
    if pid == 0:
        socket_fd, lifeline_fd, page_fd, output_fd = ours
        os.setsid()
        channel.close()
        for fd in (1, 2):
            os.dup2(output_fd, fd)
        die_with_parent(lifeline_fd)
        for fd in (output_fd, reading, writing):
            os.close(fd)
        return Channel(socket.socket(fileno=socket_fd)), ProgressPage(page_fd)
    for fd in (*ours, writing):
        os.close(fd)
    if pid > 0:
        os.read(reading, 1)  # until it has a group of its own: a signal to that would reach nobody before
        channel.send({"kind": "forked", "pid": pid})
    os.close(reading)
    return channel, page


def _run(bundle: UserCode, request: Message, channel: Channel, page: ProgressPage) -> None:
    # A function of its own, so that no table outlives its task in a local name.
    _adopt_once()
    given = _given(channel) if request["given"] else {}
    TaskRun(bundle, request, given, channel, page).run()


@functools.cache
def _adopt_once() -> None:
    # What simulations leave is this process's account. A template runs none: what its import leaves is not its own.
    adopt_orphans()


def _prepare_process() -> None:
    obey_modes()
    faulthandler.enable()  # a segmentation fault says in the log which line of the model it was
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    # When memory runs out the kernel is to take this child and not the worker. Not every sandbox allows it.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    threads = int(os.environ.get("MOPS_CHILD_THREADS", "1"))
    pa.set_cpu_count(threads)
    pa.set_io_thread_count(threads)


def _load(load: Message, channel: Channel) -> UserCode | None:
    folder = WorkingFolder(folder_of_its_own(load["scratch"], ".import"), links_to(Path(load["root"])))
    folder.renew()  # where that fails it is this machine's fault: the process ends, and no model is to blame
    folder.enter()
    try:
        bundle = UserCode(load, folder)
    except CannotLoad as refused:
        channel.send({"kind": "refused", "message": str(refused), "traceback": ""})
    except BaseException as error:  # noqa: BLE001 - the user's import may raise anything, SystemExit too
        channel.send({"kind": "refused"} | describe(error))
    else:
        gc.freeze()  # what is there stays: no collection looks through it, and forked processes go on sharing it
        channel.send({"kind": "loaded", "threads": bundle.threads, "modules": bundle.modules})
        return bundle
    return None


def _given(channel: Channel) -> dict[tuple[int, int], dict[str, pa.Table]]:
    message, fd = channel.receive()
    if fd is None:
        raise EOFError
    return tables_of(message["outputs"], fd)
