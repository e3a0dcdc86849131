"""Spools hold large data in files without a name."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from mops.errors import StorageError
from mops.storage.backends.base import Put, Spool
from mops.storage.files import Files
from small_disk import small_disk

DATA = os.urandom(3_000_000)


def filled(storage: Path | None = None) -> Spool:
    spool = Spool(storage)
    for start in range(0, len(DATA), 700_000):
        spool.write(DATA[start : start + 700_000])
    return spool


def test_a_spool_can_be_read_repeatedly_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = filled()
    assert b"".join(spool) == b"".join(spool) == DATA, "a retried request sends everything"
    assert spool.opened().read_at(5, 2_999_990) == DATA[2_999_990:2_999_995]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    with small_disk(folder, 1):
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        with pytest.raises(StorageError) as raised:
            filled()
    assert raised.value.where == str(folder)
    assert "No space left on device" in raised.value.what
    assert "TMPDIR" in str(raised.value.hint)


def test_a_full_storage_is_an_error_of_the_storage(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    with small_disk(folder, 1), pytest.raises(StorageError) as raised:
        filled(folder)
    assert (raised.value.what, raised.value.where) == ("the storage is full (No space left on device)", str(folder))
    assert "free space" in str(raised.value.hint)


def test_a_local_storage_links_the_file_and_does_not_copy_it(tmp_path: Path) -> None:
    files = Files.open(str(tmp_path))
    spool = files.spool()
    spool.write(DATA)
    assert list(tmp_path.iterdir()) == [], "a killed writer leaves no file"
    for path in ("a/part", "a/part", "b/part"):
        files.put(path, spool)  # as in a retry
        assert files.get(path) == DATA
    assert files.put_new("a/part", spool) is Put.SAME
    assert [entry.path for entry in files.list("")] == ["a/part", "b/part"]
    stored, named = (tmp_path / "a/part").stat(), tmp_path / "named"
    named.write_bytes(b"")
    assert stored.st_ino == os.fstat(spool._file.fileno()).st_ino
    assert stored.st_mode == named.stat().st_mode, "others may read it like any file"
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("lacking", ["files without a name", "links to them"])
def test_a_file_system_without_such_links_gets_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    files = Files.open(str(tmp_path))
    if lacking == "files without a name":
        monkeypatch.setattr("mops.storage.backends.base.nameless_file", lambda _: None)
        spool = files.spool()
    else:
        spool = files.spool()
        monkeypatch.setattr(os, "link", refuse)
    spool.write(DATA)
    files.put("a/part", spool)
    assert files.get("a/part") == DATA
