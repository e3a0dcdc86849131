"""Objects that wait on disk."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from mops.attempt.partial_groups import ResultShelf
from mops.errors import StorageError
from mops.storage.backends.base import Spool
from small_disk import small_disk

MIB = 1 << 20


def content(number: int, size: int = MIB) -> np.ndarray:
    return np.full(size, number % 251, np.uint8)


def test_objects_are_read_as_they_were_put(tmp_path):
    shelf = ResultShelf(Spool)
    first = shelf.keep({"buffer": pa.py_buffer(b"abc"), "text": "x", "none": None})
    empty = shelf.keep([pa.py_buffer(b"")])
    array = shelf.keep(np.arange(5))
    back = shelf.read([array, first, empty])
    assert back[0].tolist() == [0, 1, 2, 3, 4]
    assert (back[1]["buffer"].to_pybytes(), back[1]["text"], back[1]["none"]) == (b"abc", "x", None)
    assert back[2][0].size == 0
    assert shelf.read([]) == []


def test_buffers_on_the_shelf_take_no_memory():
    """All half-done groups were held in memory: 2.8 GB for 280 groups of 10 MB."""
    shelf = ResultShelf(Spool)
    shelf.keep(b"")
    tracemalloc.start()
    try:
        kept = [shelf.keep((i, pa.py_buffer(content(i)))) for i in range(100)]
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()
    assert [number for number, _ in shelf.read(kept)] == list(range(100))


def test_the_file_is_at_most_about_twice_as_large_as_its_objects():
    """A group that waits long for its last replicate must not keep the room of those that left before it."""
    shelf = ResultShelf(Spool, slack_bytes=4 * MIB)
    waiting = [shelf.keep((i, pa.py_buffer(content(i)))) for i in range(3)]
    for i in range(100):
        gone = shelf.keep(pa.py_buffer(content(i)))
        shelf.remove([gone])
        assert shelf.file_bytes <= 2 * 4 * MIB + 4 * MIB
    for i, (number, buffer) in enumerate(shelf.read(waiting)):
        assert (number, buffer.to_pybytes()) == (i, content(i).tobytes())


def test_an_object_that_was_read_survives_its_removal_and_a_rewrite_of_the_file():
    shelf = ResultShelf(Spool, slack_bytes=0)
    kept = [shelf.keep(pa.py_buffer(content(i))) for i in range(4)]
    buffers = shelf.read(kept)
    for one in kept:
        shelf.remove([one])
        shelf.keep(pa.py_buffer(content(200)))
    assert [buffer.to_pybytes()[0] for buffer in buffers] == [0, 1, 2, 3]


def test_an_empty_shelf_has_no_file():
    shelf = ResultShelf(Spool)
    shelf.remove([shelf.keep(pa.py_buffer(content(1)))])
    assert shelf.file_bytes == 0
    assert shelf.read([shelf.keep("again")]) == ["again"]


def test_threads_can_put_read_and_remove_at_the_same_time():
    shelf, wrong = ResultShelf(Spool, slack_bytes=MIB), []

    def work(number: int) -> None:
        for _ in range(50):
            kept = [shelf.keep(pa.py_buffer(content(number, 10_000 + 64 * k))) for k in range(3)]
            back = shelf.read(kept)
            shelf.remove(kept)
            wrong.extend(buffer for buffer in back if set(buffer.to_pybytes()) != {number})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_full_disk_is_a_storage_error(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    with small_disk(folder, 1):
        shelf = ResultShelf(lambda: Spool(folder))
        with pytest.raises(StorageError, match="No space left"):
            shelf.keep(pa.py_buffer(content(1, 4 * MIB)))


MANY_READ = """
import resource
import pyarrow as pa
from mops.errors import StorageError
from mops.attempt.partial_groups import ResultShelf
from mops.storage.backends.base import Spool

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
shelf, held = ResultShelf(Spool), []
for i in range(200):
    kept = shelf.keep(pa.py_buffer(bytes([i]) * 1000))
    held += shelf.read([kept])
assert [buffer.to_pybytes()[0] for buffer in held] == list(range(200))
mapped = []
try:
    while len(mapped) < 64:
        mapped += shelf.read([shelf.keep(pa.py_buffer(bytes(5 << 20)))])
except StorageError as error:
    print("refused:", error)
"""


def test_small_objects_that_were_read_hold_no_file_descriptors():
    """Each group that ran in pieces held a descriptor until its rows filled a row group: a runner died of EMFILE."""
    done = subprocess.run([sys.executable, "-c", MANY_READ], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused: a temporary file"), done.stdout
