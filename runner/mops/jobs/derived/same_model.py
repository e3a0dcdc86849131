"""Compares the files of a project with those of a job."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mops.jobs.derived.model_files import model_files
from mops.project.bundle import Bundle, differing_files
from mops.project.project import ModelSpec


@dataclass(frozen=True)
class CodeChange:
    """The files that differ between a job's project and a bundle: ``added``, ``removed`` or ``changed``."""

    files: Mapping[str, str]
    before: Path  # the folder with the job's files
    bundle: Bundle
    root: Path  # the folder that was packed as `bundle`

    @classmethod
    def between(cls, before: Path, bundle: Bundle, root: Path) -> CodeChange:
        """Compare a job's files with a bundle."""
        return cls(dict(differing_files(bundle, before)), before, bundle, root)

    def of_model(self, spec: ModelSpec) -> list[str]:
        """Return the files that may belong to the model."""
        # A file that is left out now and still there: .mopsignore says that the model does not read it.
        known = {n: how for n, how in self.files.items() if how != "removed" or not (self.root / n).is_file()}
        return model_files(known, self._sources(), spec) if known else []

    def _sources(self) -> dict[str, str]:
        """Return the text of each Python and JSON file, before and after the change."""
        with zipfile.ZipFile(io.BytesIO(self.bundle.data)) as archive:
            new = {name: archive.read(name) for name in archive.namelist() if name.endswith((".py", ".json"))}
        found = {name: data.decode(errors="replace") for name, data in new.items()}
        for path in (*self.before.rglob("*.py"), *self.before.rglob("*.json")):
            name = path.relative_to(self.before).as_posix()
            text = path.read_text(encoding="utf-8", errors="replace")
            if name.endswith(".py"):
                found[name] = f"{text}\n{found.get(name, '')}"
            else:
                found.setdefault(name, text)
        return found
