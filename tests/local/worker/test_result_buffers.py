"""The worker counts the bytes of the buffers that it holds, by task, until they are freed."""

from __future__ import annotations

import os
import threading

import pytest

from mops.child.channel import anonymous_file
from mops.worker import result_buffers
from processes import descriptors

SMALL, LARGE = 1000, 2 * result_buffers.COPY_BELOW_BYTES


def part(size: int) -> int:
    fd = anonymous_file("test")
    os.write(fd, b"x" * size)
    return fd


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_buffer_counts_under_its_name_until_it_is_freed(size: int) -> None:
    before = result_buffers.held_bytes()
    buffer = result_buffers.take(part(size), "mine")
    assert buffer is not None
    view = buffer.slice(1, 10)
    del buffer
    assert result_buffers.held_bytes() == before + size
    assert "mine" in result_buffers.held_names()
    assert view.to_pybytes() == b"x" * 10
    del view
    assert result_buffers.held_bytes() == before
    assert "mine" not in result_buffers.held_names()


def test_an_empty_buffer_becomes_none_and_its_descriptor_is_closed() -> None:
    before = descriptors()
    assert result_buffers.take(part(0), "mine") is None
    assert descriptors() <= before


def test_a_wait_for_room_ends_when_buffers_are_freed() -> None:
    buffer = result_buffers.take(part(LARGE), "mine")
    waiter = threading.Thread(target=result_buffers.wait_for_room, args=(LARGE - 1, lambda: False, "job"))
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive()
    del buffer
    waiter.join(30)
    assert not waiter.is_alive()


def test_a_wait_for_room_ends_on_a_stop() -> None:
    buffer = result_buffers.take(part(LARGE), "mine")
    stopping = threading.Event()
    waiter = threading.Thread(target=result_buffers.wait_for_room, args=(LARGE - 1, stopping.is_set, "job"))
    waiter.start()
    stopping.set()
    result_buffers.wake()
    waiter.join(30)
    assert not waiter.is_alive()
    del buffer
