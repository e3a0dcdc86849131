"""Packs the project folder as one file, with the same bytes on every machine (docs/reference/study.md, "Project")."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import zipfile
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath

from pathspec import GitIgnoreSpec

from mops.errors import BundleError
from mops.project.function_files import FunctionFiles
from mops.units import mebibytes

IGNORE_FILES = (".mopsignore", ".modelopsignore")
TRACKED = ".modelops-bundle/tracked.txt"
# The .gitignore of a folder that mops creates for results. Git and bundles leave such a folder out.
RESULTS = "# Created by mops: results, not an input of a model.\n*\n"
FILE_LIMIT_BYTES = 200 << 20
TOTAL_LIMIT_BYTES = 500 << 20
COUNT_LIMIT = 100_000  # also ends a walk over folders that link to each other without end

# A pyvenv.cfg identifies a virtual environment of any name. Build output is ignored in the root only: deeper down,
# ``dist`` and ``build`` may be packages of the model, and a missing module is worse than a needless file.
BUILT_IN_IGNORE = (
    *(".git", ".hg/", ".svn/", ".bzr/", ".jj/"),
    *("__pycache__/", "*.py[co]", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".hypothesis/", ".cache/"),
    *(".tox/", ".nox/", ".eggs/", ".ipynb_checkpoints/", ".coverage", ".coverage.*", "htmlcov/"),
    *(".venv/", "venv/", ".conda/", ".pixi/", "node_modules/"),
    *("/build/", "/dist/", "*.egg-info/"),
    *("mops-storage/", "report-*.html"),
    "*.ipynb",  # a notebook changes whenever it is saved
    *(".DS_Store", "Thumbs.db", "desktop.ini", ".idea/", ".vscode/"),
    *("*~", "*.swp", ".#*"),  # files of editors; .#name is a lock of Emacs, a broken link
)

_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_SPECIAL_FILES = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
MOST_SHOWN = 20
_BIGGEST_SHOWN = 5
COPY_BYTES = 1 << 20
_HINT = "list files that the model does not need in .mopsignore (gitignore syntax)"


@dataclass(frozen=True)
class Bundle:
    """A packed project."""

    digest: str  # hexadecimal SHA-256 of the data
    data: bytes  # a zip file, its entries stored and not compressed
    names: tuple[str, ...]  # the files in it, relative to the project root, sorted
    too_large: tuple[tuple[str, int], ...] = ()  # files that it leaves out because of their size, with their bytes


def pack(root: Path, results: Path | None = None, functions: FunctionFiles | None = None) -> Bundle:
    """Pack a project folder. The same content gives the same bytes for every clock, order and umask."""
    # The storage's folder, which holds earlier results, is left out. ``functions`` are more files, by name.
    real = Path(os.path.realpath(root))
    if not real.is_dir():
        raise BundleError("this project folder does not exist", where=str(root))
    survey = _Survey(real, results and Path(os.path.realpath(results)), functions or {})
    survey.ignored = _ignored(survey)
    survey.walk()
    survey.add_tracked()
    survey.too_large = {(name, n_bytes) for name, n_bytes in survey.too_large if name not in survey.found}
    for name in sorted(survey.functions.keys() & survey.found.keys()):
        survey.problem(name, "has the name of a file that mops writes; rename it")
    survey.check_sizes()
    survey.refuse()
    data = _zipped(survey)
    survey.refuse()
    names = tuple(sorted(survey.found.keys() | survey.functions))
    return Bundle(sha256(data).hexdigest(), data, names, tuple(sorted(survey.too_large)))


@dataclass(frozen=True, slots=True)
class _Found:
    """A file to pack. Its path has all links resolved."""

    path: Path
    size_bytes: int
    executable: bool


@dataclass
class _Survey:
    """The files of a project folder, and its problems."""

    root: Path
    results: Path | None
    functions: FunctionFiles
    ignored: GitIgnoreSpec = field(default_factory=lambda: GitIgnoreSpec.from_lines(()))
    found: dict[str, _Found] = field(default_factory=dict)
    too_large: set[tuple[str, int]] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def problem(self, name: str, message: str) -> None:
        line = f"{printable(name)}: {message}"
        if line not in self.problems:  # the walk and the tracked list may both find a file
            self.problems.append(line)

    def refuse(self) -> None:
        if not self.problems:
            return
        more = len(self.problems) - MOST_SHOWN
        lines = [*self.problems[:MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        listed = "".join(f"\n  {line}" for line in lines)
        raise BundleError(f"the project folder cannot be packed{listed}", where=str(self.root), hint=_HINT)

    def walk(self) -> None:
        """Find every file that is not ignored, without entering ignored folders."""
        # A folder's real path, the prefix of names in it, and the real folders on the way to it.
        todo = [(self.root, "", frozenset({self.root}))]
        n_folders = 0
        while todo:
            folder, prefix, above = todo.pop()
            for path in self._listed(folder, prefix):
                name = prefix + path.name
                inner = self._folder_or_file(path, name)
                if inner in above:
                    self.problem(name, "is a link to a folder that contains it")
                elif inner:
                    todo.append((inner, f"{name}/", above | {inner}))
            n_folders += 1
            if len(self.found) + n_folders > COUNT_LIMIT:
                self.problem(".", f"holds more than {COUNT_LIMIT:,} files and folders; is this the project?")
                return

    def _listed(self, folder: Path, prefix: str) -> list[Path]:
        try:
            paths = sorted(folder.iterdir())
        except OSError as bad:
            self.problem(prefix.rstrip("/") or ".", f"cannot be listed ({bad.strerror})")
            return []
        is_environment = prefix and folder / "pyvenv.cfg" in paths
        return [] if is_environment or (prefix and _holds_results(folder)) else paths

    def _folder_or_file(self, path: Path, name: str) -> Path | None:
        """Return the real path of a folder to enter, or add a file and return None; ignore what the patterns match."""
        try:
            is_folder = path.is_dir()
            ignores = self.ignored.check_file(f"{name}/" if is_folder else name).include
            if ignores:
                return None
            real = self._inside(path, name)
            if is_folder:
                return None if real == self.results else real
            if real and ignores is None and not name.endswith(".py") and real.stat().st_size > FILE_LIMIT_BYTES:
                self.too_large.add((name, real.stat().st_size))
            elif real:
                self._add(real, name)
        except OSError as bad:
            self.problem(name, _reason(bad))
        return None

    def _inside(self, path: Path, name: str) -> Path | None:
        """Return the real path; None, and a problem, for a link that leads out of the root."""
        real = Path(os.path.realpath(path, strict=True))
        if real.is_relative_to(self.root):
            return real
        self.problem(name, f"is a link out of the project, to {printable(str(real))}")
        return None

    def _add(self, real: Path, name: str) -> None:
        status = real.stat()
        fault = name_fault(name)
        if fault:
            self.problem(name, fault)
        elif not stat.S_ISREG(status.st_mode):
            kind = _SPECIAL_FILES.get(stat.S_IFMT(status.st_mode), "a device")
            self.problem(name, f"is {kind}, not a file")
        elif not os.access(real, os.R_OK):
            self.problem(name, "is not readable")
        else:
            self.found[name] = _Found(real, status.st_size, bool(status.st_mode & stat.S_IXUSR))

    def add_tracked(self) -> None:
        """Add the files that the project tracks, even ignored ones."""
        for number, line in _lines(self, TRACKED):
            if not line.strip() or line.startswith("#"):
                continue
            name = str(PurePosixPath(line.strip()))
            if fault := name_fault(name):
                self.problem(f"{TRACKED}, line {number}", f"{printable(name)} {fault}")
            elif name not in self.found:
                try:
                    if real := self._inside(self.root / name, name):
                        self._add(real, name)
                except (FileNotFoundError, NotADirectoryError):
                    listed = f"is listed in {TRACKED}, line {number}, and does not exist"
                    self.problem(name, f"{listed}; restore it or drop the line")
                except OSError as bad:
                    self.problem(name, _reason(bad))

    def check_sizes(self) -> None:
        """Note files and projects that are too large to send to every worker."""
        biggest = sorted(self.found.items(), key=lambda item: (-item[1].size_bytes, item[0]))
        for name, file in biggest:
            if file.size_bytes > FILE_LIMIT_BYTES:
                limit = mebibytes(FILE_LIMIT_BYTES)
                self.problem(name, f"has {mebibytes(file.size_bytes)}; the limit for a file is {limit}")
        total_bytes = sum(file.size_bytes for _, file in biggest) + sum(map(len, self.functions.values()))
        if total_bytes > TOTAL_LIMIT_BYTES:
            sizes = (f"{printable(name)} ({mebibytes(file.size_bytes)})" for name, file in biggest[:_BIGGEST_SHOWN])
            limit = mebibytes(TOTAL_LIMIT_BYTES)
            what = f"has {mebibytes(total_bytes)} in all; the limit is {limit}; the largest: {', '.join(sizes)}"
            self.problem(".", what)


def _holds_results(folder: Path) -> bool:
    mark = folder / ".gitignore"
    try:
        return mark.is_file() and mark.read_bytes() == RESULTS.encode()
    except OSError:  # the patterns decide whether it is a problem
        return False


def _ignored(survey: _Survey) -> GitIgnoreSpec:
    """Return the built-in patterns, then the project's, which may cancel built-in ones (``!build/``)."""
    patterns = list(BUILT_IN_IGNORE)
    for file in IGNORE_FILES:
        for number, line in _lines(survey, file):
            try:
                GitIgnoreSpec.from_lines([line])
            except (ValueError, re.error):  # re.error: pathspec does not check ranges like [z-a]
                survey.problem(f"{file}, line {number}", f"{line!r} is not a gitignore pattern")
            else:
                patterns.append(line)
    return GitIgnoreSpec.from_lines(patterns)


def _lines(survey: _Survey, file: str) -> list[tuple[int, str]]:
    """Return the numbered lines of a project file; none if the file does not exist."""
    try:
        text = (survey.root / file).read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except UnicodeDecodeError as bad:
        survey.problem(file, f"is not UTF-8 text (byte {bad.start})")
        return []
    except OSError as bad:
        survey.problem(file, _reason(bad))
        return []
    return list(enumerate(text.splitlines(), 1))


def _zipped(survey: _Survey) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(survey.found.keys() | survey.functions):
            if name in survey.functions:
                archive.writestr(_entry(name), survey.functions[name])
                continue
            found = survey.found[name]
            entry = _entry(name, executable=found.executable)
            try:
                # In pieces, so that a file of a million parameter sets is not in memory twice.
                with found.path.open("rb") as file, archive.open(entry, "w") as packed:
                    shutil.copyfileobj(file, packed, COPY_BYTES)
            except OSError as bad:
                survey.problem(name, _reason(bad))
    return buffer.getvalue()


def _entry(name: str, *, executable: bool = False) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _TIMESTAMP)
    entry.create_system = _UNIX
    entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
    return entry


def name_fault(name: str) -> str | None:
    """Return why a bundle cannot hold a file of this name; None: it can."""
    if not name.isascii() and name.encode(errors="replace").decode() != name:
        return "has a name that is not UTF-8; rename it"
    if "\0" in name or "\\" in name or re.match(r"[A-Za-z]:", name):
        return "has a name that other systems read as a path (backslash, drive letter); rename it"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "is not a plain path under the project root"
    return None


def _reason(bad: OSError) -> str:
    if isinstance(bad, FileNotFoundError):
        return "does not exist: it was just removed, or is a broken link"
    return f"cannot be read ({bad.strerror})"


def printable(name: str) -> str:
    """Return a file's name as one line of text."""
    return name if name.isprintable() else ascii(name)


def is_executable(entry: zipfile.ZipInfo) -> bool:
    """Return whether the owner may execute the file."""
    return bool(entry.external_attr >> 16 & stat.S_IXUSR)
