"""What the signals of a death come to, case by case; and how bytes are shown."""

from __future__ import annotations

import signal

import pytest

from mops.worker.verdict import Death, shown, verdict_of
from mops.worker.wire import Unit

KILLED = -signal.SIGKILL


def death(returncode: int | None, by: str = "itself", kernel_kills: int | None = None, *, own: bool = False) -> Death:
    return Death(returncode, Unit(0, 0), by, 1.0, "", 300 << 20, 200 << 20, kernel_kills, own=own)


@pytest.mark.parametrize(
    ("found", "reason", "by_kernel"),
    [
        (death(KILLED, kernel_kills=1), "oom", True),
        (death(KILLED, kernel_kills=0), "crashed", False),
        (death(KILLED, kernel_kills=None), "crashed", False),
        (death(None, kernel_kills=1), "oom", True),  # its template went with it, and nobody can tell how it ended
        (death(None, kernel_kills=0), "crashed", False),
        (death(-signal.SIGSEGV, kernel_kills=1), "crashed", False),  # the kernel killed another one
        (death(0, kernel_kills=1), "crashed", False),
        (death(KILLED, "memory", 1), "oom", False),
        (death(KILLED, "timeout", 1), "timeout", False),
        (death(KILLED, "silence", 1), "crashed", False),
    ],
)
def test_a_death_by_the_kernel_is_told_from_all_others(found: Death, reason: str, *, by_kernel: bool) -> None:
    assert (verdict_of(found, 5.0).reason, found.by_kernel) == (reason, by_kernel)


@pytest.mark.parametrize(
    ("found", "signals"),
    [
        (death(-6), "return code -6"),
        (death(KILLED, kernel_kills=2), "the kernel counts 2 more killed for memory; return code -9"),
        (death(KILLED, "timeout"), "ended by the worker (timeout); return code -9"),
        (death(KILLED, "memory"), "ended by the worker (memory); return code -9"),
        (death(0, "silence"), "ended by the worker (silence); return code 0"),
    ],
)
def test_the_signals_say_who_ended_it_and_what_the_kernel_counts(found: Death, signals: str) -> None:
    assert verdict_of(found, 5.0).signals == signals


@pytest.mark.parametrize(("own", "took"), [(True, "took 300 MiB of their own, more"), (False, "took 300 MiB, more")])
def test_a_breach_says_whether_shared_pages_are_in_what_was_taken(took: str, *, own: bool) -> None:
    assert took in verdict_of(death(KILLED, "memory", own=own), None).happened


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 10, "1 KiB"),
        ((1 << 20) - 1, "1024 KiB"),
        (1 << 20, "1 MiB"),
        ((1 << 30) - 1, "1,024 MiB"),
        (1 << 30, "1.0 GiB"),
        (1500 << 30, "1,500.0 GiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit_that_they_fill(n_bytes: int, text: str) -> None:
    assert shown(n_bytes) == text
