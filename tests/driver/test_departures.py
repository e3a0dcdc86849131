"""Workers that went: what is heard of them, and who says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mops.driver.departures import JOIN_SECONDS, Counters, Departure, Departures, Nannies, host_of

ONE, OTHER = "tcp://10.0.0.1:4001", "tcp://10.0.0.2:4001"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def removed(worker: str, *keys: str, expected: bool = False) -> tuple[float, Mapping[str, Any]]:
    """Return the scheduler's event (distributed 2026.8, Scheduler.remove_worker)."""
    return 0.0, {"action": "remove-worker", "worker": worker, "processing-tasks": {*keys}, "expected": expected}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_departure_is_judged_when_its_sources_have_had_a_moment(clock: Clock) -> None:
    nannies = Nannies()
    departures = Departures([nannies], clock)
    departures.hear(removed(ONE, "sim-job-1-1"))
    departures.judge()
    assert departures.take() == []
    nannies.hear((0.0, {"worker": ONE, "pid": 7, "rss": 600 << 20}))
    clock.now += JOIN_SECONDS
    departures.judge()
    assert departures.take() == [Departure(ONE, frozenset({"sim-job-1-1"}), "its nanny restarted it at 600 MiB")]
    assert departures.take() == []
    assert departures.out_of_memory(ONE) == "its nanny restarted it at 600 MiB"


def test_workers_that_were_asked_to_go_and_other_events_are_none(clock: Clock) -> None:
    departures = Departures([Nannies()], clock)
    departures.hear(removed(ONE, expected=True))
    departures.hear((0.0, {"action": "add-worker", "worker": ONE}))
    clock.now += JOIN_SECONDS
    departures.judge()
    assert departures.take() == []


def test_the_counter_of_a_container_tells_of_kills_since_the_last_look(clock: Clock) -> None:
    kills = {host_of(ONE): 3, host_of(OTHER): 5}
    departures = Departures([Counters(lambda: dict(kills))], clock)
    departures.look()
    kills[host_of(ONE)] += 1
    for n, expected in enumerate(["the kernel killed 1 processes of its container for memory", ""]):
        departures.hear(removed(ONE, str(n)))
        departures.hear(removed(OTHER, str(n)))
        clock.now += JOIN_SECONDS
        departures.judge()
        assert [departure.memory for departure in departures.take()] == [expected, ""], "a kill counts once"


def test_a_host_that_is_new_or_does_not_answer_says_nothing(clock: Clock) -> None:
    answers = iter([{}, {"10.0.0.1": 9}, {}, {"10.0.0.1": 10}])
    counters = Counters(lambda: next(answers))
    found = []
    for _ in range(4):
        counters.look()
        found.append(counters.out_of_memory(ONE))
    assert found[:3] == ["", "", ""]
    assert found[3] == "the kernel killed 1 processes of its container for memory"


def test_nobody_waits_long_for_what_nobody_knows() -> None:
    assert Departures([Nannies()]).out_of_memory(ONE, patience_s=0.05) == ""
