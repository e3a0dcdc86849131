"""The window: how many groups may be in flight."""

from __future__ import annotations

import pytest

from mops.attempt.sizing import Window, start_size
from mops.storage.progress_record import Progress
from mops.verdicts import Counts


def test_the_window_is_halved_and_grows_by_a_tenth_for_each_batch_without_trouble() -> None:
    window = Window(100)
    assert window.size == 100
    assert [window.halve(), window.halve()] == [50, 25]
    sizes = []
    for _ in range(18):
        window.batches_committed()
        sizes.append(window.size)
    assert sizes[:4] == [25, 28, 31, 35], "the batch in which it was halved does not count"
    assert sizes[-1] == 100


def test_the_window_has_always_room_for_one_group() -> None:
    window = Window(3)
    assert [window.halve(), window.halve(), window.halve()] == [1, 1, 1]


def test_the_window_starts_at_the_size_that_the_attempt_before_calls_for() -> None:
    assert Window(200, 40).size == 40
    assert Window(20, 40).size == 20


def test_the_window_follows_its_limit_unless_memory_ran_out() -> None:
    window = Window(8)
    window.set_most(50)
    assert window.size == 50
    window.halve()
    window.set_most(80)
    assert window.size == 25
    window.set_most(10)
    assert window.size == 10
    resumed = Window(32, 320)
    resumed.set_most(640)
    assert resumed.size == 320, "the attempt before ran out of memory, so this one starts with half of any limit"
    resumed.batches_committed()
    assert resumed.size == 352


def test_a_window_that_has_grown_to_its_limit_goes_on_growing_below_a_higher_limit() -> None:
    """Regression: the limit that follows from the first tasks is low. A window that reached it forgot that memory had
    run out, and jumped to the next limit."""
    window = Window(11, 10)
    window.batches_committed()
    assert window.size == 11
    window.batches_committed()
    window.set_most(50)
    assert window.size == 11, "no more were in flight"
    window.batches_committed()
    assert window.size == 13
    window.batches_committed(5)
    assert window.size == 21, "a commit may complete several batches"


def test_an_attempt_after_one_that_ran_out_of_memory_starts_with_half_the_window(subtests: pytest.Subtests) -> None:
    for memory, window, ended, expected in [
        (900, 200, False, 100),
        (900, 1, False, 1),
        (900, 5, False, 2),  # whole groups
        (800, 200, False, None),  # there was room: something else killed it
        (900, 200, True, None),
        (900, 0, False, None),  # nothing was in flight
    ]:
        with subtests.test(str((memory, window, ended, expected))):
            live = Progress(0.0, Counts(), memory_bytes=memory, limit_bytes=1000, window=window)
            assert start_size(live, ended=ended) == expected
            assert start_size(None, ended=ended) is None


@pytest.mark.parametrize(("ended", "window", "expected"), [(False, 200, 100), (True, 200, None), (False, 0, None)])
def test_an_attempt_after_one_whose_pod_was_oom_killed_starts_with_half_the_window(
    ended: bool, window: int, expected: int | None
) -> None:
    """The last live record may be ten seconds old, from when there was room."""
    live = Progress(0.0, Counts(), memory_bytes=300, limit_bytes=1000, window=window)
    assert start_size(live, ended=ended, oom=True) == expected
    assert start_size(None, ended=ended, oom=True) is None
