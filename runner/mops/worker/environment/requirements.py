"""What a bundle asks to have installed for its model, what decides whether two ask for the same, and how it is shown.

Reads the bundle's root and runs nothing; making the environment is :mod:`mops.worker.environment.install`'s. The rule
is told in docs/internals/dependencies.md.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
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
    """What a project asks for.

    Parameters
    ----------
    file
        The file that says it, by name.
    content
        All that was read to know it.
    of_bundle
        Whether it names other files of the bundle, so that the bundle decides as well.
    hashed
        Of a lock: whether each of its packages has a hash.
    requirements
        Of ``pyproject.toml``: a line for each dependency.
    """

    file: str
    content: tuple[str, ...]
    of_bundle: bool = False
    hashed: bool = False
    requirements: tuple[str, ...] = ()

    def key(self, bundle: str, machine: Iterable[str], variables: Mapping[str, str]) -> str:
        """Return the name of the environment that has it.

        Parameters
        ----------
        bundle
            The bundle's digest.
        machine
            What the environment stands on.
        variables
            The installer's. A hash of them tells nothing of what they are.
        """
        named = {name for text in self.content for name in _VARIABLE.findall(text)}
        told = {name: value for name, value in variables.items() if name in named or name.startswith(("PIP_", "UV_"))}
        parts = [self.file, self.content, bundle if self.of_bundle else "", list(machine), sorted(told.items())]
        return sha256(json.dumps(parts).encode()).hexdigest()[:_KEY_DIGITS]


def read_dependencies(root: Path) -> Dependencies | None:
    """Return what a project asks for; None: nothing.

    Parameters
    ----------
    root
        The project root.

    Raises
    ------
    InstallError
        Its file cannot be read, or pip cannot do what it says.
    """
    there = [name for name in (REQUIREMENTS, LOCK, PROJECT) if (root / name).is_file()]
    if REQUIREMENTS in there:
        return _of_requirements(_text(root / REQUIREMENTS))
    if LOCK in there and PROJECT in there:
        return _of_lock(_text(root / LOCK), _text(root / PROJECT))
    return _of_project(_text(root / PROJECT)) if PROJECT in there else None


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8-sig", errors="replace")


def _of_requirements(text: str) -> Dependencies | None:
    lines = list(_logical_lines(text))
    if not lines:
        return None
    return Dependencies(REQUIREMENTS, (text,), of_bundle=any(map(_may_name_a_file, lines)))


def _logical_lines(text: str) -> Iterator[str]:
    joined = re.sub(r"\\\r?\n", " ", text)
    yield from (line for line in map(str.strip, _COMMENT.sub("", joined).splitlines()) if line)


def _may_name_a_file(line: str) -> bool:
    """Tell whether a line may name a file of the bundle.

    Every line that is not known counts as one: an environment too many is better than a wrong one.
    """
    if _OPTION.fullmatch(line):
        return "file:" in line
    try:
        requirement = Requirement(line.partition(" --")[0])  # without pip's options for this requirement: --hash
    except InvalidRequirement:
        return True
    url = requirement.url or "https://"
    return "://" not in url or "file:" in url or requirement.name.lower().endswith(_ARCHIVES)


def _of_lock(lock: str, project: str) -> Dependencies | None:
    sources = [package.get("source", {}) for package in _parsed(lock, LOCK).get("package", [])]
    others = [source for source in sources if "." not in source.values()]  # the project itself
    if not others:
        return None
    hashed = not any(source.keys() & _WITHOUT_HASH for source in others)
    return Dependencies(LOCK, (lock, project), any(map(_is_in_the_bundle, others)), hashed)


def _is_in_the_bundle(source: Mapping[str, str]) -> bool:
    return bool(source.keys() & _IN_THE_BUNDLE) or "://" not in source.get("registry", "://")


def _of_project(text: str) -> Dependencies | None:
    read = _parsed(text, PROJECT)
    requirements = tuple(read.get("project", {}).get("dependencies", ()))
    if not requirements:
        return None
    if sources := read.get("tool", {}).get("uv", {}).get("sources"):
        raise InstallError(
            f"only uv knows where {', '.join(sources)} is to come from; pip would take its index's of the same name",
            where=f"{PROJECT}: [tool.uv.sources]",
            hint="have uv.lock in the project (uv lock), or a requirements.txt",
        )
    return Dependencies(PROJECT, requirements, any(map(_may_name_a_file, requirements)), requirements=requirements)


def _parsed(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as bad:
        raise InstallError(f"the model's dependencies cannot be read: {bad}", where=file) from bad


def masked(text: str) -> str:
    """Return text without the names and passwords of its URLs."""
    return _CREDENTIALS.sub("****@", text)


def last_lines(said: str) -> str:
    """Return the last lines that an installer wrote, fit to be shown: each on a line of its own, indented."""
    lines = [line.rstrip()[:_LINE_CHARACTERS] for line in masked(said).splitlines() if line.strip()]
    return "".join(f"\n  {line}" for line in lines[-_LINES_SHOWN:])
