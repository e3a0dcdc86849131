"""How a study names code: ``module``, ``module:name`` or ``path/file.py:name``. Children import this."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mops.errors import ModelError

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_FORMS = "write 'package.module', 'module:name' or 'path/file.py:name', relative to the project root"


@dataclass(frozen=True)
class EntryPoint:
    """A place in the project's code: a module or a file, and a name in it (None: the module itself)."""

    module: str | None
    path: str | None
    name: str | None

    @classmethod
    def parse(cls, text: str) -> EntryPoint:
        """Read an entry point.

        Raises
        ------
        ModelError
            It has none of the forms.
        """
        place, colon, name = text.partition(":")
        if colon and not name.isidentifier():
            raise ModelError(f"{name!r} cannot be a name in {place!r}", where=text, hint=_FORMS)
        if place.endswith(".py"):
            return cls._file(place, name, text)
        if not _MODULE.fullmatch(place):
            raise ModelError(f"{place!r} is not a module", where=text, hint=_FORMS)
        return cls(place, None, name or None)

    @classmethod
    def _file(cls, path: str, name: str, text: str) -> EntryPoint:
        if path.startswith("/") or ".." in path.split("/"):
            raise ModelError(f"{path!r} leads out of the project", where=text, hint=_FORMS)
        return cls(None, path, name or None)
