"""A wait polls until its condition holds, logs every 30 s, and ends in time or on request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from clocks import Clock
from mops import waiting
from mops.waiting import polls


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what lets the time pass by which a wait is measured."""
    clock = Clock()
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=clock))

    def pause(seconds: float) -> None:
        clock.now += seconds

    return pause


def test_a_condition_is_checked_at_once_and_again_after_the_timeout(pause: Callable[[float], None]) -> None:
    assert [poll.waited_s for poll in polls(4.0, 10.0, pause=pause)] == [0.0, 4.0, 8.0, 12.0]


@pytest.mark.parametrize(("log_at_once", "expected"), [(False, [30.0, 60.0]), (True, [0.0, 30.0, 60.0])])
def test_a_log_line_is_due_every_thirty_seconds(
    pause: Callable[[float], None], expected: list[float], *, log_at_once: bool
) -> None:
    found = polls(10.0, 55.0, pause=pause, log_at_once=log_at_once)
    assert [poll.waited_s for poll in found if poll.log_is_due] == expected


def test_a_stop_ends_the_wait_and_the_pause() -> None:
    stop = threading.Event()
    threading.Timer(0.05, stop.set).start()
    assert len(list(polls(600.0, stopped=stop.is_set, pause=stop.wait))) == 1
    assert len(list(polls(600.0, stopped=stop.is_set, pause=stop.wait))) == 1, "the condition may hold all the same"
