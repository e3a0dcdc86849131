"""The results that children hand over: buffers of rows, and encoded files. Takes them, counts what this process holds.

A buffer counts until its last reader frees it. There is one count, because this process has one memory, and a count for
each task. Before a pool starts a task, it waits until its job's buffers leave room. The drain check reads which buffers
are left.

Files: if the runner is another process, the worker stores them. No commit names a file until the runner has its path
(docs/internals/storage.md, rule 7). If the task is lost before, its file does not count, and ``mops jobs clean``
removes it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import mmap
import os
import re
import secrets
import socket
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mops.child.buffers import map_buffer
from mops.errors import MopsError
from mops.storage.backends.base import Spool
from mops.storage.files import Files
from mops.storage.paths import JobPaths
from mops.task import JobContext, PartFile, TaskResult
from mops.units import bytes_text
from mops.waiting import polls

logger = logging.getLogger(__name__)

# Smaller buffers are copied: a mapped one costs a descriptor (mmap keeps a duplicate until Python 3.13), and a worker
# with many slots and short simulations would have thousands of them in one open checkpoint.
COPY_BELOW_BYTES = 1 << 20

_ROOM_SECONDS = 1.0  # between two looks for room, at most
_PART = re.compile(r"mops-part-(\S+)\.")  # TaskRequest.part_name
_changed = threading.Condition(threading.RLock())
"""Guards the count. Re-entrant: a finalizer may run in a thread that holds it."""
_bytes_of: Counter[str] = Counter()

_FIRST_NUMBER = 1 << 32  # of a file that a worker stores; the numbers of a runner's own parts are lower
_refused: set[str] = set()  # attempts (JobContext.run_id) for which this worker could not write a file
_open_files = functools.cache(Files.open)


def take_buffer(fd: int, name: str) -> pa.Buffer | None:
    """Read a buffer and close its descriptor; None if it is empty. It counts until nothing refers to it."""
    size = os.fstat(fd).st_size
    content: np.ndarray[Any, Any] | mmap.mmap | None
    if size < COPY_BELOW_BYTES:
        content = np.empty(size, np.uint8)
        try:
            os.preadv(fd, [content.data], 0)
        finally:
            os.close(fd)
    else:
        content = map_buffer(fd)
    if content is None or not size:
        return None
    _count(name, size)
    weakref.finalize(content, _count, name, -size)
    return pa.py_buffer(content)


def _count(name: str, change: int) -> None:
    with _changed:
        _bytes_of[name] += change
        if not _bytes_of[name]:
            del _bytes_of[name]
        if change < 0:
            _changed.notify_all()


def held_bytes(mark: str = "") -> int:
    """Return the bytes of the buffers whose names contain ``mark``."""
    with _changed:
        counted = dict(_bytes_of)  # a copy, because a finalizer may run in the loop, in this thread
    return sum(n_bytes for name, n_bytes in counted.items() if mark in name)


def wait_for_room(limit_bytes: int, stopping: Callable[[], bool], job: str, mark: str = "") -> None:
    """Wait while buffers take more than ``limit_bytes``, unless ``stopping``; log it every 30 s."""
    # Only buffers with the mark count: a job does not wait for another job's runner. Buffers of unfinished groups count
    # too: the runner frees them when it has put them on disk, without waiting for the rest of their group.
    with _changed:
        for poll in polls(_ROOM_SECONDS, stopped=stopping, pause=_changed.wait):
            n_bytes = held_bytes(mark)
            if n_bytes <= limit_bytes:
                return
            if poll.log_is_due:
                message = "%s: waiting to start simulations: %s of results are not fetched yet (limit %s)"
                logger.warning(message, job, bytes_text(n_bytes), bytes_text(limit_bytes))


def wake() -> None:
    """Make waiting tasks check again whether to stop."""
    with _changed:
        _changed.notify_all()


def buffers_here(process: str, keys: frozenset[str]) -> list[str]:
    """Describe the buffers of tasks with these keys that this process has read and keeps."""
    with _changed:
        held = list(dict(_bytes_of))
    found = {key for name in held for key in _PART.findall(name)}
    return [f"a buffer of {key} in {process}" for key in sorted(found & keys)]


def buffers_in(name: str, pid: int, keys: frozenset[str]) -> Iterator[str]:
    """Describe the buffers of tasks with these keys that a process has mapped or open (Linux only)."""
    process, names = Path("/proc", str(pid)), []
    with contextlib.suppress(OSError):  # the process has ended, or there is no /proc
        names.append(process.joinpath("maps").read_text())
        for fd in process.joinpath("fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile, which says nothing about the others
                names.append(str(fd.readlink()))
    for key in sorted({key for each in names for key in _PART.findall(each)} & keys):
        yield f"a buffer of {key} in {name}"


def folder_for_parts(context: JobContext) -> str | None:
    """Return the folder where child processes write files; None: in memory, because the runner is elsewhere."""
    return None if context.slots is None else _open_files(context.storage).folder or tempfile.gettempdir()


def take_file(context: JobContext, descriptor: int, name: str) -> pa.Buffer | Spool | None:
    """Take a file from a child process: as memory that Dask can send, or as it is if this process is the runner's."""
    if context.slots is None:
        return take_buffer(descriptor, name)
    return _open_files(context.storage).spool(descriptor)


def store_files(result: TaskResult, context: JobContext, attempt: int) -> None:
    """Store the files of a result as parts of an attempt, and replace their contents by their paths."""
    if not result.files or context.run_id in _refused:
        return
    try:
        files = _open_files(context.storage).brief()
        result.files = [_stored(file, files, JobPaths(context.job, context.job_id), attempt) for file in result.files]
    except MopsError as fault:  # the runner gets and stores the contents, for the rest of the attempt
        if context.run_id not in _refused:
            host = socket.gethostname()
            result.notes.append(f"{host} cannot write to the storage, so the runner stores its results: {fault}")
        _refused.add(context.run_id)
        for error in (fault, fault.__cause__):
            if error is not None:
                error.__traceback__ = None  # its frames hold the content, in a cycle


def _stored(file: PartFile, files: Files, paths: JobPaths, attempt: int) -> PartFile:
    # A random number: Dask may run a task on two workers, and each writes its own file.
    path = paths.part("outputs", file.output, attempt, secrets.randbelow(1 << 63) + _FIRST_NUMBER)
    files.create(path, file.content)
    return replace(file, content=None, path=path)
