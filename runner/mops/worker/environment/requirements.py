"""Reads what a bundle asks to install for its model, and decides whether two bundles can share an environment.

:mod:`mops.worker.environment.install` makes the environment. docs/internals/dependencies.md has the rules.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from mops.errors import InstallError

REQUIREMENTS, LOCK, PROJECT = "requirements.txt", "uv.lock", "pyproject.toml"
_KEY_DIGITS = 32
_LINES_SHOWN, _LINE_CHARACTERS = 15, 300

_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")
_OPTION = re.compile(
    r"(-i|--index-url|--extra-index-url|--trusted-host|--no-index|--pre|--prefer-binary|--only-binary|--no-binary"
    r"|--require-hashes|--use-feature)([\s=].*)?",
    re.DOTALL,
)
_COMMENT = re.compile(r"(^|\s+)#.*$", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s'\"]+@")

_IN_THE_BUNDLE = {"editable", "directory", "path", "virtual"}
_WITHOUT_HASH = {"git", "editable", "directory", "virtual"}


@dataclass(frozen=True)
class Dependencies:
    """The dependencies of a project.

    Parameters
    ----------
    file
        The name of the file that lists them.
    content
        The texts that mops has read.
    of_bundle
        Whether they may name other files of the bundle. Bundles share no environment then.
    hashed
        Whether each package of a lock has a hash.
    requirements
        A line for each dependency in ``pyproject.toml``.
    """

    file: str
    content: tuple[str, ...]
    of_bundle: bool = False
    hashed: bool = False
    requirements: tuple[str, ...] = ()

    def key(self, bundle: str, machine: Iterable[str], variables: Mapping[str, str]) -> str:
        """Return the name of the environment that has these dependencies.

        Parameters
        ----------
        bundle
            The bundle's digest.
        machine
            The Python and the packages below the environment.
        variables
            The installer's variables. The name is a hash, and so reveals no secret.
        """
        named = {name for text in self.content for name in _VARIABLE.findall(text)}
        told = {name: value for name, value in variables.items() if name in named or name.startswith(("PIP_", "UV_"))}
        parts = [self.file, self.content, bundle if self.of_bundle else "", list(machine), sorted(told.items())]
        return sha256(json.dumps(parts).encode()).hexdigest()[:_KEY_DIGITS]


def read_dependencies(root: Path) -> Dependencies | None:
    """Return the dependencies of a project; None: the project lists none.

    Parameters
    ----------
    root
        The project root.

    Raises
    ------
    InstallError
        The file cannot be read, or pip cannot install what it lists.
    """
    texts = {
        name: (root / name).read_bytes().decode("utf-8-sig", errors="replace")
        for name in (REQUIREMENTS, LOCK, PROJECT)
        if (root / name).is_file()
    }
    if REQUIREMENTS in texts:
        return _of_requirements(texts[REQUIREMENTS])
    if LOCK in texts and PROJECT in texts:
        return _of_lock(texts[LOCK], texts[PROJECT])
    return _of_project(texts[PROJECT]) if PROJECT in texts else None


def _of_requirements(text: str) -> Dependencies | None:
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = [line for line in map(str.strip, _COMMENT.sub("", joined).splitlines()) if line]
    if not lines:
        return None
    return Dependencies(REQUIREMENTS, (text,), of_bundle=any(map(_may_name_a_file, lines)))


def _may_name_a_file(line: str) -> bool:
    """Tell whether a line may name a file of the bundle.

    A line that mops cannot read counts as one: a needless environment is better than a wrong environment.
    """
    if _OPTION.fullmatch(line):
        return "file:" in line
    try:
        requirement = Requirement(line.partition(" --")[0])  # pip's options for this requirement follow, like --hash
    except InvalidRequirement:
        return True
    url = requirement.url or "https://"
    return "://" not in url or "file:" in url or requirement.name.lower().endswith(_ARCHIVES)


def _of_lock(lock: str, project: str) -> Dependencies | None:
    sources = [package.get("source", {}) for package in _parsed(lock, LOCK).get("package", [])]
    others = [source for source in sources if "." not in source.values()]  # "." is the project itself
    if not others:
        return None
    hashed = not any(source.keys() & _WITHOUT_HASH for source in others)
    of_bundle = any(source.keys() & _IN_THE_BUNDLE or "://" not in source.get("registry", "://") for source in others)
    return Dependencies(LOCK, (lock, project), of_bundle, hashed)


def _of_project(text: str) -> Dependencies | None:
    read = _parsed(text, PROJECT)
    requirements = tuple(read.get("project", {}).get("dependencies", ()))
    if not requirements:
        return None
    if sources := read.get("tool", {}).get("uv", {}).get("sources"):
        raise InstallError(
            f"pip ignores the sources of {', '.join(sources)}, which only uv reads",
            where=f"{PROJECT}: [tool.uv.sources]",
            hint="add uv.lock to the project (uv lock), or a requirements.txt",
        )
    return Dependencies(PROJECT, requirements, any(map(_may_name_a_file, requirements)), requirements=requirements)


def _parsed(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as bad:
        raise InstallError(f"the model's dependencies cannot be read: {bad}", where=file) from bad


def masked(text: str) -> str:
    """Return a text without the user names and passwords of its URLs."""
    return _CREDENTIALS.sub("****@", text)


def last_lines(said: str) -> str:
    """Return the last lines of an installer's output for an error message, indented and without passwords."""
    lines = [line.rstrip()[:_LINE_CHARACTERS] for line in masked(said).splitlines() if line.strip()]
    return "".join(f"\n  {line}" for line in lines[-_LINES_SHOWN:])
