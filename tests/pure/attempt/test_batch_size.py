"""How much runs at once if MODELOPS_JOB_BATCH_SIZE is not set, or ``auto``."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mops.attempt.sizing import (
    LEAST_GROUPS,
    MARGIN,
    MOST_GROUPS,
    MOST_PER_SLOT,
    TASKS_PER_SLOT,
    BatchSize,
    BatchSizer,
    Resources,
    TaskUsage,
    batch_size_for,
    first_groups,
    room_for_results,
)
from mops.system.resources import HEADROOM_BYTES

MIB, GIB = 1 << 20, 1 << 30
ROOM = Resources(slots=8, workers=2, result_bytes=256 * MIB, task_bytes=64 * MIB, task_seconds=1.0)
TASK = TaskUsage(200 * MIB, 64 << 10, seconds=0.1, groups=1, allowed_bytes=8 * GIB, own_bytes=GIB)


def test_the_worker_with_the_least_free_memory_decides_even_if_it_is_the_larger_one() -> None:
    roomy = replace(TASK, allowed_bytes=8 * GIB, own_bytes=GIB)
    crowded = replace(TASK, allowed_bytes=10 * GIB, own_bytes=8 * GIB)
    assert "2.0 GiB on a worker" in batch_size_for([roomy, crowded], ROOM).explanation


def test_light_simulations_use_every_slot() -> None:
    sizes = batch_size_for([TASK], ROOM)
    assert (sizes.per_worker, "320 parameter sets in flight, 10 in a task" in sizes.explanation) == (4, True)
    assert sizes.groups == TASKS_PER_SLOT * 8 * 10


def test_fewer_heavy_simulations_run_at_once() -> None:
    sizes = batch_size_for([replace(TASK, peak_bytes=2 * GIB, seconds=30.0)], ROOM)
    assert (sizes.per_worker, sizes.groups) == (2, 16)
    assert sizes.explanation == (
        "2 of 4 simulations at once (up to 2.0 GiB each, 7.0 GiB on a worker); "
        "16 parameter sets in flight, 1 in a task (30 s and 64 KiB each, 256 MiB for results)"
    )
    assert batch_size_for([replace(TASK, peak_bytes=20 * GIB)], ROOM).per_worker == 1


UNSET = Resources(8, 2, result_bytes=256 * MIB, task_bytes=64 * MIB, task_seconds=1.0, is_auto=False)


def test_if_it_is_not_set_few_slots_have_200_groups_and_many_have_what_keeps_them_busy() -> None:
    assert first_groups(8, is_auto=False) == LEAST_GROUPS == 200
    assert first_groups(160, is_auto=False) == 640
    assert first_groups(8, is_auto=True) == 32
    second, wide = replace(TASK, seconds=1.0, peak_bytes=20 * GIB), replace(UNSET, slots=160, workers=20)
    assert batch_size_for([second], UNSET).groups == LEAST_GROUPS
    found = batch_size_for([second], wide)
    assert (found.groups, found.per_worker) == (TASKS_PER_SLOT * 160, 8), "memory limits no simulation at once"
    short = replace(TASK, seconds=1e-3, result_bytes=10)
    assert batch_size_for([short], UNSET).groups == MOST_PER_SLOT * 8, "short ones wait in longer tasks"
    large = replace(second, result_bytes=100 * MIB)
    found = batch_size_for([large], wide)
    assert found.groups == LEAST_GROUPS, "results have no room for more"


@given(
    st.integers(1, 2_000),
    st.integers(1, 40),
    st.floats(1e-5, 1e4),
    st.integers(0, 1 << 30),
    st.floats(1.0, 10.0),
)
def test_if_it_is_not_set_no_slot_is_idle_unless_results_have_no_room(
    slots: int, workers: int, seconds: float, result_bytes: int, task_seconds: float
) -> None:
    workers = min(workers, slots)
    slots -= slots % workers
    room = replace(UNSET, slots=slots, workers=workers, result_bytes=8 * GIB, task_seconds=task_seconds)
    groups = batch_size_for([replace(TASK, seconds=seconds, result_bytes=result_bytes)], room).groups
    assert groups >= LEAST_GROUPS
    assert groups >= 2 * slots or groups * result_bytes > 0.9 * room.result_bytes
    assert groups <= max(LEAST_GROUPS, MOST_PER_SLOT * slots)


def test_large_results_bound_the_window() -> None:
    sizes = batch_size_for([replace(TASK, result_bytes=50 * MIB)], ROOM)
    assert sizes.groups == 5
    assert "5 parameter sets in flight, 1 in a task (0.1 s and 50 MiB each, 256 MiB for results)" in sizes.explanation
    assert batch_size_for([replace(TASK, result_bytes=GIB)], ROOM).groups == 1


def test_large_results_make_tasks_smaller_so_that_every_slot_has_two() -> None:
    sizes = batch_size_for([replace(TASK, result_bytes=5 * MIB)], ROOM)
    assert "51 parameter sets in flight, 3 in a task" in sizes.explanation


def test_a_window_of_short_groups_makes_tasks_that_run_to_their_end() -> None:
    """Tasks held more groups than their bytes allow. They came back early, and the other groups were sent again."""
    short = replace(TASK, seconds=0.001, result_bytes=64 << 10)
    sizes = batch_size_for([short], replace(ROOM, task_bytes=4 * MIB))
    assert "1024 parameter sets in flight, 64 in a task" in sizes.explanation
    assert 64 * short.result_bytes == 4 * MIB


def test_groups_larger_than_a_task_still_make_tasks_for_every_slot() -> None:
    sizes = batch_size_for([replace(TASK, result_bytes=5 * MIB)], replace(ROOM, task_bytes=4 * MIB))
    assert sizes.groups == TASKS_PER_SLOT * ROOM.slots


def test_a_group_without_results_counts_as_a_byte() -> None:
    assert batch_size_for([replace(TASK, result_bytes=0)], replace(ROOM, result_bytes=10)).groups == 10


def test_a_task_of_many_groups_is_measured_per_group() -> None:
    fused = replace(TASK, result_bytes=10 * TASK.result_bytes, seconds=10 * TASK.seconds, groups=10)
    assert batch_size_for([fused], ROOM) == batch_size_for([TASK], ROOM)


def test_a_worker_above_its_limit_runs_one_simulation_at_a_time() -> None:
    sizes = batch_size_for([replace(TASK, own_bytes=9 * GIB)], ROOM)
    assert "1 of 4 simulations at once (up to 200 MiB each, 0 B on a worker)" in sizes.explanation


def test_room_for_results_is_the_workers_budget_and_a_quarter_of_the_runners_memory() -> None:
    assert room_for_results(256 * MIB, 2, 10 * GIB) == 512 * MIB
    assert room_for_results(256 * MIB, 2, GIB) == 256 * MIB
    assert room_for_results(256 * MIB, 2, -GIB) == 1


def test_without_fusion_the_window_counts_single_groups() -> None:
    assert batch_size_for([TASK], replace(ROOM, task_seconds=0.0)).groups == TASKS_PER_SLOT * 8


def test_many_short_groups_are_limited_to_a_fixed_number() -> None:
    assert batch_size_for([replace(TASK, seconds=1e-5, result_bytes=10)], ROOM).groups == MOST_GROUPS


def test_one_greedy_parameter_set_among_many_does_not_slow_the_others() -> None:
    greedy = replace(TASK, peak_bytes=6 * GIB)
    assert batch_size_for([TASK] * 19 + [greedy], ROOM).per_worker == 4
    assert batch_size_for([TASK] * 4 + [greedy] * 4, ROOM).per_worker == 1


def test_a_simulation_gets_the_memory_that_nine_in_ten_need() -> None:
    greedy = replace(TASK, peak_bytes=6 * GIB)
    assert batch_size_for([TASK] * 9 + [greedy], ROOM).per_worker == 4
    assert batch_size_for([TASK] * 8 + [greedy] * 2, ROOM).per_worker == 1


def test_old_measurements_are_forgotten() -> None:
    batch_sizer = BatchSizer()
    for task in [replace(TASK, peak_bytes=6 * GIB)] * 64 + [TASK] * 64:
        batch_sizer.add(task)
    assert batch_sizer.size(ROOM) == batch_size_for([TASK], ROOM)


def test_the_batch_size_is_computed_after_1_2_4_8_tasks_and_so_on() -> None:
    batch_sizer, due = BatchSizer(), []
    assert batch_sizer.size(ROOM) is None
    for n in range(1, 300):
        batch_sizer.add(TASK)
        due += [n] if batch_sizer.is_due else []
    assert due == [1, 2, 4, 8, 16, 32, 64]
    assert batch_sizer.size(ROOM) is not None


def test_a_task_that_finished_no_group_is_not_a_measurement() -> None:
    batch_sizer = BatchSizer()
    batch_sizer.add(replace(TASK, groups=0))
    assert batch_sizer.size(replace(ROOM, slots=1, workers=1)) is None


def test_a_batch_size_within_a_tenth_of_the_last_one_does_not_differ() -> None:
    sizes = BatchSize(100, 4, "")
    assert sizes.differs(None)
    assert not replace(sizes, groups=108, explanation="other figures").differs(sizes)
    assert not replace(sizes, groups=110).differs(sizes)
    assert replace(sizes, groups=111).differs(sizes)
    assert replace(sizes, per_worker=3).differs(sizes)


@given(
    peak=st.integers(0, 64 * GIB),
    result=st.integers(0, 2 * GIB),
    seconds=st.floats(0, 1e4),
    allowed=st.integers(64 * MIB, 256 * GIB),
    own=st.integers(0, 4 * GIB),
    slots=st.integers(1, 64),
    workers=st.integers(1, 16),
)
def test_simulations_that_run_at_once_fit_into_memory_or_are_only_one(
    peak: int, result: int, seconds: float, allowed: int, own: int, slots: int, workers: int
) -> None:
    room = replace(ROOM, slots=slots * workers, workers=workers)
    sizes = batch_size_for([TaskUsage(peak, result, seconds, 1, allowed, own)], room)
    assert 1 <= sizes.per_worker <= slots
    assert sizes.per_worker == 1 or sizes.per_worker * (MARGIN * peak + HEADROOM_BYTES) <= allowed - own
    assert sizes.groups == 1 or sizes.groups * result <= room.result_bytes
    assert 1 <= sizes.groups <= MOST_GROUPS
