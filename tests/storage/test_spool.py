"""Large data that takes no memory."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from mops.errors import StorageError
from mops.storage.spool import mapped


def test_what_is_written_comes_back_and_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    buffer = mapped(lambda file: file.write(b"abc" * 1000))
    assert buffer.to_pybytes() == b"abc" * 1000
    assert mapped(lambda file: file.write(b"")).to_pybytes() == b""
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_said_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def full(_file: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StorageError) as raised:
        mapped(full)
    assert raised.value.where == str(tmp_path)
    assert "No space left on device" in raised.value.what
    assert "TMPDIR" in str(raised.value.hint)
