"""The files of a task hold no memory after the task."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pyarrow as pa
import pytest

from mops.child.buffers import GroupName, PartFiles, Simulation


@pytest.fixture
def _without_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_collections")
def test_finished_files_need_no_collection_of_garbage() -> None:
    files = PartFiles("test", {0: GroupName(7, "abc")}, lambda _: {}, folder=None)
    files.add([Simulation(0, 0, 1, {"output": pa.table({"y": [1.5, 2.5]})})], None)
    for facts, file in files.finish():
        assert facts["rows"] == 2
        file.close()
    gone = weakref.ref(files)
    del files
    assert gone() is None
