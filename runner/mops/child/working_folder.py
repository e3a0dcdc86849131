"""The folder that a simulation runs in: the project's files by their relative paths, and room to write.

mops removes what a simulation wrote before the next simulation or a target starts. docs/internals/decisions.md lists
the alternatives. Runs in children, and where installers build from a project: the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mops.system import folders

_times_s = itertools.count(123_456_789)  # from 1973 on: whole seconds, which every file system keeps
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION = 0x20080522
_PR_CAPBSET_DROP = 24

Entries = dict[str, str | None]  # of a folder, by name: a link's target, or None for a folder
Tree = dict[str, Entries]  # the entries of each folder, by its relative path; a folder comes before those in it
_Look = tuple[int, int, int, int]  # device, number, time of the last change and of the last status change of a folder


class WorkingFolder:
    """A folder with a link to each file of another folder, which can be restored any number of times.

    Files cannot be changed in place: they are links to read-only files, and :func:`obey_modes` has root keep to that
    too. A model may put a link in place of a folder. mops follows no link below the working folder: it would remove
    files that are not the job's.
    """

    def __init__(
        self,
        # The folder around it: <scratch>/<pid>, or <scratch>/<pid>.import where the model is imported, which is
        # read-only from then on.
        own: Path,
        tree: Tree,  # links_to(...)
        targets: Sequence[str] | None = None,  # the files that must exist; None: those to which links lead now
    ):
        self._own, self._tree = own, tree
        if targets is None:  # an import may make links to each other, relative to their folder, or to nothing
            found = (target for entries in tree.values() for target in entries.values() if target is not None)
            targets = [target for target in found if target.startswith("/") and os.path.lexists(target)]
        self._targets = targets
        self.made = False
        self.path = own / "work"
        # A program that removes the folder removes this too, and a model cannot. Both can remove links.
        self._mark = own / "mark"
        self._paths = {folder: str(self.path / folder) for folder in tree}
        self._made: dict[str, _Look] = dict.fromkeys(tree, (0, 0, 0, 0))  # each folder after its last renewal

    def of(self, own: Path) -> WorkingFolder:
        """Return a folder with the same links in another place."""
        return WorkingFolder(own, self._tree, self._targets)

    @property
    def changed(self) -> bool:
        """Whether it must be renewed: something was made, renamed or removed in it, or it does not exist yet."""
        return not self._is_as_made(self._paths.values())

    @property
    def is_entered(self) -> bool:
        """Whether it is the working directory and need not be renewed."""
        return self._is_as_made(self._made)  # relative paths: one system call answers both

    @property
    def is_lost(self) -> bool:
        """Whether another program has removed it, or a file to which it has a link. A model can do neither."""
        # A cleaner of temporary files, `rm -rf ~/.cache`: a failure meanwhile says nothing about the model.
        if not all(map(os.path.lexists, self._targets)):
            return True
        links = [f"{self._paths[folder]}/{name}" for folder, entries in self._tree.items() for name in entries]
        for _ in range(100):  # a second: on a busy machine, the other program is slow
            if not os.path.lexists(self._mark):
                return True
            if all(map(os.path.lexists, links)):
                return False
            time.sleep(0.01)  # it is being removed now, or the model has removed a link
        return False

    def _is_as_made(self, paths: Iterable[str]) -> bool:
        look = os.lstat  # without a function call for each folder, nor pathlib
        try:
            for path, made in zip(paths, self._made.values(), strict=True):
                found = look(path)
                if (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns) != made:
                    return False
        except OSError:
            return False
        return True

    def renew(self) -> None:
        """Make or restore it; raise OSError if the disk has no room."""
        self.made = True
        try:
            self._renew()
        except OSError:  # a model may have changed it in any way: make it again
            folders.remove(self._own)
            self._renew()

    def _renew(self) -> None:
        if not os.path.lexists(self._mark):  # a program that still removes the old folder removes nothing in a new one
            folders.remove(self._own)
            self.path.mkdir(parents=True)
            self._mark.touch()
            self._own.chmod(stat.S_IRUSR | stat.S_IXUSR)  # so that a model can leave nothing in `..`
        changed = []
        for folder, path in self._paths.items():  # a folder comes before those in it
            if _look(path) != self._made[folder]:
                with _opened(self.path, folder) as fd:
                    _restore(self.path / folder, fd, self._tree[folder])
                changed.append(folder)
        # To notice a write, mops looks at two times of each folder. No program can set the time of the last status
        # change (ctime), but the kernel's clock for files advances only every few milliseconds: a short simulation can
        # write within one tick. So mops also sets the time of the last change (mtime), to a time in the past that no
        # other folder has: the kernel overwrites it at each write, and a tool that copies times (`shutil.copytree`,
        # `cp -a`) brings the time of another folder.
        for folder in changed:  # last, because making a folder changes the times of the folder around it
            path, time_ns = self._paths[folder], next(_times_s) * 10**9
            os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)
            self._made[folder] = _look(path)

    def written(self) -> list[str]:
        """Return the relative paths of files that were written or removed since it was made, the first by name."""
        found: list[Path] = []
        for folder, entries in self._tree.items():
            with contextlib.suppress(OSError), _opened(self.path, folder) as fd:
                there = _as_made(fd, entries)
                found += (self.path / folder / name for name in entries.keys() - there.keys())
                for name, is_as_made in there.items():
                    if not is_as_made:
                        found += _files(self.path / folder / name)
        return sorted(str(path.relative_to(self.path)) for path in found)[:100]


def links_to(root: Path) -> Tree:
    """Return the links to each file of a folder, which must not change from then on."""
    tree: Tree = {}
    todo = ["."]
    while todo:
        folder = todo.pop()
        entries: Entries = {}
        with os.scandir(root / folder) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    entries[entry.name] = None
                    todo.append(f"{folder}/{entry.name}")
                else:
                    entries[entry.name] = str(Path(entry.path).readlink()) if entry.is_symlink() else entry.path
        tree[folder] = entries
    return tree


def _look(path: str) -> _Look:
    found = os.lstat(path)
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


@contextlib.contextmanager
def _opened(root: Path, folder: str) -> Iterator[int]:
    # A link in place of a folder is an error.
    fd = os.open(root, _FOLDER)
    try:
        for name in Path(folder).parts:
            outer, fd = fd, os.open(name, _FOLDER, dir_fd=fd)
            os.close(outer)
        yield fd
    finally:
        os.close(fd)


def _as_made(fd: int, entries: Entries) -> dict[str, bool]:
    """Return for each name in an open folder whether it is unchanged."""
    there = {}
    with os.scandir(fd) as found:
        for entry in found:
            if (target := entries.get(entry.name)) is None:
                there[entry.name] = entry.name in entries and entry.is_dir(follow_symlinks=False)
            else:
                there[entry.name] = entry.is_symlink() and os.readlink(entry.name, dir_fd=fd) == target
    return there


def _restore(folder: Path, fd: int, entries: Entries) -> None:
    os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | stat.S_IRWXU)
    there = _as_made(fd, entries)
    for name, is_as_made in there.items():
        if not is_as_made:
            folders.remove(folder / name)
    for name, target in entries.items():
        if there.get(name):
            continue
        if target is None:
            os.mkdir(name, dir_fd=fd)
        else:
            os.symlink(target, name, dir_fd=fd)


def _files(path: Path) -> Iterator[Path]:
    """Yield a file, or the files in a folder, or a folder that is empty."""
    inner = [] if path.is_symlink() else [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    yield from inner or [path]


def obey_modes() -> None:
    """Make this process, and all that it starts, obey the modes of files even as root, if the kernel lets it."""
    give_up(_CAP_DAC_OVERRIDE)  # which lets root write into read-only files


def give_up(capability: int) -> None:
    """Give up a capability of root for this process and all that it starts, if the kernel lets it."""
    libc = ctypes.CDLL(None, use_errno=True)
    # First the bounding set: a program that root starts gets what that set still has.
    libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same for capabilities above 31
    if libc.capget(header, sets) == 0:
        for i in range(3):
            sets[i] &= ~(1 << capability)
        libc.capset(header, sets)
