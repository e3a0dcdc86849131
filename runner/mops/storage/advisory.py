"""Objects that decide nothing: signs of life, samples, text logs, the copy of a job's end.

The rule: whatever is wrong with such an object (it is missing, garbage, of a newer mops, or the storage refuses it),
the command works and the job goes on without it. A person is told once. What decides is the job's record, its schema,
its log and its parts: there a fault is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from mops.errors import CorruptRecord, NewerFormat, StorageError, StorageUnavailable
from mops.storage.backends.base import Entry
from mops.storage.files import Files

logger = logging.getLogger(__name__)

T = TypeVar("T")

_told: set[str] = set()
"""Objects whose faults were told by this process: who follows a job reads the same one every few seconds."""


def read(files: Files, path: str, parse: Callable[[bytes, str], T]) -> T | None:
    """Return what an object says; None: it is not there, or is of no use.

    Parameters
    ----------
    parse
        Takes the bytes and what errors name; raises CorruptRecord or NewerFormat.

    Raises
    ------
    StorageUnavailable
        The storage is out of reach.
    """
    return read_many(files, [path], parse)[0]


def read_many(files: Files, paths: Sequence[str], parse: Callable[[bytes, str], T]) -> list[T | None]:
    """Return what objects say, many requests at a time; as :func:`read`."""
    try:
        found = files.get_many(paths)
    except StorageUnavailable:
        raise
    except StorageError:  # one of them is refused: the others are not to miss for it
        found = [_got(files, path) for path in paths]
    return [
        None if data is None else _parsed(data, f"{files.url}/{path}", parse)
        for path, data in zip(paths, found, strict=True)
    ]


def _got(files: Files, path: str) -> bytes | None:
    try:
        return files.get_many([path])[0]
    except StorageUnavailable:
        raise
    except StorageError as refused:
        _tell(f"{files.url}/{path}", refused)
        return None


def _parsed(data: bytes, where: str, parse: Callable[[bytes, str], T]) -> T | None:
    try:
        return parse(data, where)
    except (CorruptRecord, NewerFormat) as bad:
        _tell(where, bad)
        return None


def listed(files: Files, folder: str) -> Sequence[Entry]:
    """Return the files below a folder; none where the storage refuses. Raises as :func:`read`."""
    try:
        return files.list(folder)
    except StorageUnavailable:
        raise
    except StorageError as refused:
        _tell(f"{files.url}/{folder}", refused)
        return []


def _tell(where: str, error: StorageError | NewerFormat) -> None:
    if where not in _told:
        _told.add(where)
        logger.warning("%s is left out: %s; nothing depends on it", where, error.what)


class Writer:
    """Writes for one runner. What the storage refuses is told once for each kind of object, and the job goes on.

    A storage that is out of reach is waited for some seconds here: commits, which decide, wait longer.
    """

    def __init__(self, files: Files):
        self._files = files.brief()
        self._refused: set[str] = set()

    def write(self, what: str, call: Callable[[Files], None]) -> None:
        """Call what writes an object; ``what`` names its kind."""
        try:
            call(self._files)
        except StorageError as refused:
            if what not in self._refused:
                self._refused.add(what)
                logger.warning("%s cannot be written, and the job goes on without it: %s", what, refused)
