"""Makes folders read-only, removes them, and makes files without a name in them.

Child processes import this: standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

# Errors where the system has no files without a name, or the folder does not exist yet.
_NOT_HERE = {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENOSYS, errno.EACCES}
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def make_read_only(root: Path) -> None:
    """Make a folder read-only, with every folder and file in it. Links stay as they are."""
    for folder, _, names in os.walk(root, topdown=False):
        for path in (*(Path(folder, name) for name in names), Path(folder)):
            with contextlib.suppress(FileNotFoundError):  # another process has removed the file
                if not path.is_symlink():
                    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_WRITE)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content, or raise OSError. The path may be read-only or absent."""
    with contextlib.suppress(FileNotFoundError):  # another process may remove the same path
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            path.chmod(stat.S_IRWXU)
            for folder, names, _ in os.walk(path):
                for inner in (Path(folder, name) for name in names):
                    if not inner.is_symlink():
                        inner.chmod(stat.S_IRWXU)  # before os.walk lists it, which needs the right to read
            shutil.rmtree(path)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield the path to write a file to. After the body it gets its name, so no one reads half of it."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def nameless_file(folder: Path) -> int | None:
    """Return the descriptor of a new file without a name and with the usual mode; None: the folder cannot have one."""
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o666)
    except AttributeError:  # the system has none, or the Python is built for an early C library
        return None
    except OSError as error:
        if error.errno in _NOT_HERE:
            return None
        raise  # the disk is full, or no descriptor is left


def usual_mode() -> int:
    """Return the mode of a new file of this process."""
    # To ask the system by os.umask would change it for a moment.
    lines = Path("/proc/self/status").read_text().splitlines()
    masks = [line.partition(":")[2] for line in lines if line.startswith("Umask:")]
    return 0o666 & ~int(masks[0], 8) if masks else 0o644
