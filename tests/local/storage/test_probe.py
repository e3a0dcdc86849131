"""The probe with which ``helm test`` checks a storage."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from made import hooked

from mops.errors import StorageError
from mops.storage.backends.base import Data, Entry
from mops.storage.backends.local import LocalFolder
from mops.storage.files import Files
from mops.storage.probe import probe, probe_reading


def test_a_storage_passes_and_keeps_nothing_of_the_probe(files: Files) -> None:
    probe(files)
    assert files.list("") == []


class Overwriting(LocalFolder):
    """A storage that ignores the condition of a create, as some servers for S3 do."""

    def put_new(self, path: str, data: Data) -> bool:
        self.put(path, data)
        return True


class ListingLate(LocalFolder):
    """A storage that lists a file some time after its creation."""

    def list(self, folder: str) -> list[Entry]:
        return []


@pytest.mark.parametrize(("kind", "what"), [(Overwriting, "replaces a file that exists"), (ListingLate, "not list")])
def test_a_storage_that_would_lose_results_is_refused(tmp_path: Path, kind: type[LocalFolder], what: str) -> None:
    files = Files(kind(tmp_path), str(tmp_path))
    with pytest.raises(StorageError, match=what):
        probe(files)
    assert list(tmp_path.rglob("*")) == []


def run(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mops.storage.probe", url, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_probe_of_a_worker_writes_nothing(tmp_path: Path) -> None:
    passed = run(str(tmp_path), "--read-only")
    assert (passed.returncode, passed.stderr) == (0, "")
    assert passed.stdout == f"{tmp_path}: this account can list and read files\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("refused", ["folders", "get"])
def test_a_worker_must_be_able_to_list_and_to_read(tmp_path: Path, refused: str) -> None:
    def refuse(name: str, _path: str | None) -> None:
        if name == refused:
            raise PermissionError(errno.EACCES, "refused")

    with pytest.raises(StorageError, match="refuses access"):
        probe_reading(hooked(Files.open(str(tmp_path)), refuse))


def test_the_program_says_how_the_probe_ended(tmp_path: Path) -> None:
    url = str(tmp_path / "storage")
    passed = run(url)
    assert (passed.returncode, passed.stderr) == (0, "")
    assert url in passed.stdout
    (tmp_path / "file").touch()
    failed = run(str(tmp_path / "file"))
    assert (failed.returncode, failed.stdout) == (4, "")
    assert failed.stderr.startswith("error: ")
    assert "hint: " in failed.stderr


def test_the_program_refuses_a_wrong_url() -> None:
    failed = run("s4://bucket")
    assert failed.returncode == 2
    assert "s4://bucket" in failed.stderr
