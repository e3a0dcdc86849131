"""Workers that went: what is heard of them, and who says why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from clocks import Clock
from mops.cluster.worker_losses import (
    JOIN_SECONDS,
    NEAR_SECONDS,
    POD_SECONDS,
    UNKNOWN,
    KnownCause,
    LossCause,
    NannyRestarts,
    OomKillCounters,
    WorkerLoss,
    WorkerLosses,
    host_of,
)
from mops.system.cgroup import OomKills

ONE, OTHER = "tcp://10.0.0.1:4001", "tcp://10.0.0.2:4001"


def removed(worker: str, *keys: str, expected: bool = False, held: str = "") -> tuple[float, Mapping[str, Any]]:
    """Return the scheduler's event (distributed 2026.8, Scheduler.remove_worker)."""
    tasks = {"processing-tasks": {*keys}, "lost-computed-tasks": {held} if held else set()}
    return 0.0, {"action": "remove-worker", "worker": worker, "expected": expected, **tasks}


def restarted(worker: str) -> tuple[float, Mapping[str, Any]]:
    return 0.0, {"worker": worker, "pid": 7, "rss": 600 << 20}


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


def kills(n: int, age_s: float = 1e6, born: float = 0.0) -> OomKills:
    return OomKills(n, born, age_s)


def judged(departures: WorkerLosses, clock: Clock) -> list[str]:
    clock.now += JOIN_SECONDS
    departures.judge()
    return [loss.cause.said for loss in departures.take()]


def test_a_departure_is_judged_when_its_sources_have_had_a_moment(clock: Clock) -> None:
    nannies = NannyRestarts(clock)
    departures = WorkerLosses([nannies], clock)
    departures.hear(removed(ONE, "sim-job-1-1", held="sim-job-1-2"))
    departures.judge()
    assert departures.take() == []
    nannies.hear(restarted(ONE))
    clock.now += JOIN_SECONDS
    departures.judge()
    keys = frozenset({"sim-job-1-1", "sim-job-1-2"})
    restarts = KnownCause("its nanny restarted it at 600 MiB", memory=True)
    assert departures.take() == [WorkerLoss(ONE, keys, restarts)]
    assert departures.take() == []
    assert departures.cause("sim-job-1-1", ONE, clock.now) == restarts


def test_workers_that_were_asked_to_go_and_other_events_are_none(clock: Clock) -> None:
    departures = WorkerLosses([NannyRestarts(clock)], clock)
    departures.hear(removed(ONE, expected=True))
    departures.hear((0.0, {"action": "add-worker", "worker": ONE}))
    assert judged(departures, clock) == []


def test_another_worker_at_the_same_address_is_not_judged_by_the_first(clock: Clock) -> None:
    nannies = NannyRestarts(clock)
    departures = WorkerLosses([nannies], clock)
    nannies.hear(restarted(ONE))
    found = []
    for _ in range(2):
        departures.hear(removed(ONE))
        found += judged(departures, clock)
    assert found == ["its nanny restarted it at 600 MiB", ""]
    clock.now += NEAR_SECONDS + 1
    assert departures.cause("sim-job-1-1", ONE, clock.now, patience_s=0.0) == UNKNOWN, (
        "of what has just gone nothing is known yet"
    )


def test_the_counter_of_a_container_tells_of_kills_at_that_time(clock: Clock) -> None:
    seen = {host_of(ONE): kills(3), host_of(OTHER): kills(5)}
    departures = WorkerLosses([OomKillCounters(lambda: dict(seen), clock)], clock)
    departures.look()
    seen[host_of(ONE)] = kills(5)
    departures.hear(removed(ONE))
    departures.hear(removed(OTHER))
    assert judged(departures, clock) == ["kills for memory in its container at that time: 2", ""]
    departures.hear(removed(ONE))
    assert judged(departures, clock) != [""], "two that go together are both believed"
    clock.now += NEAR_SECONDS + 1
    departures.hear(removed(ONE))
    assert judged(departures, clock) == [""], "a child that the kernel killed long ago is no evidence"


def test_a_host_that_is_new_or_does_not_answer_says_nothing(clock: Clock) -> None:
    answers = iter([{}, {"10.0.0.1": kills(9)}, {}, {"10.0.0.1": kills(10)}])
    counters = OomKillCounters(lambda: next(answers), clock)
    found = []
    for _ in range(4):
        clock.now += 1
        counters.look()
        found.append(counters.cause(ONE, clock.now))
    one = KnownCause("kills for memory in its container at that time: 1", memory=True)
    assert found == [None, UNKNOWN, None, one], "where its nanny answers there is no more to be known"


def test_those_who_ask_one_after_the_other_wait_once(clock: Clock) -> None:
    """Each waited the whole time from its own turn on, with everybody else's results behind it."""
    departures = WorkerLosses([NannyRestarts(clock)], clock)
    departures.hear(removed(ONE))
    assert judged(departures, clock) == [""]
    asked_at = clock.now
    clock.now += 100  # those before it have waited
    assert departures.cause("sim-job-1-1", ONE, asked_at) == UNKNOWN
    assert departures.cause("sim-job-1-2", OTHER, asked_at) == UNKNOWN, "its time is over already"


def test_nobody_waits_for_a_cause_once_it_is_given_up(clock: Clock) -> None:
    departures = WorkerLosses([NannyRestarts(clock)], clock)
    assert departures.cause("sim-job-1-1", ONE, clock.now, lambda: True) == UNKNOWN


def test_nobody_waits_long_for_what_nobody_knows() -> None:
    assert WorkerLosses([NannyRestarts()]).cause("sim-job-1-1", ONE, time.monotonic(), patience_s=0.05) == UNKNOWN


class Late:
    """A source that knows when it is told."""

    known: LossCause | None = None

    def look(self) -> None:
        pass

    def cause(self, worker: str, at: float) -> LossCause | None:
        return self.known


DELETED = KnownCause("pod worker-1 was deleted", removed=True)
KILLED = KnownCause("the container of pod worker-1 was OOMKilled (exit code 137)", memory=True)


def test_a_source_that_is_late_is_waited_for_a_while(clock: Clock) -> None:
    late = Late()
    departures = WorkerLosses([late], clock, late_s=POD_SECONDS)
    departures.hear(removed(ONE, "sim-job-1-1"))
    assert judged(departures, clock) == []
    late.known = KILLED
    assert judged(departures, clock) == [KILLED.said]
    late.known = None
    departures.hear(removed(ONE))
    assert [judged(departures, clock) for _ in range(int(POD_SECONDS))][-2:] == [[], [""]]


def test_a_nanny_that_answers_ends_the_waiting_for_its_pod(clock: Clock) -> None:
    departures = WorkerLosses(
        [Late(), OomKillCounters(lambda: {"10.0.0.1": kills(0)}, clock)], clock, late_s=POD_SECONDS
    )
    departures.hear(removed(ONE))
    assert judged(departures, clock) == [""]


def test_kills_before_a_nanny_fell_silent_count_where_the_pod_says_nothing(clock: Clock) -> None:
    """A child that the kernel killed a moment before is not what ended the container."""
    seen = {"10.0.0.1": kills(0)}
    late, counters = Late(), OomKillCounters(lambda: dict(seen), clock)
    departures = WorkerLosses([late, counters], clock, late_s=POD_SECONDS, likely=counters.likely)
    departures.look()
    seen["10.0.0.1"] = kills(1)
    departures.look()
    seen.clear()
    clock.now += 1
    departures.hear(removed(ONE))
    assert judged(departures, clock) == []
    late.known = KILLED
    assert judged(departures, clock) == [KILLED.said]
    late.known = None
    departures.hear(removed(ONE))
    clock.now += POD_SECONDS
    assert judged(departures, clock) == ["kills for memory in its container at that time: 1"]


def test_a_nanny_in_a_container_that_was_started_again_has_not_outlived_its_worker(clock: Clock) -> None:
    """It has the address of the one before, and what the pod's status says is yet to come."""
    seen = {"10.0.0.1": kills(0)}
    late, counters = Late(), OomKillCounters(lambda: dict(seen), clock)
    departures = WorkerLosses([late, counters], clock, late_s=POD_SECONDS, likely=counters.likely)
    departures.look()
    departures.hear(removed(ONE))
    seen["10.0.0.1"] = kills(0, age_s=0.5, born=1e6)
    assert judged(departures, clock) == []
    late.known = KILLED
    assert judged(departures, clock) == [KILLED.said]


def test_a_container_that_was_started_again_counts_from_nothing(clock: Clock) -> None:
    """Two kills before, one in the new one: less, and a kill all the same."""
    seen = {"10.0.0.1": kills(2)}
    departures = WorkerLosses([OomKillCounters(lambda: dict(seen), clock)], clock)
    departures.look()
    seen["10.0.0.1"] = kills(1, age_s=5.0, born=1e6)
    clock.now += 10
    departures.hear(removed(ONE))
    assert judged(departures, clock) == ["kills for memory in its container at that time: 1"]


def test_a_kill_that_is_read_when_the_next_worker_is_there_counts(clock: Clock) -> None:
    """Dask asks no nanny that has no worker, and a worker may need long to start."""
    seen = {"10.0.0.1": kills(0)}
    counters = OomKillCounters(lambda: dict(seen), clock)
    departures = WorkerLosses([Late(), counters], clock, late_s=POD_SECONDS, likely=counters.likely)
    departures.look()
    clock.now += 1
    departures.hear(removed(ONE))
    seen.clear()
    for _ in range(int(POD_SECONDS) - 2):
        assert judged(departures, clock) == []
    seen["10.0.0.1"] = kills(1)
    assert judged(departures, clock) == ["kills for memory in its container at that time: 1"]


def test_a_look_that_takes_long_is_not_the_last(clock: Clock) -> None:
    """What came meanwhile it may have missed."""
    late = Late()

    def slow() -> dict[str, OomKills]:
        clock.now += POD_SECONDS
        late.known = KILLED
        return {}

    class LookedAtFirst(Late):
        """As a pod's status that was read before the nannies were asked."""

        def look(self) -> None:
            self.known = late.known

    departures = WorkerLosses([LookedAtFirst(), OomKillCounters(slow, clock)], clock, late_s=POD_SECONDS)
    departures.hear(removed(ONE))
    assert judged(departures, clock) == []
    assert judged(departures, clock) == [KILLED.said]


def test_a_worker_at_an_address_that_another_had_is_waited_for(clock: Clock) -> None:
    """It got the cause of the one before, if that had gone seconds ago."""
    late = Late()
    departures = WorkerLosses([late], clock)
    for late.known in (DELETED, KILLED):
        departures.hear(removed(ONE))
        assert departures.cause("sim-job-1-1", ONE, clock.now, patience_s=0.0) == UNKNOWN
        judged(departures, clock)
        assert departures.cause("sim-job-1-1", ONE, clock.now, patience_s=0.0) == late.known
        clock.now += 5


def test_a_task_whose_worker_was_taken_away_is_not_to_blame(clock: Clock) -> None:
    """Dask counts that death among the two for which it gives the task back."""
    late = Late()
    departures = WorkerLosses([late], clock)
    for late.known in (DELETED, KILLED):
        departures.hear(removed(ONE, "sim-job-1-1"))
        judged(departures, clock)
    assert departures.cause("sim-job-1-1", ONE, clock.now) == DELETED
    assert departures.cause("sim-job-1-1", ONE, clock.now) == KILLED, "once"
    assert departures.cause("sim-job-1-2", ONE, clock.now) == KILLED, "another task"
