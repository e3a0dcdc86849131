"""Reads which data outside the project a model needs, and checks that it is on this machine.

``mops.toml`` in the project root lists the paths::

    [data]
    paths = ["/data/population.parquet"]

The file is in the bundle, so each worker reads it there.
"""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mops.errors import DataError, UsageError, nearest

FILE = "mops.toml"
_FORM = 'write absolute paths, like: paths = ["/data/population.parquet"]'


def read_data_paths(root: Path) -> tuple[str, ...]:
    """Return the paths that the project declares in ``mops.toml`` of the root. UsageError: the file is not valid."""
    file = root / FILE
    try:
        tables = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ()
    except OSError as bad:
        raise UsageError(f"{FILE} cannot be read: {bad.strerror}", where=str(file)) from bad
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as bad:
        raise UsageError(f"{FILE} is not TOML: {bad}", where=str(file)) from bad
    return _paths(tables, str(file))


def _paths(tables: dict[str, Any], where: str) -> tuple[str, ...]:
    for name in tables:
        if name != "data" and nearest(name, ["data"]):
            raise UsageError(f"{FILE} has an unknown table [{name}]; did you mean [data]?", where=where)
    data = tables.get("data", {})
    if not isinstance(data, dict):
        raise UsageError(f"'data' in {FILE} is not a table", where=where, hint="write [data], and 'paths' below it")
    if unknown := sorted(data.keys() - {"paths"}):
        raise UsageError(f"[data] in {FILE} has an unknown key {unknown[0]!r}", where=where, hint=_FORM)
    paths = data.get("paths", [])
    if not isinstance(paths, list) or not all(isinstance(path, str) and Path(path).is_absolute() for path in paths):
        raise UsageError(f"'paths' of [data] in {FILE} is not a list of absolute paths", where=where, hint=_FORM)
    return tuple(paths)


def check_data(paths: Iterable[str]) -> None:
    """Check that this machine has data, and that this process may read it. DataError names all that is missing."""
    missing = [path for path in paths if not os.access(path, os.R_OK)]
    if missing:
        raise DataError(
            f"the data that {FILE} declares is missing or not readable on this machine",
            where=f"{socket.gethostname()}: {', '.join(missing)}",
            hint="put the data there, or correct [data] paths in mops.toml",
        )
