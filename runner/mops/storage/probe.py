"""Checks that a storage does what jobs rely on.

``helm test`` runs it as a runner, python -m mops.storage.probe URL, and with --read-only as a worker.
"""

from __future__ import annotations

import os
import sys

from mops.errors import MopsError, StorageError
from mops.storage.backends.base import Put
from mops.storage.files import Files

PROBED = "this account can create, read, list and remove files"
"""What is true if :func:`probe` has raised nothing."""

_PROBED_READING = "this account can list and read files"

_FOLDER = "probe"


def probe(files: Files) -> None:
    """Create a file, try to create it again, read it, list it and remove it.

    StorageError: the storage refuses one of these steps, is out of reach, or replaces a file that exists.
    """
    path = f"{_FOLDER}/{os.urandom(8).hex()}"
    first, second = b"the first file", b"the second file"
    files.create(path, first)
    try:
        if files.put_new(path, second) is not Put.OTHER or files.get(path) != first:
            raise StorageError(
                "the storage replaces a file that exists, so two runners of a job could lose results",
                where=f"{files.url}/{path}",
                hint="use a storage that can create a file only if it is absent",
            )
        if path not in [entry.path for entry in files.list(_FOLDER)]:
            raise StorageError(
                "the storage does not list a file that it has just created",
                where=f"{files.url}/{path}",
                hint="use a storage whose lists are up to date",
            )
    finally:
        files.remove([path])
        files.prune(_FOLDER)


def probe_reading(files: Files) -> None:
    """List the storage, and read a file that does not exist: a storage refuses an account before it looks for the file.

    StorageError: the storage refuses one of these steps, or is out of reach.
    """
    files.folders("")
    files.get_many([f"{_FOLDER}/{os.urandom(8).hex()}"])


def main() -> None:
    """Probe the storage with the URL of the command line; exit 4 with the reason if it fails."""
    url, *options = sys.argv[1:]
    check, passed = (probe_reading, _PROBED_READING) if options == ["--read-only"] else (probe, PROBED)
    try:
        check(Files.open(url).brief())
    except MopsError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    sys.stdout.write(f"{url}: {passed}\n")


if __name__ == "__main__":
    main()
