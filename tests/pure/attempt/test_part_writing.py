"""The process that encodes and stores the rows of a job: the runner or a worker."""

from __future__ import annotations

from typing import Any

import pytest

from mops.attempt.sizing import RUNNER_BYTES_PER_SECOND, PartWriting

MIB = 1 << 20


def writing(setting: Any, *, is_embedded: bool) -> PartWriting:
    return PartWriting(setting, is_embedded=is_embedded, checkpoint_bytes=64 * MIB)


def test_the_setting_decides_before_anything_is_measured(subtests: pytest.Subtests) -> None:
    for setting, is_embedded, in_tasks, by_workers in [
        ("runner", True, False, False),
        ("runner", False, False, False),
        ("worker", True, True, False),
        ("worker", False, True, True),
        ("auto", True, True, False),
        ("auto", False, False, False),
    ]:
        with subtests.test(str((setting, is_embedded, in_tasks, by_workers))):
            parts = writing(setting, is_embedded=is_embedded)
            assert (parts.in_tasks(8), parts.by_workers(8)) == (in_tasks, by_workers)


def test_auto_lets_workers_write_when_all_slots_together_make_more_than_the_runner_encodes() -> None:
    parts = writing("auto", is_embedded=False)
    parts.add(4 * MIB, seconds=2.0)
    n_slots = RUNNER_BYTES_PER_SECOND // (2 * MIB)
    assert not parts.by_workers(n_slots - 1)
    assert parts.by_workers(n_slots)
    for _ in range(50):
        parts.add(1, seconds=2.0)
    assert not parts.by_workers(n_slots), "recent tasks count most"


def test_a_task_that_writes_may_have_two_parts_whatever_the_number_of_slots() -> None:
    assert writing("worker", is_embedded=False).task_bytes(1_000) == 32 * MIB
    assert writing("runner", is_embedded=False).task_bytes(1_000) == MIB
    assert writing("runner", is_embedded=True).task_bytes(1) == 32 * MIB
