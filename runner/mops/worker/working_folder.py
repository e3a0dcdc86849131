"""The folder that a simulation runs in: the project's files by their relative paths, and room to write.

::

    <scratch>/<pid>/work           real folders, with a link for each file of the project; the file is read-only
    <scratch>/<pid>.import/work    the same, in which the model is imported; read-only once it is

What a simulation wrote is gone before the next one or a target starts. To notice it costs a look at each folder:
every one is given the same time in the past as its last change, which the kernel overwrites with the present time
when anything is made, renamed or removed in it. (The time itself would not do: the kernel's clock for files advances
every few milliseconds, and a short simulation is over sooner.) Files cannot be changed in place: they are links to
read-only files, and :func:`obey_modes` has root keep to that too. docs/decisions.md says what else was thought of.

Runs in children, and where installers build from a project: the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mops import folders

_MADE_NS = 123_456_789 * 10**9  # in 1973: whole seconds, which every file system keeps
_NAME = "work"
_NAMES = 100
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION = 0x20080522
_PR_CAPBSET_DROP = 24


Entries = dict[str, str | None]
"""What is in a folder, by name: a link's target, or None for a folder."""

Tree = dict[str, Entries]
"""What is in each folder, by its relative path; a folder comes before those in it."""


class WorkingFolder:
    """A folder with a link to each file of another one, which can be made as it was again and again.

    Parameters
    ----------
    own
        The folder that it lies in, which is this process's alone; read-only, so that nothing is kept in ``..``.
    tree
        The links: :func:`links_to`.
    """

    def __init__(self, own: Path, tree: Tree):
        self._own, self._tree = own, tree
        self.made = False
        self.path = own / _NAME
        self._entries = {self.path / folder: entries for folder, entries in tree.items()}
        self._folders = [str(folder) for folder in self._entries]

    def of(self, own: Path) -> WorkingFolder:
        """Return a folder with the same links, that lies in another one."""
        return WorkingFolder(own, self._tree)

    def enter(self) -> None:
        """Make it the working directory."""
        os.chdir(self.path)

    @property
    def changed(self) -> bool:
        """Whether it has to be renewed: something was made, renamed or removed in it, or it has not been made."""
        look = os.stat  # this is done for each simulation: a path object would double its time
        try:
            for folder in self._folders:
                if look(folder).st_mtime_ns != _MADE_NS:
                    return True
        except OSError:
            return True
        return False

    def renew(self) -> None:
        """Make it as it was.

        Raises
        ------
        OSError
            There is no room for it.
        """
        self.made = True
        try:
            self._renew()
        except OSError:  # whatever a model has done to it: made anew it is as it was
            folders.remove(self._own)
            self._renew()

    def _renew(self) -> None:
        if not self.path.is_dir():
            self.path.mkdir(parents=True)
            self._own.chmod(stat.S_IRUSR | stat.S_IXUSR)
        changed = []
        for folder, entries in self._entries.items():  # what holds a folder comes before it
            if folder.stat().st_mtime_ns != _MADE_NS:
                _restore(folder, entries)
                changed.append(folder)
        for folder in changed:
            os.utime(folder, ns=(_MADE_NS, _MADE_NS))

    def written(self) -> list[str]:
        """Return the first files by name that were written or removed since it was made, by their relative paths."""
        return sorted(str(path.relative_to(self.path)) for path in self._written())[:_NAMES]

    def _written(self) -> Iterator[Path]:
        for folder, entries in self._entries.items():
            with contextlib.suppress(OSError), os.scandir(folder) as found:
                there = {entry.name: _is_as_made(entry, entries) for entry in found}
                yield from (folder / name for name in entries.keys() - there.keys())
                for name, is_as_made in there.items():
                    if not is_as_made:
                        yield from _files(folder / name)


def links_to(root: Path) -> Tree:
    """Return the links to each file of a folder, which does not change from then on."""
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


def _is_as_made(entry: os.DirEntry[str], entries: Entries) -> bool:
    if entry.name not in entries:
        return False
    target = entries[entry.name]
    if target is None:
        return entry.is_dir(follow_symlinks=False)
    return entry.is_symlink() and str(Path(entry.path).readlink()) == target


def _restore(folder: Path, entries: Entries) -> None:
    with os.scandir(folder) as found:
        there = {entry.name: _is_as_made(entry, entries) for entry in found}
    for name, is_as_made in there.items():
        if not is_as_made:
            folders.remove(folder / name)
    for name, target in entries.items():
        if there.get(name):
            continue
        if target is None:
            (folder / name).mkdir()
        else:
            (folder / name).symlink_to(target)


def _files(path: Path) -> Iterator[Path]:
    """Yield a file itself, or the files in a folder; an empty folder itself."""
    inner = [] if path.is_symlink() else [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    yield from inner or [path]


def obey_modes() -> None:
    """Have this process, and all that it starts, keep to the modes of files even as root.

    Root may write into read-only files by a capability, which is given up here. Where the kernel has none (macOS) or
    refuses, root goes on as it was.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "capset"):
        return
    # Before the other, which it needs no more then: a program that root starts gets what this set still has.
    libc.prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same for capabilities above 31
    if libc.capget(header, sets) == 0:
        for i in range(3):
            sets[i] &= ~(1 << _CAP_DAC_OVERRIDE)
        libc.capset(header, sets)
