"""Reads and writes advisory files: live records, samples, text logs, the copy of a job's end.

Advisory files decide nothing. One may be missing, garbage or of another format, or the storage may refuse it: commands
and jobs continue without it, after one warning. The job's record, its schema, its log and its parts decide: there a
fault is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from mops.errors import CorruptRecord, OtherFormat, StorageError, StorageUnavailable
from mops.storage.backends.base import Entry
from mops.storage.files import Files

logger = logging.getLogger(__name__)

T = TypeVar("T")

_told: set[str] = set()  # places whose fault is logged: `mops jobs watch` reads the same file every few seconds


def read(files: Files, path: str, parse: Callable[[bytes, str], T]) -> T | None:
    """Return the content of an advisory file; None: it is missing or unusable.

    ``parse`` takes the bytes and the place that its errors name: CorruptRecord, OtherFormat. StorageUnavailable: the
    storage is out of reach.
    """
    return read_many(files, [path], parse)[0]


def read_many(files: Files, paths: Sequence[str], parse: Callable[[bytes, str], T]) -> list[T | None]:
    """Return the contents of several advisory files, with many requests at a time; as :func:`read`.

    If the storage refuses one of them, all are missing.
    """
    try:
        found = files.get_many(paths)
    except StorageUnavailable:
        raise
    except StorageError as refused:
        _tell(f"{files.url}/{paths[0]}", refused)
        return [None] * len(paths)
    parsed: list[T | None] = []
    for path, data in zip(paths, found, strict=True):
        where = f"{files.url}/{path}"
        try:
            parsed.append(None if data is None else parse(data, where))
        except (CorruptRecord, OtherFormat) as bad:
            _tell(where, bad)
            parsed.append(None)
    return parsed


def listed(files: Files, folder: str) -> Sequence[Entry]:
    """Return the files below a folder; none if the storage refuses. Raises as :func:`read`."""
    try:
        return files.list(folder)
    except StorageUnavailable:
        raise
    except StorageError as refused:
        _tell(f"{files.url}/{folder}", refused)
        return []


def _tell(where: str, error: StorageError | OtherFormat) -> None:
    if where not in _told:
        _told.add(where)
        logger.warning("%s is left out: %s; no result depends on it", where, error.what)


class Writer:
    """Writes one runner's advisory files. If the storage refuses a kind of file, the writer logs that once.

    It waits only some seconds for a storage that is out of reach. Commits wait longer.
    """

    def __init__(self, files: Files):
        self._files = files.brief()
        self._refused: set[str] = set()

    def write(self, what: str, call: Callable[[Files], None]) -> None:
        """Call a function that writes a file of the kind ``what``."""
        try:
            call(self._files)
        except StorageError as refused:
            if what not in self._refused:
                self._refused.add(what)
                logger.warning("%s cannot be written, and the job continues without it: %s", what, refused.what)
