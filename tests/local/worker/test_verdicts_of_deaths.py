"""The verdict for each kind of death, and the text of byte counts."""

from __future__ import annotations

import signal

import pytest

from mops.child.channel import Step
from mops.units import bytes_text
from mops.verdicts import Report
from mops.worker.deaths import Death, EndedBy, verdict_of

KILLED = -signal.SIGKILL


def death(
    returncode: int | None, by: EndedBy = "itself", kernel_kills: int | None = None, *, is_exact: bool = False
) -> Death:
    return Death(returncode, Step(0, 0), by, 1.0, "", 300 << 20, 200 << 20, kernel_kills, is_exact=is_exact)


@pytest.mark.parametrize(
    ("found", "reason", "by_kernel"),
    [
        (death(KILLED, kernel_kills=1), "oom", True),
        (death(KILLED, kernel_kills=0), "crashed", False),
        (death(KILLED, kernel_kills=None), "crashed", False),
        (death(None, kernel_kills=1), "oom", True),  # its template died too, so its exit code is unknown
        (death(None, kernel_kills=0), "crashed", False),
        (death(-signal.SIGSEGV, kernel_kills=1), "crashed", False),  # the kernel killed another process
        (death(0, kernel_kills=1), "crashed", False),
        (death(KILLED, "memory", 1), "oom", False),
        (death(KILLED, "timeout", 1), "timeout", False),
        (death(KILLED, "silence", 1), "crashed", False),
    ],
)
def test_a_kill_by_the_kernel_is_distinguished_from_other_deaths(found: Death, reason: str, *, by_kernel: bool) -> None:
    assert (verdict_of(found, 5.0).reason, found.by_kernel) == (reason, by_kernel)


@pytest.mark.parametrize(
    ("found", "by_stop_signal"),
    [
        (death(-signal.SIGTERM), True),
        (death(-signal.SIGINT), True),
        (death(-signal.SIGUSR1), True),
        (death(None), True),  # its template died too
        (death(None, kernel_kills=1), False),
        (death(-signal.SIGTERM, "memory"), False),  # mops has sent it
        (death(KILLED), False),
        (death(-signal.SIGSEGV), False),
        (death(15), False),
    ],
)
def test_a_stop_signal_is_one_that_mops_has_not_sent(found: Death, *, by_stop_signal: bool) -> None:
    assert found.by_stop_signal is by_stop_signal


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
def test_the_signals_name_the_killer_and_the_kernels_count(found: Death, signals: str) -> None:
    assert verdict_of(found, 5.0).signals == signals


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_breach_says_whether_shared_pages_count(*, is_exact: bool) -> None:
    message = verdict_of(death(KILLED, "memory", is_exact=is_exact), None).message
    assert message.startswith("used 300 MiB of its 200 MiB limit; ")
    assert ("shared pages count in part" in message) is is_exact


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (death(KILLED, "timeout"), "more than 5 s"),
        (death(KILLED, "memory"), "of its 200 MiB limit"),
        (death(KILLED, "silence"), "closed the socket"),
        (death(KILLED), "ended with SIGKILL (Killed) after 1.0 s, probably because the system ran out of memory"),
        (death(3), "exit code 3"),
        (death(None), "ended in an unknown way"),
        (death(-100), "ended with signal 100"),
    ],
)
def test_the_text_names_the_cause_of_the_death(found: Death, cause: str) -> None:
    assert cause in verdict_of(found, 5.0).happened


@pytest.mark.parametrize(
    ("returncode", "by_memory"), [(KILLED, True), (-signal.SIGSEGV, False), (signal.SIGKILL, False), (None, False)]
)
def test_only_a_foreign_sigkill_is_attributed_to_memory(returncode: int | None, *, by_memory: bool) -> None:
    assert ("out of memory" in verdict_of(death(returncode), None).message) is by_memory


def test_a_verdict_includes_the_output_and_the_measured_memory() -> None:
    verdict = verdict_of(Death(-6, Step(0, 0), "itself", 1.0, "the last line", 300 << 20, 200 << 20), None)
    assert (verdict.traceback, verdict.peak_bytes, verdict.limit_bytes) == ("the last line", 300 << 20, 200 << 20)
    assert verdict.peak_at_least is True, "it is looked at now and then: the peak may have been higher"


def test_a_verdict_has_no_value_that_was_not_measured() -> None:
    verdict = verdict_of(Death(-6, Step(0, 0), "itself", 1.0, ""), None)
    assert (verdict.peak_bytes, verdict.peak_at_least, verdict.limit_bytes) == (None, None, None)


def test_the_message_of_a_death_has_the_cause_and_a_hint() -> None:
    verdict = verdict_of(death(-6), None)
    assert verdict.happened
    assert verdict.hint
    assert verdict.message == f"{verdict.happened}; {verdict.hint}"


def test_a_report_is_one_line() -> None:
    report = Report("oom", "group 4 replicate 0 used 1.0 GiB of its 1.0 GiB limit on vm", "retrying in a fresh process")
    line = "oom: group 4 replicate 0 used 1.0 GiB of its 1.0 GiB limit on vm; retrying in a fresh process"
    assert str(report) == line


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
def test_bytes_are_shown_in_the_largest_unit_that_fits(n_bytes: int, text: str) -> None:
    assert bytes_text(n_bytes) == text
