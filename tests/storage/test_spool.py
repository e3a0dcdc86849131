"""Large data that takes no memory."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from mops.errors import StorageError
from mops.storage.spool import Spool


def test_what_is_written_is_read_again_and_again_and_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data = os.urandom(3_000_000)
    spool = Spool(lambda file: file.write(data))
    assert b"".join(spool) == b"".join(spool) == data, "a request that is sent again sends all of it"
    assert spool.opened().read_at(5, 2_999_990) == data[2_999_990:2_999_995]
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_said_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def full(_file: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StorageError) as raised:
        Spool(full)
    assert raised.value.where == str(tmp_path)
    assert "No space left on device" in raised.value.what
    assert "TMPDIR" in str(raised.value.hint)
