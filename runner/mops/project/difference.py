"""Tells what differs between the project of a job and a present one, and what of it may change the model's results.

reached_code.py decides about Python code. A changed or removed data file counts: a model may compute its name. An added
file counts if code of the model may find it. Texts, studies and their parameter sets count if an input names them.
"""

from __future__ import annotations

import io
import json
import posixpath
import re
import stat
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

from mops.project.bundle import COPY_BYTES, IGNORE_FILES, TRACKED, Bundle, is_executable
from mops.project.bundle_cache import DEPENDENCIES
from mops.project.function_files import is_function_file
from mops.project.missing_code import python_files
from mops.project.mops_toml import FILE, read_data_paths
from mops.project.project import REGISTRY, ModelSpec
from mops.project.reached_code import Reached, Undecided, reached
from mops.study.entry_point import EntryPoint

_TEXTS = {".md", ".rst", ".log", ".ipynb"}
_OF_MOPS = {FILE, *IGNORE_FILES, TRACKED, REGISTRY}
_LISTS_FOLDERS = re.compile(r"\b(i?glob|rglob|iterdir|listdir|scandir|walk)\s*\(|[\"'][^\"'\n]*\*[^\"'\n]*[\"']")
_SETS = re.compile(rb'"parameter_sets"\s*:\s*"([^"\\]*)"')


def differing_files(bundle: Bundle, before: Path) -> Iterator[tuple[str, str]]:
    """Yield each file that differs between a bundle and an unpacked one, Python first: added, removed or changed."""
    old = {path.relative_to(before).as_posix(): path for path in before.rglob("*") if path.is_file()}
    with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
        new = {entry.filename: entry for entry in archive.infolist()}
    for name in sorted(old.keys() | new.keys(), key=lambda name: (not name.endswith(".py"), name)):
        if name not in old:
            yield name, "added"
        elif name not in new:
            yield name, "removed"
        elif not _is_same(new[name], old[name]):
            yield name, "changed"


def _is_same(entry: zipfile.ZipInfo, path: Path) -> bool:
    found = path.stat()
    if found.st_size != entry.file_size or is_executable(entry) != bool(found.st_mode & stat.S_IXUSR):
        return False
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(COPY_BYTES):
            checksum = zlib.crc32(piece, checksum)
    return checksum == entry.CRC


@dataclass(frozen=True)
class Difference:
    """What differs between the files of a job and a bundle."""

    before: Path  # the folder with the job's files
    bundle: Bundle
    now: Path  # the folder with the files of the bundle
    spec: ModelSpec  # of the bundle
    old_targets: tuple[str, ...]  # of the job

    @cached_property
    def files(self) -> dict[str, str]:
        """Each file that differs, Python first, and how: added, removed or changed."""
        return dict(differing_files(self.bundle, self.before))

    def of_model(self, root: Path | None = None) -> list[str]:
        """Return the files that may change what the model computes."""
        return self._of_entry(self.spec.model, root)

    def of_model_and_targets(self, root: Path | None = None) -> list[str]:
        """Return the files that may change what the model or a target computes."""
        entries = (self.spec.model, *self.spec.targets)
        return list(dict.fromkeys(name for entry in entries for name in self._of_entry(entry, root)))

    def _of_entry(self, entry: str, root: Path | None) -> list[str]:
        """Return the files that may change what the model or target at an entry point computes."""
        # If the project in `root` still has a file that left the bundle, .mopsignore says that no model reads it.
        kept_out = {name for name, how in self.files.items() if how == "removed" and root and (root / name).is_file()}
        changed = {name: how for name, how in self.files.items() if name not in kept_out}
        if not changed:
            return []
        code = [
            _reached_in(self.before, replace(self.spec, model=entry, targets=self.old_targets)),
            _reached_in(self.now, replace(self.spec, model=entry)),
        ]
        old, new = [one.files if one else {} for one in code]
        is_decided = all(code)
        differing = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        if is_decided:
            text = "\n".join(one.text for one in code if one)
        else:
            text = "\n".join(text for folder in (self.before, self.now) for text in _sources(folder).values())
        counting = [
            name for name, how in changed.items() if self._may_count(entry, name, how, text, is_decided, differing)
        ]
        if counting or not is_decided:
            return counting
        # A file that did not change may run on one side only, because other code or another target imports it.
        return sorted(name for name in differing if old.get(name, []) != new.get(name, []))

    def _may_count(
        self, entry: str, name: str, how: str, text: str, is_decided: bool, differing: Collection[str]
    ) -> bool:
        path = PurePosixPath(name)
        if is_function_file(name):  # the digest of the functions is in the Python file
            return name == EntryPoint.parse(entry).file
        if name.endswith(".py"):
            return not is_decided or name in differing
        if name == FILE and read_data_paths(self.before) != read_data_paths(self.now):
            return True
        if name in _OF_MOPS:
            return path.name in text
        if name in self._studies:
            return path.name in text or name in self._named_in_data
        if path.suffix in _TEXTS:
            is_found = bool(re.search(rf"{re.escape(path.suffix)}[\"']", text))  # as in `glob("*.md")`
            return path.name in text or is_found or name in self._named_in_data
        if how != "added" or not is_decided or name in DEPENDENCIES:
            return True
        return bool(_LISTS_FOLDERS.search(text)) or _is_named(name, text)

    @cached_property
    def _studies(self) -> Collection[str]:
        """The study files, and the files of parameter sets that they name."""
        found = set()
        for folder in (self.before, self.now):
            for path in filter(Path.is_file, folder.rglob("*.json")):
                data = path.read_bytes()
                if b'"parameter_sets"' in data and _is_study(data):
                    name = path.relative_to(folder).as_posix()
                    found.add(name)
                    if sets := _SETS.search(data):
                        found.add(posixpath.normpath(posixpath.join(posixpath.dirname(name), sets[1].decode())))
        return found

    @cached_property
    def _named_in_data(self) -> Collection[str]:
        """The changed texts and studies whose names are in the text of a file that a model may read."""
        of_people = {one for one in self.files if PurePosixPath(one).suffix in _TEXTS or one in self._studies}
        words = {one: PurePosixPath(one).name.encode() for one in of_people}
        found: set[str] = set()
        for folder in (self.before, self.now):
            for path in folder.rglob("*"):
                other = path.relative_to(folder).as_posix()
                if path.suffix in (*_TEXTS, ".py") or other in (*self._studies, *_OF_MOPS) or is_function_file(other):
                    continue
                if path.is_file():
                    data = path.read_bytes()
                    found |= {one for one, word in words.items() if word in data}
        return found


@lru_cache(maxsize=16)  # the model and each target, in one present project and many earlier ones
def _reached_in(folder: Path, spec: ModelSpec) -> Reached | None:
    """Return the code that a model reaches in an unpacked bundle; None: undecided."""
    try:
        return reached(_sources(folder), spec)
    except Undecided:
        return None


def _sources(folder: Path) -> dict[str, str]:
    # Bytes that are not UTF-8 stay apart: the parser refuses them, which makes the code undecided.
    return {
        name: (folder / name).read_text(encoding="utf-8-sig", errors="surrogateescape") for name in python_files(folder)
    }


def _is_study(text: bytes) -> bool:
    try:
        data = json.loads(text)
    except ValueError:
        return False
    return isinstance(data, dict) and {"model", "parameter_sets"} <= data.keys()


def _is_named(name: str, code: str) -> bool:
    """Tell whether code has the name of a file, of one of its folders, or its ending."""
    path = PurePosixPath(name)
    words = [path.name.partition(".")[0], *path.parts[:-1]]
    return path.suffix in code or any(re.search(rf"\b{re.escape(word)}\b", code) for word in words)
