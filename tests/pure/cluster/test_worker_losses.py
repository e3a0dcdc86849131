"""Workers that left the cluster, and the sources that say why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from clocks import Clock
from mops.cluster.worker_losses import (
    _JUDGING_SECONDS,
    JOIN_SECONDS,
    NEAR_SECONDS,
    POD_SECONDS,
    UNKNOWN,
    NannyRestarts,
    OomKillCounters,
    WorkerLoss,
    WorkerLosses,
    host_of,
)
from mops.system.resources import OomKills
from mops.verdicts import LossCause

ONE, OTHER = "tcp://10.0.0.1:4001", "tcp://10.0.0.2:4001"


def removed(worker: str, *keys: str, expected: bool = False, held: str = "") -> tuple[float, Mapping[str, Any]]:
    """Return the scheduler's event (distributed 2026.8, Scheduler.remove_worker)."""
    tasks = {"processing-tasks": {*keys}, "lost-computed-tasks": {held} if held else set()}
    return 0.0, {"action": "remove-worker", "worker": worker, "expected": expected, **tasks}


def restarted(worker: str) -> tuple[float, Mapping[str, Any]]:
    return 0.0, {"worker": worker, "pid": 7, "rss": 600 << 20}


def kills(n: int, age_s: float = 1e6, born: float = 0.0) -> OomKills:
    return OomKills(n, born, age_s)


def judged(losses: WorkerLosses, clock: Clock) -> list[str]:
    clock.now += JOIN_SECONDS
    losses.judge()
    return [loss.cause.text for loss in losses.take()]


def test_a_loss_has_the_name_of_its_cause(subtests: pytest.Subtests) -> None:
    """Regression: the log said that workers were lost for memory if their deaths did not change the window."""
    for cause, text in [
        (LossCause("its nanny restarted it at 600 MiB", memory=True), "ran out of memory: its nanny restarted it"),
        (LossCause("pod x was deleted", removed=True), "was lost: pod x was deleted"),
        (UNKNOWN, "was lost"),
    ]:
        with subtests.test(str((cause, text))):
            assert str(WorkerLoss(ONE, frozenset({"sim-job-1-1"}), cause=cause)).startswith(f"worker {ONE} {text}")


def test_a_departure_is_judged_a_moment_later_when_its_sources_know(clock: Clock) -> None:
    nannies = NannyRestarts(clock)
    losses = WorkerLosses([nannies], clock)
    losses.on_event(removed(ONE, "sim-job-1-1", held="sim-job-1-2"))
    losses.judge()
    assert losses.take() == []
    nannies.on_event(restarted(ONE))
    clock.now += JOIN_SECONDS
    losses.judge()
    restarts = LossCause("its nanny restarted it at 600 MiB", memory=True)
    assert losses.take() == [WorkerLoss(ONE, frozenset({"sim-job-1-1"}), frozenset({"sim-job-1-2"}), restarts)]
    assert losses.take() == []
    assert losses.cause("sim-job-1-1", ONE, clock.now, lambda: False) == restarts


def test_workers_that_leave_as_expected_are_no_losses(clock: Clock) -> None:
    losses = WorkerLosses([NannyRestarts(clock)], clock)
    losses.on_event(removed(ONE, expected=True))
    losses.on_event((0.0, {"action": "add-worker", "worker": ONE}))
    assert judged(losses, clock) == []


def test_another_worker_at_the_same_address_does_not_get_the_cause_of_the_first(clock: Clock) -> None:
    nannies = NannyRestarts(clock)
    losses = WorkerLosses([nannies], clock)
    nannies.on_event(restarted(ONE))
    found = []
    for _ in range(2):
        losses.on_event(removed(ONE))
        found += judged(losses, clock)
    assert found == ["its nanny restarted it at 600 MiB", ""]
    clock.now += NEAR_SECONDS + 1
    assert losses.cause("sim-job-1-1", ONE, clock.now, lambda: True) == UNKNOWN, "a new departure"


def test_an_oom_kill_counter_that_grew_at_that_time_is_the_cause(clock: Clock) -> None:
    seen = {host_of(ONE): kills(3), host_of(OTHER): kills(5)}
    losses = WorkerLosses([OomKillCounters(lambda: dict(seen), clock)], clock)
    losses.look()
    seen[host_of(ONE)] = kills(5)
    losses.on_event(removed(ONE))
    losses.on_event(removed(OTHER))
    assert judged(losses, clock) == ["kills for memory in its container at that time: 2", ""]
    losses.on_event(removed(ONE))
    assert judged(losses, clock) != [""], "of two that leave together both count"
    clock.now += NEAR_SECONDS + 1
    losses.on_event(removed(ONE))
    assert judged(losses, clock) == [""], "a kill long ago explains nothing"


def test_a_host_that_is_new_or_does_not_answer_gives_no_cause(clock: Clock) -> None:
    answers = iter([{}, {"10.0.0.1": kills(9)}, {}, {"10.0.0.1": kills(10)}])
    counters = OomKillCounters(lambda: next(answers), clock)
    found = []
    for _ in range(4):
        clock.now += 1
        counters.look()
        found.append(counters.cause(ONE, clock.now))
    one = LossCause("kills for memory in its container at that time: 1", memory=True)
    assert found == [None, UNKNOWN, None, one], "the nanny answers, so there is nothing to wait for"


def test_callers_that_ask_one_after_the_other_wait_once(clock: Clock) -> None:
    """Each waited the full time from its turn on, and the results of all others waited behind it."""
    losses = WorkerLosses([NannyRestarts(clock)], clock)
    losses.on_event(removed(ONE))
    assert judged(losses, clock) == [""]
    asked_at = clock.now
    clock.now += 100  # those before it have waited
    assert losses.cause("sim-job-1-1", ONE, asked_at, lambda: False) == UNKNOWN
    assert losses.cause("sim-job-1-2", OTHER, asked_at, lambda: False) == UNKNOWN, "its time is over too"


def test_a_caller_that_gives_up_does_not_wait(clock: Clock) -> None:
    losses = WorkerLosses([NannyRestarts(clock)], clock)
    assert losses.cause("sim-job-1-1", ONE, clock.now, lambda: True) == UNKNOWN


def test_a_cause_that_no_source_knows_is_unknown_after_the_timeout() -> None:
    asked_at = time.monotonic() - JOIN_SECONDS - _JUDGING_SECONDS + 0.05
    assert WorkerLosses([NannyRestarts()]).cause("sim-job-1-1", ONE, asked_at, lambda: False) == UNKNOWN


class Late:
    """A source that knows a cause as soon as a test sets it."""

    known: LossCause | None = None

    def look(self) -> None:
        pass

    def cause(self, worker: str, at: float) -> LossCause | None:
        return self.known


DELETED = LossCause("pod worker-1 was deleted", removed=True)
KILLED = LossCause("the container of pod worker-1 was OOMKilled (exit code 137)", memory=True)


def test_a_source_that_is_late_gets_time(clock: Clock) -> None:
    late = Late()
    losses = WorkerLosses([late], clock, late_s=POD_SECONDS)
    losses.on_event(removed(ONE, "sim-job-1-1"))
    assert judged(losses, clock) == []
    late.known = KILLED
    assert judged(losses, clock) == [KILLED.text]
    late.known = None
    losses.on_event(removed(ONE))
    assert [judged(losses, clock) for _ in range(int(POD_SECONDS))][-2:] == [[], [""]]


def test_a_nanny_that_answers_ends_the_wait_for_its_pod(clock: Clock) -> None:
    losses = WorkerLosses([Late(), OomKillCounters(lambda: {"10.0.0.1": kills(0)}, clock)], clock, late_s=POD_SECONDS)
    losses.on_event(removed(ONE))
    assert judged(losses, clock) == [""]


def test_kills_before_a_nanny_stopped_answering_count_if_the_pod_gives_no_cause(clock: Clock) -> None:
    """The kernel may have killed a child process just before, which did not end the container."""
    seen = {"10.0.0.1": kills(0)}
    late, counters = Late(), OomKillCounters(lambda: dict(seen), clock)
    losses = WorkerLosses([late, counters], clock, late_s=POD_SECONDS, likely=counters.likely_cause)
    losses.look()
    seen["10.0.0.1"] = kills(1)
    losses.look()
    seen.clear()
    clock.now += 1
    losses.on_event(removed(ONE))
    assert judged(losses, clock) == []
    late.known = KILLED
    assert judged(losses, clock) == [KILLED.text]
    late.known = None
    losses.on_event(removed(ONE))
    clock.now += POD_SECONDS
    assert judged(losses, clock) == ["kills for memory in its container at that time: 1"]


def test_a_nanny_in_a_restarted_container_does_not_end_the_wait_for_the_pod(clock: Clock) -> None:
    """The nanny has the address of the one before, and the status of the pod is not known yet."""
    seen = {"10.0.0.1": kills(0)}
    late, counters = Late(), OomKillCounters(lambda: dict(seen), clock)
    losses = WorkerLosses([late, counters], clock, late_s=POD_SECONDS, likely=counters.likely_cause)
    losses.look()
    losses.on_event(removed(ONE))
    seen["10.0.0.1"] = kills(0, age_s=0.5, born=1e6)
    assert judged(losses, clock) == []
    late.known = KILLED
    assert judged(losses, clock) == [KILLED.text]


def test_the_counter_of_a_restarted_container_starts_at_zero(clock: Clock) -> None:
    """The counter fell from two kills to one, in a new container. The one kill counts."""
    seen = {"10.0.0.1": kills(2)}
    losses = WorkerLosses([OomKillCounters(lambda: dict(seen), clock)], clock)
    losses.look()
    seen["10.0.0.1"] = kills(1, age_s=5.0, born=1e6)
    clock.now += 10
    losses.on_event(removed(ONE))
    assert judged(losses, clock) == ["kills for memory in its container at that time: 1"]


def test_a_kill_that_is_read_after_the_next_worker_has_started_counts(clock: Clock) -> None:
    """Dask cannot ask a nanny that has no worker, and a worker may take long to start."""
    seen = {"10.0.0.1": kills(0)}
    counters = OomKillCounters(lambda: dict(seen), clock)
    losses = WorkerLosses([Late(), counters], clock, late_s=POD_SECONDS, likely=counters.likely_cause)
    losses.look()
    clock.now += 1
    losses.on_event(removed(ONE))
    seen.clear()
    for _ in range(int(POD_SECONDS) - 2):
        assert judged(losses, clock) == []
    seen["10.0.0.1"] = kills(1)
    assert judged(losses, clock) == ["kills for memory in its container at that time: 1"]


def test_after_a_slow_look_there_is_another(clock: Clock) -> None:
    """It may have missed what came in the meantime."""
    late = Late()

    def slow() -> dict[str, OomKills]:
        clock.now += POD_SECONDS
        late.known = KILLED
        return {}

    class LookedAtFirst(Late):
        """A source that was asked before the slow one."""

        def look(self) -> None:
            self.known = late.known

    losses = WorkerLosses([LookedAtFirst(), OomKillCounters(slow, clock)], clock, late_s=POD_SECONDS)
    losses.on_event(removed(ONE))
    assert judged(losses, clock) == []
    assert judged(losses, clock) == [KILLED.text]


def test_a_new_departure_from_the_same_address_is_waited_for(clock: Clock) -> None:
    """It got the cause of the worker before it, if that had left seconds ago."""
    late = Late()
    losses = WorkerLosses([late], clock)
    for late.known in (DELETED, KILLED):
        losses.on_event(removed(ONE))
        assert losses.cause("sim-job-1-1", ONE, clock.now, lambda: True) == UNKNOWN
        judged(losses, clock)
        assert losses.cause("sim-job-1-1", ONE, clock.now, lambda: True) == late.known
        clock.now += 5


def test_a_task_whose_worker_was_removed_is_not_to_blame(clock: Clock) -> None:
    """Dask counts that death as one of the two after which it gives the task back."""
    late = Late()
    losses = WorkerLosses([late], clock)
    for late.known in (DELETED, KILLED):
        losses.on_event(removed(ONE, "sim-job-1-1"))
        judged(losses, clock)
    assert losses.cause("sim-job-1-1", ONE, clock.now, lambda: False) == DELETED
    assert losses.cause("sim-job-1-1", ONE, clock.now, lambda: False) == KILLED, "once"
    assert losses.cause("sim-job-1-2", ONE, clock.now, lambda: False) == KILLED, "another task"
