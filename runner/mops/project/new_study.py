"""Writes a new study from a template: a model, a target and a study file that run at once.

The templates are folders in ``templates/``. A name that ends in ``.py.txt`` is a Python file of the new study: these
files are not modules of mops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from mops.errors import UsageError, path_refused

_TEMPLATES = Path(__file__).with_name("templates")
_REQUIREMENTS = "requirements.txt"
STUDY = "study.json"


class Template(StrEnum):
    """The kind of model that a new study has."""

    FUNCTION = "function"
    CLASS = "class"
    STARSIM = "starsim"
    MESA = "mesa"
    SUBPROCESS = "subprocess"


@dataclass(frozen=True)
class NewStudy:
    """The files of a new study."""

    folder: Path
    files: tuple[str, ...]  # names in the folder, sorted
    missing: tuple[str, ...]  # requirements of the model that this interpreter does not have, as arguments of pip


def write_study(folder: Path, template: Template) -> NewStudy:
    """Write the files of a template to a folder, which need not exist. UsageError: some files exist already."""
    templates = sorted((_TEMPLATES / template).iterdir())
    texts = {re.sub(r"\.py\.txt$", ".py", path.name): path.read_text(encoding="utf-8") for path in templates}
    try:
        if existing := [name for name in sorted(texts) if (folder / name).exists()]:
            raise UsageError(
                f"files exist that the new study would replace: {', '.join(existing)}",
                where=str(folder),
                hint="name another folder",
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except (OSError, ValueError) as bad:
        raise path_refused(folder, "the folder of the new study", bad) from bad
    return NewStudy(folder, tuple(sorted(texts)), tuple(_missing(texts.get(_REQUIREMENTS, ""))))


def _missing(requirements: str) -> Iterator[str]:
    """Yield the requirements whose module does not exist here. In templates, a library has the name of its module."""
    for line in requirements.splitlines():
        name = re.match(r"\w+", line)
        if name is not None and find_spec(name[0]) is None:
            yield line
