"""The folder in which the processes of one pool have their working folders, removed with the pool.

If the worker is killed, the next pool on the machine removes it. What is in it is :mod:`mops.child.working_folder`'s.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from pathlib import Path

from mops.errors import ClusterError
from mops.system import folders

_PREFIX = "mops-work-"
_LEFT_SECONDS = 60.0  # a younger one may be about to be locked


class Scratch:
    """A folder for temporary files, made when it is first asked for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._lock_fd = -1
        self._closed = False

    @property
    def path(self) -> Path:
        """The folder.

        Raises
        ------
        ClusterError
            It cannot be made, or was closed: nobody would remove another one.
        """
        with self._lock:
            if self._closed:
                raise ClusterError("the folder for simulations to work in is closed", where="its pool")
            if self._path is None:
                try:
                    self._make()
                except OSError as bad:
                    raise ClusterError(
                        f"a folder for simulations to work in cannot be made ({bad.strerror})",
                        where=bad.filename or os.environ.get("TMPDIR", "/tmp"),  # noqa: S108 - only named
                        hint="make room there, or set TMPDIR to another folder",
                    ) from bad
                assert self._path is not None
            return self._path

    def _make(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            # The kernel gives it back when this process ends, however it does. It also keeps systemd-tmpfiles away.
            self._lock_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            path.rmdir()
            raise
        with contextlib.suppress(OSError):  # a file system without locks: nobody sweeps there either
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._path = path

    def leave(self, pid: int, *, keep_import: bool) -> None:
        """Remove what a process had that has ended.

        Parameters
        ----------
        keep_import
            Other processes have links into the folder in which it imported the model.
        """
        if self._path is None:
            return
        _remove(self._path / str(pid))
        if not keep_import:
            _remove(self._path / f"{pid}.import")

    def close(self) -> None:
        """Remove the folder; its processes have ended."""
        with self._lock:
            self._closed = True
            path, self._path = self._path, None
            if path is not None:
                _remove(path)
                os.close(self._lock_fd)


def _remove(path: Path) -> None:
    # A process that the model has left alive may write meanwhile. What stays then, the next start removes.
    with contextlib.suppress(OSError):
        folders.remove(path)


def _sweep(temporary: Path) -> None:
    """Remove the folders whose worker was killed."""
    for path in temporary.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another's, or gone meanwhile
            if time.time() - path.stat().st_mtime > _LEFT_SECONDS:
                _remove_unless_locked(path)


def _remove_unless_locked(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folders.remove(path)
    finally:
        os.close(fd)
