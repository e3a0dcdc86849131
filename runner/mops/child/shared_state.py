"""Finds what the import of a model has left in its process that forked processes would share.

A fork copies memory. Processes still share the offset of an open file, connections, writable memory maps and temporary
folders, and continue random generators from the same state. Files that are only read are opened again in each forked
process. For everything else, each child process imports the model itself. Runs in children: the standard library and
numpy only.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import random
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from mops.system.process_tree import children_of

# Libraries that forbid a fork once they are imported, each with the reason.
UNSAFE = {
    "jax": "its runtime's threads do not survive a fork",
    "torch": "OpenMP and CUDA do not survive a fork",
    "tensorflow": "its runtime's threads do not survive a fork",
    "grpc": "its threads do not survive a fork",
    "jpype": "a Java machine does not survive a fork",
    "juliacall": "a Julia runtime does not survive a fork",
    "rpy2.rinterface": "an R interpreter is shared with every forked process",
    "mpi4py.MPI": "MPI forbids it",
}
# Threads that a forked process does not need, by the 15 characters that the kernel keeps.
_HARMLESS_THREADS = (
    "jemalloc_bg_thd",  # returns memory to the system for an allocator; polars and pyarrow have one each
    "polars-ooc-clea",  # removes what polars has spilled to disk; a process that has spilled nothing does not need it
)
# Generators of libraries that no simulation draws from.
_HARMLESS_GENERATORS = (
    "sciris.sc_utils._uuid_rng",  # makes names of objects; starsim imports sciris
    "sympy.core.random.rng",  # tests whether expressions are equal
)
# The first letters of temporary folders that forked processes may share: a cache of fonts, if home is read-only.
_HARMLESS_TEMPORARY = ("matplotlib-",)
# /dev/null, zero, full, random and urandom: without a position, and the same for every process.
_HARMLESS_DEVICES = {os.makedev(1, number) for number in (3, 5, 7, 8, 9)}
_LEAST_ENTROPY = 1 << 64  # numpy draws 128 bits for a generator without a seed; people write smaller seeds


@dataclass(frozen=True)
class Shared:
    """What forked processes would share."""

    refusal: str  # why a process that has imported the model must not fork; empty: it may
    unseeded: tuple[str, ...]  # the generators that the import has made without a seed, by name
    files: ReadFiles  # those that each forked process opens again


class BeforeImport:
    """The state of this process before it imports the model: only what changes afterwards is the model's."""

    def __init__(self) -> None:
        self._threads, self._descriptors, self._maps = set(_threads()), _descriptors(), _writable_maps()
        gc.freeze()  # gc.get_objects() returns the later objects only

    def shared(self, temporary: Path) -> Shared:
        """Return what forked processes would share, with files in the temporary folder of this process."""
        kinds: dict[int, str] = {}
        for fd, path in _descriptors().items():
            if self._descriptors.get(fd) != path:
                with contextlib.suppress(OSError):  # closed meanwhile
                    kinds[fd] = _kind(fd)
        files = ReadFiles([fd for fd, kind in kinds.items() if kind == _READ_FILE])
        held = {*kinds.values()} - {_READ_FILE, ""}
        generators = dict(_generators())
        unseeded = tuple(name for name, is_certain in generators.items() if is_certain)
        numba = sys.modules.get("numba.np.ufunc.parallel")
        pythons = {thread.native_id: thread.name for thread in threading.enumerate()}
        new_threads = {number: name for number, name in _threads().items() if number not in self._threads}
        entries = [entry.name for entry in _entries(str(temporary))]
        reasons = {
            "the model imports": {f"{name} ({why})" for name, why in UNSAFE.items() if name in sys.modules},
            "importing the model runs": {"parallel code of numba"} if getattr(numba, "_is_initialized", False) else (),
            "importing the model starts threads, which a fork would leave behind:": {
                pythons.get(number, name) for number, name in new_threads.items() if name not in _HARMLESS_THREADS
            },
            "importing the model starts processes:": {_command(pid) for pid in children_of(os.getpid())},
            "importing the model opens": held or files.refused(),
            "importing the model maps shared memory for writing:": _writable_maps() - self._maps,
            "importing the model makes temporary files:": {
                name for name in entries if not name.startswith(_HARMLESS_TEMPORARY)
            },
            "importing the model makes random generators, which would all draw the same numbers:": generators,
        }
        found = (f"{what} {', '.join(sorted(names))}" for what, names in reasons.items() if names)
        return Shared(next(found, ""), unseeded, files)


class ReadFiles:
    """Open files that are only read. A forked process opens them again, so that it has its own offsets."""

    def __init__(self, fds: list[int]):
        self._fds = fds

    def refused(self) -> set[str]:
        """Return the files that cannot be opened again as they are, by path."""
        refused = set()
        for i, fd in enumerate(self._fds):
            path = Path("/proc/self/fd", str(fd)).readlink()
            try:
                os.close(_opened_again(fd))
                if any(_share_offset(fd, other) for other in self._fds[:i]):
                    refused.add(f"{path} (two descriptors with one offset)")
            except OSError as error:
                refused.add(f"{path} ({error.strerror})")
        return refused

    def open_again(self) -> None:
        """Open the files again, at the same descriptors."""
        for fd in self._fds:
            again = _opened_again(fd)
            os.dup2(again, fd, inheritable=os.get_inheritable(fd))
            os.close(again)


def _opened_again(fd: int) -> int:  # with the same flags and offset, even if the file was removed
    again = os.open(f"/proc/self/fd/{fd}", fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NOFOLLOW)  # the path is a link
    try:
        os.lseek(again, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    except OSError:
        os.close(again)
        raise
    return again


def _share_offset(fd: int, other: int) -> bool:  # one is a duplicate of the other: dup(2)
    if not os.path.samestat(os.fstat(fd), os.fstat(other)):
        return False
    offset, others = os.lseek(fd, 0, os.SEEK_CUR), os.lseek(other, 0, os.SEEK_CUR)
    os.lseek(fd, offset + 1, os.SEEK_SET)
    has_moved = os.lseek(other, 0, os.SEEK_CUR) != others
    os.lseek(fd, offset, os.SEEK_SET)
    return has_moved


_READ_FILE = "file"


def _kind(fd: int) -> str:
    """Return what a descriptor is, for people; empty: forked processes may share it."""
    mode, flags = os.fstat(fd).st_mode, fcntl.fcntl(fd, fcntl.F_GETFL)
    path = str(Path("/proc/self/fd", str(fd)).readlink())
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return _READ_FILE
        # The kernel appends each write at the end, wherever the shared offset is: a log file.
        is_log = flags & os.O_ACCMODE == os.O_WRONLY and flags & os.O_APPEND
        return "" if is_log else f"{path} for writing"
    if stat.S_ISCHR(mode):
        return "" if os.fstat(fd).st_rdev in _HARMLESS_DEVICES else "a device"
    kinds = {stat.S_IFSOCK: "a connection", stat.S_IFIFO: "a pipe"}
    return kinds.get(stat.S_IFMT(mode)) or ("an event loop" if "eventpoll" in path else path)


# What the kernel says of this process; empty without /proc.


def _descriptors() -> dict[int, str]:
    return _by_number("/proc/self/fd", lambda path: str(path.readlink()))


def _threads() -> dict[int, str]:  # with those of native libraries
    return _by_number("/proc/self/task", lambda path: Path(path, "comm").read_text().strip())


def _by_number(folder: str, read: Callable[[Path], str]) -> dict[int, str]:
    found = {}
    for entry in _entries(folder):
        with contextlib.suppress(OSError):  # a thread has just ended; a descriptor is that of the listing itself
            found[int(entry.name)] = read(Path(entry.path))
    return found


def _writable_maps() -> set[str]:  # those shared with other processes, by what they map
    with contextlib.suppress(OSError):
        lines = (line.split(None, 5) for line in Path("/proc/self/maps").read_text().splitlines())
        return {line[5].strip() for line in lines if len(line) == 6 and line[1][1] == "w" and line[1][3] == "s"}
    return set()


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        command = Path("/proc", str(pid), "cmdline").read_bytes()
        if command == Path("/proc/self/cmdline").read_bytes():
            return "a copy of this one, as multiprocessing does"
        words = command.replace(b"\0", b" ").decode(errors="replace").split()
        return " ".join(words)[:60] or str(pid)
    return str(pid)


def _generators() -> Iterator[tuple[str, bool]]:
    """Yield the generators that the import has made without a seed, by name, and whether that is certain."""
    kinds = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, np.random.SeedSequence)
    objects = gc.get_objects()
    types = {kind for kind in set(map(type, objects)) if issubclass(kind, kinds)} - {random.SystemRandom}
    found = [one for one in objects if type(one) in types] if types else []
    # mops seeds two of them before each simulation. Those of tempfile, and of joblib, are seeded in each process.
    known: list[object] = [np.random.mtrand._rand, random._inst]
    names = tempfile._RandomNameSequence  # type: ignore[attr-defined]
    known += [getattr(one, "_rng", None) for one in objects if type(one) is names]
    bits = [one._bit_generator for one in (np.random.mtrand._rand, *found) if hasattr(one, "_bit_generator")]
    known += [*bits, *(getattr(one, "seed_seq", None) for one in (*bits, *found))]
    for one in found:
        if any(one is its for its in known):
            continue
        name = _name_of(one)  # searches all modules
        if name in _HARMLESS_GENERATORS:
            continue
        if isinstance(one, random.Random):
            yield name, False  # it does not tell whether it has a seed
            continue
        source = getattr(one, "_bit_generator", one)
        entropy = getattr(getattr(source, "seed_seq", source), "entropy", None)  # None: RandomState(seed)
        if isinstance(entropy, int) and entropy >= _LEAST_ENTROPY:
            yield name, True


def _name_of(generator: object) -> str:
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if value is generator:
                    return f"{module.__name__}.{name}"
    return f"a {type(generator).__name__} inside of an object"
