"""Tells whether another job has the files of a new job (docs/internals/storage.md, "Reuse").

mops cannot know which files a model reads. So every file counts, except the study file and the file of parameter sets
of either job. These two count as well if another file has their name in its text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from mops.jobs.prepare import PreparedStudy, unpacked
from mops.project.bundle import TRACKED, differing_files
from mops.project.bundle_cache import cache_folder, unpack
from mops.storage.files import Files
from mops.storage.job_records import JobRecord

_NO_CODE = {".md", ".rst"}
_SETS = re.compile(rb'"parameter_sets"\s*:\s*"([^"\\]*)"')


class SameFiles:
    """Compares the files of other jobs with those of a new job, and each pair of a bundle and a study once."""

    def __init__(self, files: Files, new: JobRecord, prepared: PreparedStudy):
        self._files, self._prepared = files, prepared
        self._own = {_study_in_project(new), prepared.own_sets} - {""}
        self._different: dict[tuple[str, str], list[str]] = {}

    def different(self, record: JobRecord) -> list[str]:
        """Return a text for each file that must be the same and is not."""
        # FileNotFoundError or BundleError: the job's bundle is missing or damaged.
        if record.bundle == self._prepared.bundle.digest:
            return []
        key = record.bundle, _study_in_project(record)
        if key not in self._different:
            self._different[key] = list(self._compared(unpacked(self._files, record), key[1]))
        return self._different[key]

    def _compared(self, before: Path, study: str) -> Iterator[str]:
        bundle = self._prepared.bundle
        now = unpack(bundle.digest, lambda: bundle.data, cache_folder())
        excepted = self._own | ({study, _sets_of(before, study)} - {""} if study else set())
        names = _named_in({before, now}, excepted)
        for name, how in differing_files(bundle, before):
            if name not in excepted:
                yield f"{name} ({how})"
            elif name in names:
                yield f"{name} ({how}; {names[name]} has its name)"


def _study_in_project(record: JobRecord) -> str:
    """Return the study file of a job, relative to the project root; empty: there is none in the project."""
    study, root = PurePosixPath(record.study_file), record.project
    return study.relative_to(root).as_posix() if root and study.is_relative_to(root) else ""


def _sets_of(folder: Path, study: str) -> str:
    """Return the file of parameter sets that a study file names, relative to the project root; empty: there is none."""
    path = folder / study
    found = _SETS.search(path.read_bytes()) if path.is_file() else None
    return posixpath.normpath(posixpath.join(posixpath.dirname(study), found[1].decode())) if found else ""


def _named_in(folders: Iterable[Path], names: Iterable[str]) -> dict[str, str]:
    """Return, for each name of a file that the text of another file has, this other file."""
    found: dict[str, str] = {}
    wanted = {name: PurePosixPath(name).name.encode() for name in names}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            other = path.relative_to(folder).as_posix()
            if other in wanted or other == TRACKED or path.suffix in _NO_CODE or not path.is_file():
                continue
            text = path.read_bytes()
            found |= {name: other for name, word in wanted.items() if word in text}
    return found
