"""Reads how a study names code: ``module``, ``module:name`` or ``path/file.py:name``. Child processes import this."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mops.errors import ModelError

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_FORMS = "write 'package.module', 'module:name' or 'path/file.py:name', relative to the project root"


@dataclass(frozen=True)
class EntryPoint:
    """A module or a file of the project, and a name in it; None: the module itself."""

    module: str | None
    path: str | None
    name: str | None

    @property
    def file(self) -> str:
        """The relative path of its file, if the module is not a package."""
        return self.path or f"{str(self.module).replace('.', '/')}.py"

    @classmethod
    def parse(cls, text: str) -> EntryPoint:
        """Read an entry point. ModelError: the text has none of its forms."""
        place, colon, name = text.partition(":")
        if colon and not name.isidentifier():
            raise ModelError(f"{name!r} after the colon is not a Python name", where=text, hint=_FORMS)
        if not place.endswith(".py"):
            if not _MODULE.fullmatch(place):
                raise ModelError(f"{place!r} is not a module", where=text, hint=_hint(place))
            return cls(place, None, name or None)
        parts = place.replace("\\", "/").split("/")
        if parts[0] == "" or ".." in parts:
            raise ModelError(f"{place!r} is outside the project", where=text, hint=_FORMS)
        if "\\" in place or parts[-1] == ".py":
            raise ModelError(f"{place!r} is not a file's path", where=text, hint=_hint(place))
        return cls(None, place, name or None)


_OTHER_COLUMNS = ("param_id", "group", "loss")  # columns that a table of losses has in any case


def loss_labels(losses: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the label of each loss (target, name): the target's function, and ``.name`` if it has several losses."""
    # If two functions have the same name, or one has the name of another column, the label has the whole entry point.
    pairs = list(dict.fromkeys(losses))
    of_target = Counter(target for target, _ in pairs)
    of_function = Counter(target.rpartition(":")[2] for target in of_target)
    found = {}
    for target, name in pairs:
        function = target.rpartition(":")[2]
        label = function if of_function[function] == 1 and function not in _OTHER_COLUMNS else target
        found[target, name] = label if of_target[target] == 1 else f"{label}.{name}"
    return found


def _hint(place: str) -> str:
    as_path = place.replace("\\", "/").removesuffix(".py")
    if "/" in as_path and as_path != "/":
        return f"write the file with slashes and its ending: '{as_path}.py:name'"
    return _FORMS
