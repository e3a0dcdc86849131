"""Of a file that is not on this machine, only the pieces that are read are loaded."""

from __future__ import annotations

import gc
import io
import os
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.storage.backends import base
from mops.storage.backends.base import RemoteFile
from mops.storage.backends.memory import ProcessMemory
from mops.storage.files import Files
from mops.storage.params_file import encode_groups, load_groups
from mops.storage.paths import JobPaths, new_job_id
from mops.study.study_file import parse_study

MOVES = st.tuples(st.integers(0, 60), st.integers(-1, 60))


@given(st.binary(max_size=50), st.lists(MOVES, max_size=8))
def test_it_reads_as_a_file_does(data: bytes, moves: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(base, "_REMOTE_PIECE_BYTES", 7)
        remote, local = RemoteFile(len(data), lambda start, stop: data[start:stop]), io.BytesIO(data)
        for position, size in moves:
            assert remote.seek(position) == local.seek(position)
            assert remote.read(size) == local.read(size)
            assert remote.tell() == local.tell() or position > len(data)
        assert remote.seek(-min(3, len(data)), os.SEEK_END) == local.seek(-min(3, len(data)), os.SEEK_END)


def test_a_file_that_has_become_shorter_is_an_error() -> None:
    with pytest.raises(OSError, match="are missing"):
        RemoteFile(10, lambda _start, _stop: b"short").read()


def test_the_pieces_are_freed_with_the_file() -> None:
    """Regression: each part that verify had read kept up to 16 MiB until Python looked for cycles."""
    gc.disable()
    try:
        remote = RemoteFile(10, lambda start, stop: bytes(stop - start))
        remote.read()
        freed = weakref.ref(remote)
        del remote
        assert freed() is None
    finally:
        gc.enable()


@given(st.lists(st.integers(0, 9), max_size=30))
def test_only_the_last_pieces_are_kept(pieces: list[int]) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(base, "_REMOTE_PIECE_BYTES", 7)
        loaded: list[int] = []
        remote = RemoteFile(70, lambda start, stop: loaded.append(start // 7) or bytes(stop - start))  # type: ignore[func-returns-value]
        kept: list[int] = []
        for piece in pieces:
            before = len(loaded)
            remote.seek(7 * piece)
            remote.read(7)
            assert (len(loaded) == before) == (piece in kept)
            kept = [*(one for one in kept if one != piece), piece][-base._REMOTE_PIECES_KEPT :]


def test_opening_the_table_of_groups_loads_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each runner on Azure began with a download of all parameter sets."""
    monkeypatch.setattr(base, "_REMOTE_PIECE_BYTES", 16 << 10)
    files = Files.open("memory://pieces")
    sets = [{"a": i} for i in range(10_000)]
    groups = parse_study({"model": "m:f", "parameter_sets": sets}, where="study.json").groups
    encoded = encode_groups(groups, files.spool())
    paths = JobPaths("job", new_job_id())
    files.put(paths.params, encoded.content)
    loaded: list[int] = []
    get = ProcessMemory.get

    def counted(self: ProcessMemory, path: str, start: int = 0, stop: int | None = None) -> bytes | None:
        found = get(self, path, start, stop)
        loaded.append(len(found or b"") if stop is not None else 0)
        return found

    monkeypatch.setattr(ProcessMemory, "get", counted)
    assert load_groups(files, paths).group(9_999).params == {"a": 9_999}
    assert 0 < sum(loaded) < encoded.bytes / 4
