"""The program of a child: runs simulations and targets of one bundle, one after the other, until its parent ends.

::

    parent (parent.py)                                 child (this file)
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
import importlib
import os
import random
import resource
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mops.child.buffers import PartWriter, tables_of
from mops.child.channel import Channel, Message, ProgressPage, readable
from mops.child.load import CannotLoad, load_model, load_target, script_of
from mops.child.outputs import InvalidOutput, as_tables
from mops.child.replacement import Wear
from mops.child.working_folder import WorkingFolder, links_to, obey_modes
from mops.study.column_types import families_of
from mops.study.ids import target_seed
from mops.study.output_schema import Reference
from mops.system.folders import make_read_only
from mops.system.lifeline import adopt_orphans, can_tie, tie

HANDOVER_SECONDS = 0.5
HANDOVER_BYTES = 4 << 20
_FORK_DESCRIPTORS = 4
_CHANNEL_CLOSED = 76  # EX_PROTOCOL of sysexits.h
_MESSAGE_LIMIT = 2_000
_TRACEBACK_LIMIT = 8_000
_READ_ONLY = " (the project's files are read-only; a simulation may write new files by relative paths)"
_COPY = " (a copy keeps the mode of its source: use shutil.copyfile)"
_NOT_THE_USERS = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen importlib")


def main() -> None:
    """Serve orders until the parent closes the socket."""
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


def _serve(bundle: _Bundle, channel: Channel, page: ProgressPage) -> tuple[Channel, ProgressPage]:
    """Do one thing that the parent asks for; return what to go on with, which is another in a process just forked."""
    order, fd = channel.receive()
    if order["kind"] == "fork":
        own = _fork(channel, page, [fd, *(channel.receive()[1] for _ in range(_FORK_DESCRIPTORS - 1))])
        if own[0] is not channel:  # in the forked process
            bundle.folder = bundle.folder.of(_own_folder(bundle.scratch))
        return own
    if order["kind"] == "wait":
        channel.send({"kind": "status", "returncode": _returncode_of(order["pid"])})
    else:
        _run(bundle, order, channel, page)
    return channel, page


def _flush_prints() -> None:
    for stream in (sys.stdout, sys.stderr):  # the model may have put anything there
        with contextlib.suppress(Exception):
            stream.flush()


def _returncode_of(pid: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the model's import has told the kernel to forget children (SIGCHLD ignored)
        return None


def _fork(channel: Channel, page: ProgressPage, fds: list[int | None]) -> tuple[Channel, ProgressPage]:
    """Fork a child that serves orders with these descriptors: its socket, lifeline, page and output."""
    ours = [fd for fd in fds if fd is not None]
    _flush_prints()  # or both would print what is not written yet
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


def _run(bundle: _Bundle, order: Message, channel: Channel, page: ProgressPage) -> None:
    # A function of its own, so that no table outlives its order in a local name.
    _adopt_once()
    given = _given(channel) if order["given"] else {}
    _Run(bundle, order, given, channel, page).run()


@functools.cache
def _adopt_once() -> None:
    # What simulations leave is this process's account. A template runs none: what its import leaves is not its own.
    adopt_orphans()


def die_with_parent(lifeline_fd: int) -> None:
    """Let the kernel kill this process group as soon as the parent's end of the lifeline closes.

    No code of ours has to run, which a thread that waits for end-of-file would need (the model may hold the GIL for
    ever). Elsewhere than on Linux such a thread is what there is.
    """
    if can_tie():
        tie(lifeline_fd, os.getpgrp())
        if readable(lifeline_fd):  # it closed before we asked for the signal
            os._exit(1)
        return

    def wait() -> None:
        os.read(lifeline_fd, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


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


class _Bundle:
    """The user's code, imported."""

    def __init__(self, load: Message, imported_in: WorkingFolder):
        root = Path(load["root"])
        self.scratch = load["scratch"]
        sys.path.insert(0, str(root))
        sys.argv = [script_of(load["model"], root)]
        before = _threads()
        self.model = load_model(load["model"], load["scenario"], root, load["parameters"])
        self.target_names: list[str] = load["targets"]
        self.targets = [load_target(text, root, load["parameters"]) for text in load["targets"]]
        self.outputs = load["outputs"]
        self.wear = Wear(load["tasks_per_child"], load["growth_bytes"])
        self.threads = list((Counter(_threads()) - Counter(before)).elements())
        self.modules = [name for name in load["unsafe"] if name in sys.modules]
        # The first table makes pyarrow import pandas, where there is one: 0.1 s that the pilot would wait for.
        as_tables({"warm": np.zeros(1)}, 0)
        # What the import wrote is there for every simulation, and for none to change.
        has_written = imported_in.changed
        make_read_only(imported_in.path.parent)
        self.folder = imported_in.of(_own_folder(self.scratch))
        if has_written:
            self.folder = WorkingFolder(_own_folder(self.scratch), links_to(imported_in.path))
        self._read_only = (root.resolve(), imported_in.path.resolve())

    def hint(self, path: object) -> str:
        """Return why the kernel refused this file, for the end of a message; nothing if mops does not know."""
        if not isinstance(path, str):
            return ""
        real = Path(path).resolve()
        if any(real.is_relative_to(folder) for folder in self._read_only):
            return _READ_ONLY
        if real.is_relative_to(self.folder.path.resolve()):
            with contextlib.suppress(OSError):  # there is no such file
                return "" if real.stat().st_mode & stat.S_IWUSR else _COPY
        return ""


def _own_folder(scratch: str, kind: str = "") -> Path:
    """Return a folder that is this process's alone; its parent removes it."""
    return Path(scratch, f"{os.getpid()}{kind}")


def _threads() -> list[str]:
    """Return the names of this process's threads, those of native libraries too; none where there is no /proc."""
    found = []
    for folder in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it has just ended
            found.append((folder / "comm").read_text().strip())
    return found


def _load(load: Message, channel: Channel) -> _Bundle | None:
    folder = WorkingFolder(_own_folder(load["scratch"], ".import"), links_to(Path(load["root"])))
    folder.renew()  # where that fails it is this machine's fault: the process ends, and no model is to blame
    folder.enter()
    try:
        bundle = _Bundle(load, folder)
    except CannotLoad as refused:
        channel.send({"kind": "refused", "message": str(refused), "traceback": ""})
    except BaseException as error:  # noqa: BLE001 - the user's import may raise anything, SystemExit too
        channel.send({"kind": "refused"} | _described(error))
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


def _described(error: BaseException) -> dict[str, str]:
    """Return type, message and the user's part of the traceback, whatever ``str(error)`` does."""
    what = "".join(traceback.format_exception_only(error)).strip()
    try:
        trace = _users_traceback(error)
    except Exception as failed:  # noqa: BLE001 - an exception of the model's own class, of which anything may raise
        trace = f"(no traceback: {type(failed).__name__} while it was written)"
    return {"message": _text(what[:_MESSAGE_LIMIT]), "traceback": _text(_middle_left_out(trace))}


def _users_traceback(error: BaseException) -> str:
    """Return what Python would print: causes, contexts, notes and the exceptions of a group, too; no frames of ours."""
    told = traceback.TracebackException.from_exception(error)
    todo, seen = [(error, told)], set()
    while todo:
        error, part = todo.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        part.stack = traceback.StackSummary.from_list(
            [frame for frame in part.stack if not frame.filename.startswith(_NOT_THE_USERS)]
        )
        # An exception that is kept in a local name has made a cycle: its tables would wait for the garbage collector.
        traceback.clear_frames(error.__traceback__)
        pairs = [(error.__cause__, part.__cause__), (error.__context__, part.__context__)]
        if isinstance(error, BaseExceptionGroup):
            pairs += zip(error.exceptions, part.exceptions or (), strict=False)
        todo += [(inner, its) for inner, its in pairs if inner is not None and its is not None]
    return "".join(told.format())


def _middle_left_out(text: str) -> str:
    """Return the start, where the first cause is, and the end, where the exception itself is."""
    n_dropped = len(text) - _TRACEBACK_LIMIT
    if n_dropped <= 0:
        return text
    half = _TRACEBACK_LIMIT // 2 - 50
    return f"{text[:half]}\n... ({n_dropped + 100} characters left out)\n{text[-half:]}"


def _text(found: str) -> str:
    """Return text that can be stored: without the lone surrogates that stand for bytes in the names of files."""
    return found.encode(errors="backslashreplace").decode()


def _failure(error: BaseException) -> dict[str, str]:
    if isinstance(error, InvalidOutput):
        return {"reason": "invalid_output", "message": _text(str(error)[:_MESSAGE_LIMIT]), "traceback": ""}
    return {"reason": "error"} | _described(error)


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    # numpy's legacy generator takes 32 bits, or a list of them.
    np.random.seed(seed if seed < 2**32 else [seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002


def _take_back_timer() -> None:
    """Stop a timer that user code started and left: it would end a later simulation, which would be blamed for it."""
    signal.alarm(0)


class _Run:
    """One order: its groups in turn, handed over as they finish, until the budget is used or a stop is asked for."""

    def __init__(
        self,
        bundle: _Bundle,
        order: Message,
        given: dict[tuple[int, int], dict[str, pa.Table]],
        channel: Channel,
        page: ProgressPage,
    ):
        self._bundle, self._order, self._given = bundle, order, given
        self._channel, self._page = channel, page
        self._reference = Reference(order["reference"]) if order["reference"] else None
        self._out = PartWriter(channel, bundle.outputs, order["name"])
        self._began = self._handed_over = time.monotonic()

    def run(self) -> None:
        self._bundle.wear.leave_at(self._order["leave_at"])
        for group in self._order["groups"]:
            if group["sims"] and (self._bundle.wear.worn or self._enough(self._out.groups_done)):
                break
            self._group(group)
        self._page.idle()
        _flush_prints()
        self._out.flush()
        wear = self._bundle.wear
        written = self._bundle.folder.written() if self._order["keep_folder"] else []
        self._renew_folder()
        self._out.end(time.monotonic() - self._began, wear.worn, wear.reason, written)

    def _enough(self, n_finished: int) -> bool:
        if self._page.stop_asked:
            return True
        spent = time.monotonic() - self._began
        used_up = spent >= self._order["seconds"] or self._out.bytes_total >= self._order["bytes"]
        return used_up and n_finished > 0  # one at least, or an order would come back for ever

    def _group(self, group: dict[str, Any]) -> None:
        place, params, handed_over = group["place"], group["params"], self._handed_over
        replicates: dict[int, dict[str, pa.Table]] = {
            replicate: self._given[place, replicate] for replicate in group["given"]
        }
        kept_bytes = sum(t.nbytes for tables in replicates.values() for t in tables.values())
        bytes_before, scored = self._out.bytes_total, bool(group["targets"])
        for n_before, (replicate, seed) in enumerate(group["sims"]):
            if self._bundle.wear.worn or (self._enough(n_before) if group["in_pieces"] else self._page.stop_asked):
                return
            tables = self._simulate(place, replicate, dict(params), seed)
            if tables is None:  # without one of them there will be no losses
                scored = False
                replicates.clear()
            elif scored:
                replicates[replicate] = tables
            tables = None  # or the last one would be held beside the next
            held_bytes = kept_bytes + self._out.bytes_total - bytes_before if scored else self._out.bytes_open
            self._bundle.wear.finished(held_bytes)
            self._hand_over_in_time()
        if group["in_pieces"]:
            return  # what is settled counts, and the rest of the group is other orders' work
        if scored and len(replicates) == group["n_replicates"]:
            ordered = [replicates[i] for i in range(group["n_replicates"])]
            for target in group["targets"]:
                self._score(group, target, ordered)
            _take_back_timer()
        self._out.done(place)
        if self._handed_over == handed_over:
            self._hand_over_in_time()
        else:  # parts went ahead that count with their group only: a stop in the next simulation would lose them
            self._hand_over()

    def _simulate(self, place: int, replicate: int, params: dict[str, Any], seed: int) -> dict[str, pa.Table] | None:
        self._renew_folder()
        self._page.begin(place, replicate, self._bundle.wear.size_bytes)
        try:
            self._bundle.folder.enter()  # the last one may have gone elsewhere
            _seed_generators(seed)
            tables = self._checked(as_tables(self._bundle.model(params, seed), seed))
        except BaseException as error:  # noqa: BLE001 - the model may raise anything, SystemExit too
            self._out.failed(place, replicate, None, self._failure(error))
            return None
        finally:
            _take_back_timer()
            self._leave_unit()
        self._out.finished(place, replicate, tables)
        return tables

    def _failure(self, error: BaseException) -> dict[str, str]:
        failure = _failure(error)
        if isinstance(error, PermissionError):
            failure["message"] += self._bundle.hint(error.filename)
        return failure

    def _renew_folder(self) -> None:
        """Have the working folder as it was made, whatever the last unit wrote."""
        folder = self._bundle.folder
        if (self._order["keep_folder"] and folder.made) or not folder.changed:
            return
        self._page.idle()  # what fails here is no unit's fault
        folder.renew()

    def _leave_unit(self) -> None:
        if not self._channel.intact:
            # While this unit still counts as running, so that no other is blamed for the silence.
            with contextlib.suppress(OSError):
                os.write(2, b"the model closed the socket to its worker, a descriptor that was not its own\n")
            os._exit(_CHANNEL_CLOSED)

    def _checked(self, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        if self._reference is None:
            self._reference = Reference(families_of(tables))
            self._out.reference = self._reference.families
        return self._reference.check(tables)

    def _score(self, group: dict[str, Any], target: int, ordered: list[dict[str, pa.Table]]) -> None:
        place = group["place"]
        self._renew_folder()
        self._page.begin(place, group["n_replicates"] + target, self._bundle.wear.size_bytes)
        try:
            self._bundle.folder.enter()
            _seed_generators(target_seed(group["param_id"], self._bundle.target_names[target]))
            losses = self._bundle.targets[target](dict(group["params"]), [dict(tables) for tables in ordered])
        except BaseException as error:  # noqa: BLE001 - as for the model
            self._out.failed(place, None, target, self._failure(error))
        else:
            self._out.scored(place, target, losses)
        finally:
            self._leave_unit()

    def _hand_over_in_time(self) -> None:
        if time.monotonic() - self._handed_over >= HANDOVER_SECONDS or self._out.bytes_open >= HANDOVER_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        families = self._out.flush()
        if self._reference is not None:
            self._reference.handed_over(families)
        self._handed_over = time.monotonic()
