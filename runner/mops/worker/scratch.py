"""The folder for the working folders of one pool's processes, removed with the pool.

If the worker is killed, the next pool on the machine removes it. :mod:`mops.child.working_folder` fills it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import threading
import time
from pathlib import Path

from filelock import lock_descriptor

from mops.errors import ClusterError
from mops.system import folders

_PREFIX = "mops-work-"
_LEFT_SECONDS = 60.0  # a younger folder may not have its lock yet


class Scratch:
    """A folder for temporary files, made at its first use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the three below."""
        self._path: Path | None = None
        self._lock_fd = -1
        self._closed = False

    @property
    def path(self) -> Path:
        """The folder.

        Raises
        ------
        ClusterError
            It cannot be made, or was closed.
        """
        with self._lock:
            if self._closed:
                raise ClusterError("the folder for simulations is closed", where="its pool")
            if self._path is None or self._is_removed(self._path):
                try:
                    self._make()
                except OSError as bad:
                    raise ClusterError(
                        f"the folder for simulations cannot be made ({bad.strerror})",
                        where=bad.filename or os.environ.get("TMPDIR", "/tmp"),  # noqa: S108 - only named
                        hint="free space there, or set TMPDIR to another folder",
                    ) from bad
                assert self._path is not None
            return self._path

    def _is_removed(self, path: Path) -> bool:
        """Tell whether another program has removed the folder; a child may have made another one without a lock."""
        return not path.is_dir() or not os.path.samestat(path.stat(), os.fstat(self._lock_fd))

    def _make(self) -> None:
        if self._path is None:
            _sweep(Path(tempfile.gettempdir()))
            path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        else:  # again, and at the same place, because children use it
            path = self._path
            path.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        removed_fd = self._lock_fd
        try:
            # The kernel releases the lock when this process ends in any way. The lock also keeps systemd-tmpfiles away.
            self._lock_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if os.fstat(self._lock_fd).st_uid != os.geteuid():  # another user has made it in a shared folder
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        except OSError:
            with contextlib.suppress(OSError):
                path.rmdir()
            raise
        if self._path is not None:
            os.close(removed_fd)
        with contextlib.suppress(OSError):  # a file system without locks, on which no pool sweeps either
            lock_descriptor(self._lock_fd, blocking=False)
        self._path = path

    def leave(self, pid: int, *, keep_import: bool) -> None:
        """Remove the folders of a process that has ended.

        Parameters
        ----------
        keep_import
            Whether other processes have links into the folder in which it imported the model, and may know the path of
            its temporary folder.
        """
        if self._path is None:
            return
        _remove(self._path / str(pid))
        if not keep_import:
            _remove(self._path / f"{pid}.import")
            _remove(self._path / f"{pid}.tmp")

    def close(self) -> None:
        """Remove the folder, after its processes have ended."""
        with self._lock:
            self._closed = True
            path, self._path = self._path, None
            if path is not None:
                _remove(path)
                os.close(self._lock_fd)


def _remove(path: Path) -> None:
    # A process that the model has left may still write. The next pool removes what stays.
    with contextlib.suppress(OSError):
        folders.remove(path)


def _sweep(temporary: Path) -> None:
    """Remove folders of killed workers."""
    for path in temporary.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or removed meanwhile
            if time.time() - path.stat().st_mtime <= _LEFT_SECONDS:
                continue
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(fd).st_uid == os.geteuid() and lock_descriptor(fd, blocking=False):
                    folders.remove(path)
            finally:
                os.close(fd)
