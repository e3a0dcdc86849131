"""When a job says that its runner is the limit."""

from __future__ import annotations

from collections.abc import Callable

from mops.attempt.planning.runner_load import LOOK_SECONDS, WATCHED_SECONDS, Overload, RunnerLoad


def after(seconds: int, *, cpus: float, idle: Callable[[int], int], load: RunnerLoad | None = None) -> list[Overload]:
    """Return what a load says when it is looked at once a second."""
    load = load or RunnerLoad()
    found = [load.look(float(second), cpus * second, idle(second)) for second in range(seconds + 1)]
    return [overload for overload in found if overload is not None]


def test_a_runner_at_one_cpu_with_idle_slots_is_the_limit_and_says_it_once() -> None:
    (found,) = after(300, cpus=0.95, idle=lambda _: 7)
    assert (round(found.cpus, 2), found.idle) == (0.95, 7)


def test_it_takes_a_minute() -> None:
    assert after(int(WATCHED_SECONDS) - 1, cpus=1.0, idle=lambda _: 7) == []
    assert len(after(int(WATCHED_SECONDS), cpus=1.0, idle=lambda _: 7)) == 1


def test_a_runner_with_time_left_is_not_the_limit() -> None:
    assert after(300, cpus=0.85, idle=lambda _: 7) == []


def test_busy_slots_have_no_use_for_a_faster_runner() -> None:
    """A slot may be idle now and then, between two tasks."""
    assert after(300, cpus=1.0, idle=lambda second: 7 * (second % 3 == 0)) == []


def test_only_the_last_minute_counts() -> None:
    load = RunnerLoad()
    assert after(200, cpus=0.1, idle=lambda _: 7, load=load) == []
    cpu_s = [20.0 + second for second in range(1, 61)]
    said = [load.look(200.0 + n, used_s, 7) for n, used_s in enumerate(cpu_s, 1)]
    assert [n for n, overload in enumerate(said, 1) if overload] == [54]  # 54 s at 1.0 and 6 s at 0.1: 0.91


def test_looks_are_due_once_a_second_until_it_has_said_something() -> None:
    load = RunnerLoad()
    assert load.is_due(10.0)
    load.look(10.0, 0.0, 1)
    assert not load.is_due(10.0 + LOOK_SECONDS / 2)
    assert load.is_due(10.0 + LOOK_SECONDS)
    assert load.look(10.0 + WATCHED_SECONDS, WATCHED_SECONDS, 1) is not None
    assert not load.is_due(10.0 + 2 * WATCHED_SECONDS)
