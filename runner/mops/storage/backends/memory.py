"""Files in this process's memory."""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from typing import Any

import pyarrow.fs
from fsspec.implementations.memory import MemoryFileSystem

from mops.storage.backends.base import Data, Entry, Spool, whole_bytes


class _SharedMemory(MemoryFileSystem):  # type: ignore[misc]
    """fsspec's memory, with a position for each reader: fsspec gives all readers the same file object."""

    cachable = False

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb":
            return io.BytesIO(self.cat_file(path))
        return super()._open(path, mode, **options)


class ProcessMemory:
    """The process's memory, shared by all storages of the same name; for trials and tests."""

    _lock = threading.Lock()

    def __init__(self, root: str):
        self._fs, self._root = _SharedMemory(), f"/{root.strip('/')}".rstrip("/")

    def put_new(self, path: str, data: Data) -> bool:
        with self._lock:
            if self._fs.isfile(f"{self._root}/{path}"):
                return False
            self._fs.pipe_file(f"{self._root}/{path}", whole_bytes(data))
            return True

    def put(self, path: str, data: Data) -> None:
        with self._lock:
            self._fs.pipe_file(f"{self._root}/{path}", whole_bytes(data))

    def get(self, path: str, start: int = 0, stop: int | None = None) -> bytes | None:
        with self._lock, suppress(FileNotFoundError):
            return bytes(self._fs.cat_file(f"{self._root}/{path}")[start:stop])
        return None

    def size(self, path: str) -> int | None:
        data = self.get(path)
        return None if data is None else len(data)

    def list(self, folder: str) -> list[Entry]:
        with self._lock:  # fsspec reads each file's details after it has listed the files
            found = self._fs.find(f"{self._root}/{folder}", detail=True)
        return [Entry(path.removeprefix(f"{self._root}/"), info["size"]) for path, info in found.items()]

    def folders(self, folder: str) -> set[str]:
        below = f"{folder}/".lstrip("/")
        # If the folder is a file, list returns that file.
        inner = [entry.path.removeprefix(below) for entry in self.list(folder) if entry.path.startswith(below)]
        return {path.partition("/")[0] for path in inner if "/" in path}

    def prune(self, folder: str) -> None:
        pass  # folders are only parts of names

    def remove(self, path: str) -> None:
        with self._lock, suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{path}")

    def arrow(self, path: str) -> tuple[pyarrow.fs.FileSystem, str]:
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(self._fs)), f"{self._root}/{path}"

    def spool(self, descriptor: int | None = None) -> Spool:
        return Spool(None, descriptor)
