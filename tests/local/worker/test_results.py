"""The worker counts the bytes of the buffers that it holds, by task, until they are freed."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from mops.child.channel import anonymous_file
from mops.worker import results
from processes import descriptors

SMALL, LARGE = 1000, 2 * results.COPY_BELOW_BYTES


def part(size: int) -> int:
    fd = anonymous_file("test")
    os.write(fd, b"x" * size)
    return fd


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_buffer_counts_under_its_name_until_it_is_freed(size: int) -> None:
    before = results.held_bytes()
    buffer = results.take_buffer(part(size), "mine")
    assert buffer is not None
    view = buffer.slice(1, 10)
    del buffer
    assert results.held_bytes() == before + size
    assert results.held_bytes("mine") == size
    assert view.to_pybytes() == b"x" * 10
    del view
    assert results.held_bytes() == before
    assert results.held_bytes("mine") == 0


def test_an_empty_buffer_becomes_none_and_its_descriptor_is_closed() -> None:
    before = descriptors()
    assert results.take_buffer(part(0), "mine") is None
    assert descriptors() <= before


def test_a_wait_for_room_ends_when_buffers_are_freed() -> None:
    buffer = results.take_buffer(part(LARGE), "mine")
    waiter = threading.Thread(target=results.wait_for_room, args=(LARGE - 1, lambda: False, "job"))
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive()
    del buffer
    waiter.join(30)
    assert not waiter.is_alive()


def test_a_wait_for_room_ends_on_a_stop() -> None:
    buffer = results.take_buffer(part(LARGE), "mine")
    stopping = threading.Event()
    waiter = threading.Thread(target=results.wait_for_room, args=(LARGE - 1, stopping.is_set, "job"))
    waiter.start()
    stopping.set()
    results.wake()
    waiter.join(30)
    assert not waiter.is_alive()
    del buffer


def test_a_buffer_may_be_freed_while_its_thread_counts() -> None:
    """Regression: a finalizer that ran in the loop over the buffers changed what the loop reads."""
    buffers: list[Any] = []

    class Name(str):
        __slots__ = ()

        def __contains__(self, mark: object) -> bool:
            buffers.clear()  # as a garbage collection may
            return True

    buffers += [results.take_buffer(part(SMALL), Name(f"mine {i}")) for i in range(3)]
    assert results.held_bytes("any") >= 3 * SMALL
