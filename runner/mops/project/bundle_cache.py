"""The cache of unpacked bundles on this machine."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import IO

from filelock import FileLock

from mops.errors import BundleError, StorageError
from mops.project.bundle import (
    COPY_BYTES,
    MOST_SHOWN,
    TOTAL_LIMIT_BYTES,
    is_executable,
    name_fault,
    printable,
)
from mops.system import folders
from mops.system.user_folders import cache_path
from mops.units import mebibytes

# Files in the root that say what a job installs.
DEPENDENCIES = REQUIREMENTS, LOCK, PYPROJECT = "requirements.txt", "uv.lock", "pyproject.toml"

_DIGEST = re.compile(r"[0-9a-f]{64}")

_TEMPORARY = ".unpacking-"

_LEFT_SECONDS = 86_400.0  # an unpacking that is older belongs to a process that was killed
_LOCK_SECONDS = 600.0  # the longest wait for a lock. Some file systems refuse every lock as if another process held it.


def cache_folder() -> Path:
    """Return the folder of unpacked bundles. BundleError: there is no folder that can be written."""
    try:
        return cache_path() / "bundles"
    except OSError as refused:
        raise BundleError(
            f"no folder to unpack bundles in: {refused.strerror}",
            where=refused.filename,
            hint="set XDG_CACHE_HOME to a writable folder",
        ) from refused


def in_project(text: str, digest: str) -> str:
    """Return a text in which the files of an unpacked bundle have paths relative to the project root."""
    # The digest is the name of the bundle's folder in every cache.
    return re.sub(rf"/[^\s\"'():,]*/{digest}/", "", text) if digest in text else text


def unpack(digest: str, load: Callable[[], bytes], cache: Path) -> Path:
    """Unpack a bundle to ``cache/<digest>``, read-only, unless the folder is there; return the folder."""
    if not _DIGEST.fullmatch(digest):
        raise BundleError(f"{digest!r} is not the SHA-256 of a bundle")
    target = cache / digest
    with _storage_errors(cache):
        # A folder gets this name only when it is complete, so an existing one needs no check.
        if target.is_dir():
            return target
    # One thread of one process on the machine loads and unpacks a bundle. The others wait for it.
    with _alone(digest, cache):
        if not target.is_dir():  # else the previous holder of the lock has unpacked it
            data = _checked(load(), digest)
            with _storage_errors(cache):
                _unpack(data, digest, cache)
    return target


def restore(digest: str, load: Callable[[], bytes], cache: Path) -> None:
    """Unpack a bundle again, to the same folder, if another program has removed the folder or files in it."""
    target = cache / digest
    with _alone(digest, cache):
        data = _checked(load(), digest)
        with _storage_errors(cache), ExitStack() as at_end:
            if target.is_dir():
                with zipfile.ZipFile(io.BytesIO(data)) as archive:
                    if all((target / name).is_file() for name in archive.namelist()):
                        return
                damaged = cache / f"{_TEMPORARY}{digest}"
                at_end.callback(folders.remove, damaged)
                folders.remove(damaged)
                target.rename(damaged)
            _unpack(data, digest, cache)


def _checked(data: bytes, digest: str) -> bytes:
    found = sha256(data).hexdigest()
    if found != digest:
        what = f"the bundle is damaged: its SHA-256 is {found}"
        raise BundleError(what, where=digest, hint="submit the study again")
    return data


@contextmanager
def _alone(digest: str, cache: Path) -> Iterator[None]:
    """Keep other threads and processes of this machine from unpacking the same bundle in the body."""
    lock = cache / f".{digest}.lock"
    with _storage_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        lock.touch()  # a folder that cannot be written is an error
    with ExitStack() as held:
        # A file system without locks lets all of them in. The lock only saves work: unpacking is safe without it.
        with suppress(OSError):
            held.enter_context(FileLock(lock, timeout=_LOCK_SECONDS, fallback_to_soft=False))
            for left in cache.glob(f"{_TEMPORARY}{digest}*"):
                if time.time() - left.stat().st_mtime > _LEFT_SECONDS:  # of a process that was killed
                    folders.remove(left)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # a FileLock that waits for this file notices, and opens a new one


@contextmanager
def _storage_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as bad:
        raise StorageError(
            f"the bundle cannot be unpacked: {bad.strerror}",
            where=str(bad.filename or cache),
            hint="make room there, or set XDG_CACHE_HOME to another folder",
        ) from bad


def _unpack(data: bytes, digest: str, cache: Path) -> None:
    tree = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{digest}-", dir=cache))
    with ExitStack() as on_failure:
        on_failure.callback(folders.remove, tree)
        _extract(data, digest, tree)
        for folder, _, _ in os.walk(tree):
            Path(folder).chmod(0o555)  # the files are read-only already
        try:
            tree.rename(cache / digest)
        except OSError:
            # On a file system without locks another process may have been first; its copy is the same.
            if not (cache / digest).is_dir():
                raise
        else:
            on_failure.pop_all()


def _extract(data: bytes, digest: str, tree: Path) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if problems := list(_foreign(entries)):
                listed = "".join(f"\n  {problem}" for problem in problems[:MOST_SHOWN])
                raise BundleError(f"the bundle contains what mops never packs{listed}", where=digest)
            for entry in entries:
                with archive.open(entry) as packed:
                    _write(tree / entry.filename, packed, executable=is_executable(entry))
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, EOFError) as bad:
        raise BundleError(f"the bundle is not a zip file that mops wrote: {bad}", where=digest) from bad


def _write(path: Path, content: IO[bytes], *, executable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        shutil.copyfileobj(content, file, COPY_BYTES)
        # Without fsync, a power cut after the rename may leave a complete folder of empty files.
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o555 if executable else 0o444)


def _foreign(entries: Iterable[zipfile.ZipInfo]) -> Iterator[str]:
    """Yield a sentence for each thing in a zip file that :func:`mops.project.bundle.pack` never writes."""
    names: set[str] = set()
    total_bytes = 0
    for entry in entries:
        name = printable(entry.filename)
        total_bytes += entry.file_size
        fault = name_fault(entry.orig_filename)
        if fault:
            yield f"{name}: {fault}"
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
            yield f"{name}: is a link or another special file"
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            yield f"{name}: is compressed or encrypted"
        if entry.filename in names:
            yield f"{name}: appears twice"
        names.add(entry.filename)
    parents = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    yield from (f"{printable(name)}: is both a file and a folder" for name in sorted(names & parents))
    if total_bytes > TOTAL_LIMIT_BYTES:
        yield f"{mebibytes(total_bytes)} in all; the limit is {mebibytes(TOTAL_LIMIT_BYTES)}"
