"""The verdict for each kind of death, what follows from each bad end, and the text of byte counts."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from mops.child.channel import FILES_LOST, Step
from mops.recovery import (
    DEATHS_BETWEEN,
    AfterStep,
    BetweenSteps,
    Death,
    EndedBy,
    StepDeaths,
    Then,
    after_death_between_steps,
    after_death_in_step,
    after_error,
    after_loss,
    replacement_size,
    verdict_of,
)
from mops.units import bytes_text
from mops.verdicts import Report

KILLED = -signal.SIGKILL


def death(
    returncode: int | None, by: EndedBy = "itself", kernel_kills: int | None = None, *, is_exact: bool = False
) -> Death:
    return Death(returncode, Step(0, 0), by, 1.0, "", 300 << 20, 200 << 20, kernel_kills, is_exact=is_exact)


def test_a_kill_by_the_kernel_is_distinguished_from_other_deaths(subtests: pytest.Subtests) -> None:
    for found, reason, by_kernel in [
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
    ]:
        with subtests.test(str((found, reason, by_kernel))):
            assert (verdict_of(found, 5.0).reason, found.by_kernel) == (reason, by_kernel)


def test_a_stop_signal_is_one_that_mops_has_not_sent(subtests: pytest.Subtests) -> None:
    for found, by_stop_signal in [
        (death(-signal.SIGTERM), True),
        (death(-signal.SIGINT), True),
        (death(-signal.SIGUSR1), True),
        (death(None), True),  # its template died too
        (death(None, kernel_kills=1), False),
        (death(-signal.SIGTERM, "memory"), False),  # mops has sent it
        (death(KILLED), False),
        (death(-signal.SIGSEGV), False),
        (death(15), False),
    ]:
        with subtests.test(str((found, by_stop_signal))):
            assert found.by_stop_signal is by_stop_signal


def test_the_signals_name_the_killer_and_the_kernels_count(subtests: pytest.Subtests) -> None:
    for found, signals in [
        (death(-6), "return code -6"),
        (death(KILLED, kernel_kills=2), "the kernel counts 2 more killed for memory; return code -9"),
        (death(KILLED, "timeout"), "ended by the worker (timeout); return code -9"),
        (death(KILLED, "memory"), "ended by the worker (memory); return code -9"),
        (death(0, "silence"), "ended by the worker (silence); return code 0"),
    ]:
        with subtests.test(str((found, signals))):
            assert verdict_of(found, 5.0).signals == signals


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_breach_says_whether_shared_pages_count(*, is_exact: bool) -> None:
    message = verdict_of(death(KILLED, "memory", is_exact=is_exact), None).message
    assert message.startswith("used 300 MiB of its 200 MiB limit; ")
    assert ("shared pages count in part" in message) is is_exact


def test_the_text_names_the_cause_of_the_death(subtests: pytest.Subtests) -> None:
    for found, cause in [
        (death(KILLED, "timeout"), "more than 5 s"),
        (death(KILLED, "memory"), "of its 200 MiB limit"),
        (death(KILLED, "silence"), "closed the socket"),
        (death(KILLED), "ended with SIGKILL (Killed) after 1.0 s, probably because the system ran out of memory"),
        (death(3), "exit code 3"),
        (death(None), "ended in an unknown way"),
        (death(-100), "ended with signal 100"),
    ]:
        with subtests.test(str((found, cause))):
            assert cause in verdict_of(found, 5.0).happened


def test_only_a_foreign_sigkill_is_attributed_to_memory(subtests: pytest.Subtests) -> None:
    for returncode, by_memory in [(KILLED, True), (-signal.SIGSEGV, False), (signal.SIGKILL, False), (None, False)]:
        with subtests.test(str((returncode, by_memory))):
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


def test_bytes_are_shown_in_the_largest_unit_that_fits(subtests: pytest.Subtests) -> None:
    for n_bytes, text in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 10, "1 KiB"),
        ((1 << 20) - 1, "1024 KiB"),
        (1 << 20, "1 MiB"),
        ((1 << 30) - 1, "1,024 MiB"),
        (1 << 30, "1.0 GiB"),
        (1500 << 30, "1,500.0 GiB"),
    ]:
        with subtests.test(str((n_bytes, text))):
            assert bytes_text(n_bytes) == text


LARGE = StepDeaths(size_in_first=100)
TERMINATED = -signal.SIGTERM


def memory(size_before: int) -> Death:
    return replace(death(KILLED, "memory"), size_before=size_before)


def test_what_follows_for_the_step_during_which_a_child_died(subtests: pytest.Subtests) -> None:
    for found, before, given, then in [
        (death(KILLED, "start"), StepDeaths(), {"arrived": True}, AfterStep.ANOTHER_START),
        (death(-6), StepDeaths(), {"arrived": True}, AfterStep.KEPT),
        (memory(100), StepDeaths(), {}, AfterStep.FRESH_PROCESS),
        (memory(100), StepDeaths(), {"retries": 0}, AfterStep.FRESH_PROCESS),
        (memory(100), StepDeaths(), {"alone": True}, AfterStep.FRESH_PROCESS),
        (memory(100), LARGE, {}, AfterStep.ALONE_LATER),
        (memory(0), StepDeaths(), {}, AfterStep.ALONE_LATER),
        (memory(0), StepDeaths(tries=5), {}, AfterStep.ALONE_LATER),
        (memory(0), StepDeaths(), {"retries": 0}, AfterStep.FAILED),
        (memory(0), StepDeaths(), {"alone": True}, AfterStep.FAILED),
        (death(-6), StepDeaths(), {"is_stopping": True}, AfterStep.NOT_RUN),
        (death(TERMINATED), StepDeaths(), {"is_stopping": True}, AfterStep.NOT_RUN),
        (death(7), StepDeaths(), {"is_stopping": True, "retries": 0}, AfterStep.FAILED),
        (death(TERMINATED), StepDeaths(), {"retries": 0, "alone": True}, AfterStep.AGAIN),
        (death(TERMINATED), StepDeaths(was_stopped=True), {}, AfterStep.RETRY),
        (death(-6), StepDeaths(), {}, AfterStep.RETRY),
        (death(-6), StepDeaths(tries=1), {}, AfterStep.FAILED),
        (death(-6), StepDeaths(), {"alone": True}, AfterStep.FAILED),
        (death(KILLED, kernel_kills=1), StepDeaths(), {}, AfterStep.RETRY),
        (death(KILLED, kernel_kills=1), StepDeaths(tries=1), {}, AfterStep.ALONE_LATER),
        (death(KILLED, kernel_kills=1), StepDeaths(tries=1), {"alone": True}, AfterStep.FAILED),
        (death(KILLED, kernel_kills=1), StepDeaths(), {"retries": 0}, AfterStep.FAILED),
        (death(KILLED, "timeout"), StepDeaths(), {}, AfterStep.FAILED),
    ]:
        with subtests.test(str((found, before, given, then))):
            situation: dict[str, Any] = {"arrived": False, "retries": 1, "alone": False, "is_stopping": False} | given
            assert after_death_in_step(found, verdict_of(found, 5.0).reason, before, **situation) is then


def test_what_follows_after_a_child_died_between_two_steps(subtests: pytest.Subtests) -> None:
    for returncode, n_in_a_row, has_bundle, then in [
        (-6, 1, True, BetweenSteps.ANOTHER_CHILD),
        (-6, 1, False, BetweenSteps.UNPACK_AGAIN),
        (FILES_LOST, 1, True, BetweenSteps.UNPACK_AGAIN),
        (FILES_LOST, DEATHS_BETWEEN, True, BetweenSteps.RAISE),
    ]:
        with subtests.test(str((returncode, n_in_a_row, has_bundle, then))):
            assert after_death_between_steps(death(returncode), n_in_a_row, has_bundle=has_bundle) is then


def test_children_are_replaced_before_they_have_the_smallest_size_that_was_too_large() -> None:
    assert [replacement_size(*sizes) for sizes in ((0, 0), (0, 100), (90, 0), (90, 200), (90, 50))] == [
        0,
        90,
        90,
        90,
        45,
    ]


def test_what_follows_for_a_lost_task(subtests: pytest.Subtests) -> None:
    for given, then in [
        ({"blamed": False}, Then.AGAIN),
        ({"blamed": False, "alone": True}, Then.AGAIN),
        ({}, Then.SMALLER),
        ({"alone": True}, Then.SMALLER),
        ({"alone": True, "n_units": 1}, Then.FAILED),
        ({"alone": True, "n_units": 0}, Then.FAILED),  # only targets
        ({"n_units": 1}, Then.SMALLER),
        ({"n_in_a_row": 101}, Then.END),
        ({"n_in_a_row": 101, "most_in_flight": 101}, Then.SMALLER),
    ]:
        with subtests.test(str((given, then))):
            situation: dict[str, Any] = {
                "blamed": True,
                "alone": False,
                "n_units": 3,
                "n_in_a_row": 1,
                "most_in_flight": 8,
            }
            assert after_loss(**(situation | given)) is then


def test_what_follows_for_a_task_that_raised(subtests: pytest.Subtests) -> None:
    for given, then in [
        ({}, (Then.ELSEWHERE, False)),
        ({"n_raised": 3}, (Then.SMALLER, False)),
        ({"n_raised": 2, "alone": True}, (Then.ELSEWHERE, False)),
        ({"n_raised": 3, "alone": True}, (Then.END, False)),
        ({"n_in_a_row": 3}, (Then.ELSEWHERE, True)),
        ({"n_in_a_row": 3, "retired": {"b"}}, (Then.END, True)),
        ({"n_in_a_row": 3, "workers": set()}, (Then.ELSEWHERE, True)),
        ({"n_in_a_row": 3, "worker": ""}, (Then.END, True)),
        ({"same_error": {"a"}}, (Then.ELSEWHERE, False)),
        ({"same_error": {"a", "b"}}, (Then.END, False)),
        ({"same_error": {"a", "b"}, "workers": {*"abcd"}}, (Then.ELSEWHERE, False)),
        ({"same_error": {"a", "b", "c"}, "workers": {*"abcd"}}, (Then.END, False)),
    ]:
        with subtests.test(str((given, then))):
            situation: dict[str, Any] = {
                "alone": False,
                "n_raised": 1,
                "n_in_a_row": 1,
                "worker": "a",
                "workers": {"a", "b"},
            }
            assert after_error(**({"retired": set(), "same_error": set()} | situation | given)) == then
