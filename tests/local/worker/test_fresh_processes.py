"""mops replaces children after a number of simulations or a growth of memory, and loses no result."""

from __future__ import annotations

from pathlib import Path

import pytest
from pool_lab import PoolLab, values

from mops.child.leftovers import ReplacementPolicy
from mops.task import TaskResult

PIDS = "import os\n\ndef run(p, s):\n    return {'pid': os.getpid()}\n"
# Each simulation leaks 20 MiB, which only the end of the process frees.
LEAKS = (
    "import ctypes, os\nlibc = ctypes.CDLL(None)\nlibc.malloc.restype = ctypes.c_void_p\n\n"
    "def run(p, s):\n    ctypes.memset(libc.malloc(20 << 20), 1, 20 << 20)\n    return {'pid': os.getpid()}\n"
)


def pids_of(result: TaskResult) -> list[int]:
    return [pid for _, (pid,) in sorted(values(result, "pid").items())]


@pytest.mark.parametrize(("most", "n_processes"), [(0, 1), (1, 6), (2, 3), (4, 2), (100, 1)])
def test_a_child_is_replaced_after_a_number_of_simulations(lab: PoolLab, most: int, n_processes: int) -> None:
    result = lab.run(lab.pool(PIDS, tasks_per_child=most), [{"a": 0}, {"a": 1}], n_replicates=3)
    assert (result.done, result.failures) == ({0, 1}, [])
    pids = pids_of(result)
    assert len(pids) == 6
    assert len(set(pids)) == n_processes


def test_targets_get_replicates_of_earlier_processes(lab: PoolLab) -> None:
    code = (
        PIDS
        + "\ndef score(p, replicates):\n    return float(len({r['output']['pid'][0].as_py() for r in replicates}))\n"
    )
    pool = lab.pool(code, targets=("model:score",), tasks_per_child=1)
    result = lab.run(pool, [{"a": 0}], n_replicates=4)
    assert [loss.loss for loss in result.losses] == [4.0]
    assert len(values(result, "pid")) == 4


def test_a_replicate_that_fails_counts_as_a_simulation(lab: PoolLab) -> None:
    code = (
        "import os\n\ndef run(p, s):\n    if p['a'] == 1:\n        raise ValueError\n    return {'pid': os.getpid()}\n"
    )
    result = lab.run(lab.pool(code, tasks_per_child=1), [{"a": i} for i in range(3)])
    assert result.done == {0, 1, 2}
    assert len(set(pids_of(result))) == 2
    assert [(failure.group, failure.attempts) for failure in result.failures] == [(1, 1)]


def test_a_split_group_continues_in_a_fresh_process(lab: PoolLab) -> None:
    result = lab.run(lab.pool(PIDS, tasks_per_child=2), [{"a": 0}], n_replicates=5, replicates=(0, 2, 4))
    assert result.replicates == {0, 2, 4}
    assert len(set(pids_of(result))) == 2


def test_a_task_over_its_budget_still_ends_at_a_groups_border(lab: PoolLab) -> None:
    pool = lab.pool(PIDS, tasks_per_child=1)
    result = lab.run(pool, [{"a": i} for i in range(3)], n_replicates=2, seconds=0.0)
    assert result.done == {0}
    assert sorted(values(result, "pid")) == [(0, 0), (0, 1)]


def test_a_leaking_child_is_replaced_before_it_is_too_large(lab: PoolLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    result = lab.run(lab.pool(LEAKS, growth_bytes=100 << 20), [{"a": i} for i in range(20)])
    assert len(result.done) == 20
    pids = pids_of(result)
    # Six simulations after the first leak more than 100 MiB. The child measures at most 50 times a second.
    assert 7 <= max(map(pids.count, pids)) <= 10
    assert "has grown by" in caplog.text


def test_without_a_limit_a_child_may_grow(lab: PoolLab) -> None:
    result = lab.run(lab.pool(LEAKS, growth_bytes=0), [{"a": i} for i in range(20)])
    assert len(set(pids_of(result))) == 1


def test_memory_that_a_collection_frees_is_not_growth(lab: PoolLab) -> None:
    code = (
        "import os\n\ndef run(p, s):\n    cycle = [bytearray(20 << 20)]\n    cycle.append(cycle)\n"
        "    return {'pid': os.getpid()}\n"
    )
    result = lab.run(lab.pool(code, growth_bytes=100 << 20), [{"a": i} for i in range(30)])
    assert len(set(pids_of(result))) == 1


def test_held_results_are_not_growth(lab: PoolLab) -> None:
    code = "import os\nimport numpy as np\n\ndef run(p, s):\n    return {'pid': np.full(5 << 20, os.getpid())}\n"
    result = lab.run(lab.pool(code, growth_bytes=150 << 20), [{"a": 0}], n_replicates=8)
    assert len({pid for held in values(result, "pid").values() for pid in held[:1]}) == 1


def test_growth_counts_from_the_first_simulation_on() -> None:
    policy = ReplacementPolicy(0, 1, Path("/tmp"))
    ballast = bytearray(50 << 20)
    policy.finished(0)
    assert not policy.reason, "memory of the imports must not count as growth"
    del ballast
