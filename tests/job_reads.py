"""Reads a job at one moment, and counts how often each file of a storage is read."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pyarrow.fs
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from mops.jobs.data import JobData
from mops.jobs.job import Job
from mops.storage.backends.base import Backend
from mops.storage.files import Files


def data_of(job: Job) -> JobData:
    """Return a job as it is now."""
    return JobData.read(job.files, job.name)


class CountedReads:
    """A backend in a folder that counts the calls that read: by name, and the path that they read."""

    def __init__(self, backend: Backend):
        self._backend, self._counting = backend, threading.Lock()
        self.calls: Counter[tuple[str, str]] = Counter()

    def count(self, call: str, path: str) -> None:
        with self._counting:
            self.calls[call, path] += 1

    def of(self, *ends: str) -> dict[str, int]:
        """Return how often each file was read whose path has one of these ends."""
        found: Counter[str] = Counter()
        for (call, path), n in self.calls.items():
            if call in ("get", "open") and path.endswith(ends):
                found[path] += n
        return dict(found)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._backend, name)
        if name not in ("get", "size", "list", "folders"):
            return real

        def counted(path: str, *more: Any) -> Any:
            self.count(name, path)
            return real(path, *more)

        return counted

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        _, inner = self._backend.arrow(path)
        root = inner.removesuffix(path)
        handler = pyarrow.fs.FSSpecHandler(_Counted(self, root))
        return pyarrow.fs.PyFileSystem(handler), inner


class _Counted(AbstractFileSystem):  # type: ignore[misc]
    cachable = False

    def __init__(self, counts: CountedReads, root: str):
        super().__init__()
        self._counts, self._root, self._local = counts, root, LocalFileSystem()

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self._counts.count("open", path.removeprefix(self._root))
        return self._local._open(path, mode)

    def info(self, path: str, **options: Any) -> Any:
        return self._local.info(path)


def with_counts(files: Files) -> tuple[Files, CountedReads]:
    """Return the files of a storage in a folder, and what counts their reads."""
    counts = CountedReads(files._backend)
    return Files(counts, files.url), counts  # type: ignore[arg-type]
