"""The files that child processes have encoded: takes them from children, and stores them if the runner need not.

No commit names a file until the runner has its path (docs/internals/storage.md, rule 7). If the task is lost before,
its file does not count, and ``mops jobs clean`` removes it.
"""

from __future__ import annotations

import functools
import secrets
import socket
import tempfile
from dataclasses import replace

import pyarrow as pa

from mops.errors import MopsError
from mops.storage.backends.base import Spool
from mops.storage.files import Files
from mops.storage.paths import JobPaths
from mops.task import JobContext, PartFile, TaskResult
from mops.worker import result_buffers

_FIRST_NUMBER = 1 << 32  # the numbers of a runner's own parts are lower
_refused: set[str] = set()  # attempts (JobContext.run) for which this worker could not write a file
_open_files = functools.cache(Files.open)


def folder_for_parts(context: JobContext) -> str | None:
    """Return the folder where child processes write files; None: in memory, because the runner is elsewhere."""
    return None if context.slots is None else _open_files(context.storage).folder or tempfile.gettempdir()


def take_file(context: JobContext, descriptor: int, name: str) -> pa.Buffer | Spool | None:
    """Take a file from a child process: as memory that Dask can send, or as it is if this process is the runner's."""
    if context.slots is None:
        return result_buffers.take(descriptor, name)
    return _open_files(context.storage).spool(descriptor)


def store_files(result: TaskResult, context: JobContext, attempt: int) -> None:
    """Store the files of a result as parts of an attempt, and replace their contents by their paths."""
    if not result.files or context.run in _refused:
        return
    try:
        files = _open_files(context.storage).brief()
        result.files = [_stored(file, files, JobPaths(context.job, context.job_id), attempt) for file in result.files]
    except MopsError as fault:  # the runner gets and stores the contents, for the rest of the attempt
        if context.run not in _refused:
            host = socket.gethostname()
            result.notes.append(f"{host} cannot write to the storage, so the runner stores its results: {fault}")
        _refused.add(context.run)
        for error in (fault, fault.__cause__):
            if error is not None:
                error.__traceback__ = None  # its frames hold the content, in a cycle


def _stored(file: PartFile, files: Files, paths: JobPaths, attempt: int) -> PartFile:
    # A random number: Dask may run a task on two workers, and each writes its own file.
    path = paths.part("outputs", file.output, attempt, secrets.randbelow(1 << 63) + _FIRST_NUMBER)
    files.create(path, file.content)
    return replace(file, content=None, path=path)
