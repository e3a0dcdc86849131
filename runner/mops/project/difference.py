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
import tomllib
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from mops.project.bundle import COPY_BYTES, IGNORE_FILES, TRACKED, Bundle, is_executable
from mops.project.function_files import is_function_file
from mops.project.mops_toml import FILE
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
    spec: ModelSpec  # the model, and the targets of both

    @cached_property
    def files(self) -> dict[str, str]:
        """Each file that differs, Python first, and how: added, removed or changed."""
        return dict(differing_files(self.bundle, self.before))

    def of_model(self, root: Path | None = None) -> list[str]:
        """Return the files that may change what the model computes."""
        # If the project in `root` still has a file that left the bundle, .mopsignore says that no model reads it.
        kept_out = {name for name, how in self.files.items() if how == "removed" and root and (root / name).is_file()}
        changed = {name: how for name, how in self.files.items() if name not in kept_out}
        if not changed:
            return []
        sources = [_sources(self.before), _sources(self.now)]
        try:
            code = [reached(one, self.spec) for one in sources]
            text = "\n".join(one.text for one in code)
        except Undecided:
            code, text = [], "\n".join(text for one in sources for text in one.values())
        return [name for name, how in changed.items() if self._may_count(name, how, code, text)]

    def _may_count(self, name: str, how: str, code: list[Reached], text: str) -> bool:
        if is_function_file(name):  # the digest of the functions is in the Python file
            return name == EntryPoint.parse(self.spec.model).file
        if name.endswith(".py"):
            return not code or code[0].files.get(name) != code[1].files.get(name)
        if name == FILE and _data(self.before) != _data(self.now):
            return True
        if name in _OF_MOPS:
            return PurePosixPath(name).name in text
        if PurePosixPath(name).suffix in _TEXTS or name in self._studies:
            return PurePosixPath(name).name in text or self._is_in_data(name)
        return how != "added" or not code or bool(_LISTS_FOLDERS.search(text)) or _is_named(name, text)

    @cached_property
    def _studies(self) -> Collection[str]:
        """The study files, and the files of parameter sets that they name."""
        found = set()
        for folder in (self.before, self.now):
            for path in folder.rglob("*.json"):
                data = path.read_bytes()
                if b'"parameter_sets"' in data and _is_study(data):
                    name = path.relative_to(folder).as_posix()
                    found.add(name)
                    if sets := _SETS.search(data):
                        found.add(posixpath.normpath(posixpath.join(posixpath.dirname(name), sets[1].decode())))
        return found

    def _is_in_data(self, name: str) -> bool:
        """Tell whether a file that a model may read has the name of another one in its text."""
        word = PurePosixPath(name).name.encode()
        for folder in (self.before, self.now):
            for path in folder.rglob("*"):
                other = path.relative_to(folder).as_posix()
                if path.suffix in (*_TEXTS, ".py") or other in (*self._studies, *_OF_MOPS) or is_function_file(other):
                    continue
                if path.is_file() and word in path.read_bytes():
                    return True
        return False


def _sources(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8-sig", errors="replace")
        for path in folder.rglob("*.py")
    }


def _data(folder: Path) -> object:
    """Return what ``mops.toml`` says of data outside of the project."""
    file = folder / FILE
    return tomllib.loads(file.read_bytes().decode("utf-8-sig")).get("data") if file.is_file() else None


def _is_study(text: bytes) -> bool:
    try:
        data = json.loads(text)
    except ValueError:
        return False
    return isinstance(data, dict) and {"model", "parameter_sets"} <= data.keys()


def _is_named(name: str, code: str) -> bool:
    """Tell whether code has the name of a file, of one of its folders, or its ending."""
    path = PurePosixPath(name)
    words = [path.stem, *path.parts[:-1]]
    return path.suffix in code or any(re.search(rf"\b{re.escape(word)}\b", code) for word in words)
