"""The program of a child process: runs simulations and targets of one bundle until its worker closes the socket.

If the child dies, the progress page tells the worker what ran. If the worker dies, a signal from the kernel kills the
child, even inside a C function that never returns (:func:`mops.system.signals.die_with_parent`).

Runs in children: the standard library, numpy, pyarrow and the user's code only.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import pyarrow as pa

from mops.child.buffers import tables_of
from mops.child.channel import Channel, Message, ProgressPage, end_for_lost_files
from mops.child.leftovers import note_limits
from mops.child.load import UserCode, enter_import_folder
from mops.child.modules import CannotLoad
from mops.child.task_run import TaskRun
from mops.child.texts import describe, flush_prints, replace_streams
from mops.child.working_folder import obey_modes
from mops.system.signals import adopt_orphans, die_with_parent

# The messages. Descriptors 1 and 2 take what a simulation prints, and never a message.
#
#   worker (worker/child_process.py)                   child (this file)
#     load {root, scratch, model, ...}          ──►
#                                               ◄──    loaded {refusal, unseeded}
#                                                      | refused {message, traceback, missing, others}
#     run {name, groups, reference, seconds,
#          bytes, replacement_size, keep_folder,
#          encode, part_folder}                 ──►
#       given {outputs} + memfd (0 or 1)        ──►    stored replicates, or those of an earlier child
#                                               ◄──    file {name} + descriptor: a part (child/buffers.py), 0 or more
#                                               ◄──    results {name, simulations, outputs, losses, failures, done,
#                                                      files, encoded} + memfd, repeated
#                                               ◄──    ended {name, seconds, replace_reason, replace_code, written}
#
# A child that has imported the model may serve as a template, which forks the children that run the model:
#
#     fork + socket, lifeline, page, output     ──►    (a message for each descriptor)
#                                               ◄──    forked {pid} | not_forked {message}
#     wait {pid}                                ──►
#                                               ◄──    status {returncode}

# The processes that simulations leave count for this process. A template adopts none: it runs no simulation.
_adopt_once = functools.cache(adopt_orphans)


def main() -> None:
    """Serve tasks until the worker closes the socket."""
    channel_fd, lifeline_fd, page_fd = map(int, sys.argv[1:])
    for fd in (channel_fd, lifeline_fd, page_fd):
        os.set_inheritable(fd, False)  # a process of the model that had the channel would hide this one's death
    die_with_parent(lifeline_fd)
    prepare_process()
    replace_streams()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a model may catch KeyboardInterrupt and return what it has
    channel = Channel(socket.socket(fileno=channel_fd))
    with contextlib.suppress(EOFError, BrokenPipeError):  # the worker has closed the socket, or ended
        load, _ = channel.receive()
        code = _load(load, channel)
        page = ProgressPage(page_fd)
        while code is not None:
            channel, page = _serve(code, channel, page)


def _serve(code: UserCode, channel: Channel, page: ProgressPage) -> tuple[Channel, ProgressPage]:
    # Returns the channel and the page to continue with: a process just forked has its own.
    request, fd = channel.receive()
    if request["kind"] == "fork":
        if not code.has_import_folder:
            raise EOFError
        lifeline_page_output = (channel.receive()[1] for _ in range(3))
        own = _fork(channel, page, [fd, *lifeline_page_output])
        if own[0] is not channel:  # in the forked process
            code.forked()
        return own
    if request["kind"] == "wait":
        try:
            returncode = os.waitstatus_to_exitcode(os.waitpid(request["pid"], 0)[1])
        except ChildProcessError:  # the model's import has made the kernel forget children (SIGCHLD ignored)
            returncode = None
        channel.send({"kind": "status", "returncode": returncode})
    else:
        _run(code, request, channel, page)
    return channel, page


def _fork(channel: Channel, page: ProgressPage, fds: list[int | None]) -> tuple[Channel, ProgressPage]:
    ours = [fd for fd in fds if fd is not None]
    flush_prints()  # or both processes would print the text that is still buffered
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
        os.read(reading, 1)  # wait until the child has a process group: a signal to it would be lost before
        channel.send({"kind": "forked", "pid": pid})
    os.close(reading)
    return channel, page


def _run(code: UserCode, request: Message, channel: Channel, page: ProgressPage) -> None:
    # A function, so that no table outlives its task in a local name.
    _adopt_once()
    given: dict[tuple[int, int], dict[str, pa.Table]] = {}
    if request["given"]:
        message, fd = channel.receive()
        if fd is None:
            raise EOFError
        given = tables_of(message["outputs"], fd)
    try:
        TaskRun(code, request, given, channel, page).run()
    except Exception as error:
        if code.replacement.is_limited:
            error.add_note(code.replacement.reason)
        raise


def prepare_process() -> None:
    """Set up a process for user code: modes of files, the fault handler, limits, streams, threads."""
    obey_modes()
    faulthandler.enable()  # a segmentation fault prints the line of the model
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    note_limits()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    # If memory runs out, the kernel kills this child and not the worker. Some sandboxes do not allow this.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    threads = int(os.environ.get("MOPS_CHILD_THREADS", "1"))
    pa.set_cpu_count(threads)
    pa.set_io_thread_count(threads)


def _load(load: Message, channel: Channel) -> UserCode | None:
    folder = enter_import_folder(load)  # a failure is this machine's fault: it ends the process, no model is to blame
    code, answer = None, {}
    try:
        code = UserCode(load, folder)
        answer = {"kind": "loaded", "refusal": code.shared.refusal, "unseeded": code.shared.unseeded}
    except CannotLoad as refused:
        why = {"message": str(refused), "missing": refused.missing, "others": refused.others}
        answer = {"kind": "refused", "traceback": ""} | why
    except BaseException as error:  # noqa: BLE001 - the user's import may raise anything, SystemExit too
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        answer = {"kind": "refused", "missing": missing or "", "others": []} | describe(error)
    if folder.is_lost:  # then an error is not the model's, and without one, files that the import wrote may be missing
        flush_prints()
        end_for_lost_files()
    # No collection touches the present objects, so forked processes keep sharing their pages. bench/tricks.py, 0 ms:
    # -10 % of the memory of the job.
    gc.freeze()
    channel.send(answer)
    return code
