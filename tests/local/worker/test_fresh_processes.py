"""mops replaces children for a reason that metrics count, and loses no result."""

from __future__ import annotations

import resource
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from pool_lab import PoolLab, request_for, values

from cases import case_folder
from mops.child.leftovers import ReplacementPolicy
from mops.recovery import EndedBy
from mops.study.groups import Group
from mops.study.ids_and_seeds import param_id
from mops.task import TaskResult
from mops.worker import slots

WARM_CHILDREN = True
PIDS = "import os\n\ndef run(p, s):\n    return {'pid': os.getpid()}\n"
# Each simulation leaks 20 MiB, which only the end of the process frees.
LEAKS = (
    "import ctypes, os\nlibc = ctypes.CDLL(None)\nlibc.malloc.restype = ctypes.c_void_p\n\n"
    "def run(p, s):\n    ctypes.memset(libc.malloc(20 << 20), 1, 20 << 20)\n    return {'pid': os.getpid()}\n"
)


def pids_of(result: TaskResult) -> list[int]:
    return [pid for _, (pid,) in sorted(values(result, "pid").items())]


def replaced_since(before: dict[str, int]) -> dict[str, int]:
    """Return how many children were replaced since then, by reason."""
    return Counter(slots.counts()[1]) - Counter(before)


@pytest.mark.parametrize(
    ("most", "n_processes", "replaced"), [(0, 1, {}), (1, 6, {"simulations": 6}), (2, 3, {"simulations": 3})]
)
def test_a_child_is_replaced_after_a_number_of_simulations(
    lab: PoolLab, most: int, n_processes: int, replaced: dict[str, int]
) -> None:
    before = slots.counts()[1]
    result = lab.run(lab.pool(PIDS, tasks_per_child=most), [{"a": 0}, {"a": 1}], n_replicates=3)
    assert (result.done, result.failures) == ({0, 1}, [])
    pids = pids_of(result)
    assert len(pids) == 6
    assert len(set(pids)) == n_processes
    assert replaced_since(before) == replaced


def test_a_policy_counts_the_simulations_of_its_process(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for most, replaced_after in [(0, []), (1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [4]), (100, [])]:
        with case_folder(subtests, tmp_path, (most, replaced_after)) as folder:
            policy, after = ReplacementPolicy(most, 0, folder), []
            for n in range(1, 7):
                policy.finished(0)
                if policy.reason:
                    assert policy.code == "simulations"
                    policy = ReplacementPolicy(most, 0, folder)
                    after.append(n)
            assert after == replaced_after


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
    before = slots.counts()[1]
    result = lab.run(lab.pool(LEAKS, growth_bytes=100 << 20), [{"a": i} for i in range(20)])
    assert len(result.done) == 20
    pids = pids_of(result)
    # Six simulations after the first leak more than 100 MiB. The child measures at most 50 times a second.
    assert 7 <= max(map(pids.count, pids)) <= 10
    assert "has grown by" in caplog.text
    replaced = replaced_since(before)
    assert set(replaced) == {"growth"}
    assert 1 <= replaced["growth"] <= 3


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
    """A child holds the results that the targets of a group read."""
    code = (
        "import os\nimport numpy as np\n\ndef run(p, s):\n    return {'pid': np.full(2 << 20, os.getpid())}\n\n"
        "def score(p, replicates):\n    return 1.0\n"
    )
    pool = lab.pool(code, targets=("model:score",), growth_bytes=60 << 20)
    result = lab.run(pool, [{"a": 0}], n_replicates=8)
    assert len({pid for held in values(result, "pid").values() for pid in held[:1]}) == 1


def test_growth_counts_from_the_first_simulation_on() -> None:
    policy = ReplacementPolicy(0, 1, Path("/tmp"))
    ballast = bytearray(50 << 20)
    policy.finished(0)
    assert not policy.reason, "memory of the imports must not count as growth"
    del ballast


ENDS = "import os\n\ndef run(p, s):\n    os._exit(3)\n"
HANGS = "import time\n\ndef run(p, s):\n    time.sleep(600)\n"
TAKES = "import time\nimport numpy as np\n\ndef run(p, s):\n    x = np.ones(100 << 20)\n    time.sleep(600)\n"


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (LEAKS, {"growth_bytes": 10 << 20}, {}),
        (ENDS, {"retries": 1}, {"died": 2}),
        (HANGS, {"timeout_s": 0.5}, {"timeout": 1}),
        (TAKES, {"memory_bytes": 200 << 20, "retries": 0}, {"memory": 1}),
    ],
)
def test_each_replacement_has_its_reason(
    lab: PoolLab, code: str, fields: dict[str, Any], expected: dict[str, int]
) -> None:
    before = slots.counts()[1]
    lab.run(lab.pool(code, **fields), [{"a": 0}])
    assert replaced_since(before) == expected


LEAVES = {
    "descriptors": "KEPT.extend(os.open('/dev/null', os.O_RDONLY) for _ in range(40))",
    "threads": "[threading.Thread(target=time.sleep, args=(600,), daemon=True).start() for _ in range(40)]",
    "processes": "KEPT.extend(subprocess.Popen(['sleep', '600']) for _ in range(20))",
}


@pytest.mark.usefixtures("real_children")
@pytest.mark.parametrize("what", LEAVES)
def test_a_child_is_replaced_before_what_simulations_leave_fails_others(
    lab: PoolLab, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """Regression: good simulations failed with "too many open files" and "can't start new thread"."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = slots.counts()[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        imports = "import os, subprocess, threading, time\nKEPT = []\n"
        code = f"{imports}\ndef run(p, s):\n    time.sleep(0.03)\n    {LEAVES[what]}\n    return {{'x': 1}}\n"
        result = lab.run(lab.pool(code, retries=0), [{"a": i} for i in range(40)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(result.done) == 40
    assert not result.failures
    replaced = replaced_since(before)
    assert set(replaced) == {what}
    assert 2 <= replaced[what] <= 20
    assert caplog.text.count("leftovers: replacing child process") == 1
    assert len(result.reports) == 0, "the runner is this process"


def test_a_child_is_replaced_when_its_temporary_files_fill_the_disk(tmp_path: Path) -> None:
    policy = ReplacementPolicy(0, 0, tmp_path)
    policy.finished(0)
    assert not policy.reason
    policy._first_free[str(tmp_path)] *= 3  # type: ignore[operator]  # as if two thirds were used since then
    policy._looked_at = 0.0
    policy.finished(0)
    assert policy.code == "files"


@pytest.mark.parametrize(("start", "expected"), [("fork", {"spawned": 1, "forked": 3}), ("spawn", {"spawned": 3})])
def test_processes_are_counted_by_how_they_start(lab: PoolLab, start: str, expected: dict[str, int]) -> None:
    """The template process counts as spawned."""
    before = Counter(slots.counts()[0])
    lab.run(lab.pool(PIDS, start=start, tasks_per_child=1), [{"a": i} for i in range(3)])
    assert Counter(slots.counts()[0]) - before == expected


def test_every_way_to_end_a_child_has_a_reason() -> None:
    """An ending without a reason would fail its task with a KeyError. mypy checks that the list is complete."""
    ways = {way for literal in get_args(EndedBy) for way in get_args(literal)}
    assert {"itself", "timeout", "memory", "stop"} < ways
    assert set(slots.REPLACED_DEATHS) == ways - {"stop", "import"}, "a child that mops stops is not replaced"


LOWERS = """
import os, resource

from mops.child.working_folder import give_up

give_up(24)  # CAP_SYS_RESOURCE, with which root may raise a hard limit again

def lower(p):
    if p["a"] == 1:
        limit = getattr(resource, "RLIMIT_" + p["limit"])
        resource.setrlimit(limit, (p["n"], p["n"]))

def run(p, s):
    if p["in"] == "model" and s % 2:
        lower(p)
    return {"pid": os.getpid()}

def first(p, replicates):
    if p["in"] == "target":
        lower(p)
    return float(open("/dev/null").fileno() > 0)

def second(p, replicates):
    return first({**p, "in": "model"}, replicates)
"""


def groups_with(sets: list[dict[str, Any]]) -> tuple[Group, ...]:
    return tuple(Group(i, param_id(params), params, (0, 1)) for i, params in enumerate(sets))


@pytest.mark.parametrize("where", ["model", "target"])
def test_a_process_with_a_lower_hard_limit_is_replaced(
    lab: PoolLab, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next step, also a target, would fail because of another one."""
    pool = lab.pool(LOWERS, targets=("model:first", "model:second"), retries=0)
    before = slots.counts()[1]
    # Enough descriptors to hand over what is done, and not for another step.
    sets = [{"a": a, "limit": "NOFILE", "n": 100, "in": where} for a in range(3)]
    result = pool.run(request_for(pool.context, groups_with(sets)))
    assert (result.done, result.failures) == ({0, 1, 2}, [])
    assert [loss.loss for loss in result.losses] == [1.0] * 6
    assert len(set(pids_of(result))) == 2
    assert replaced_since(before) == {"limits": 1}
    assert "because a simulation or target has lowered the hard limit RLIMIT_NOFILE;" in caplog.text


def test_a_model_may_limit_the_memory_of_its_process_in_each_call(lab: PoolLab) -> None:
    """A new process for each call takes 80 ms."""
    before = slots.counts()[1]
    result = lab.run(lab.pool(LOWERS), [{"a": 1, "b": b, "limit": "AS", "n": 1 << 40, "in": "model"} for b in range(4)])
    assert len(set(pids_of(result))) == 1
    assert replaced_since(before) == {}


@pytest.mark.parametrize(("limit", "n"), [("FSIZE", 1), ("NOFILE", 3)])
@pytest.mark.parametrize("where", ["model", "target"])
def test_a_step_is_to_blame_for_results_that_its_process_cannot_hand_over(
    lab: PoolLab, limit: str, n: int, where: str
) -> None:
    """Regression: no step was, so the attempt ended."""
    pool = lab.pool(LOWERS, targets=("model:first", "model:second"), retries=1)
    sets = [{"a": a, "limit": limit, "n": n, "in": where} for a in range(4)]
    result = pool.run(request_for(pool.context, groups_with(sets)))
    assert result.done == {0, 1, 2, 3}
    assert {loss.group for loss in result.losses} >= {0, 2, 3}
    (failure,) = (failure for failure in result.failures if failure.target != "*")
    blamed = (1, None) if where == "model" else (None, "model:first")
    assert (failure.group, failure.reason, failure.replicate, failure.target) == (1, "crashed", *blamed)
    assert failure.traceback.rstrip().endswith(f"a simulation or target has lowered the hard limit RLIMIT_{limit}")
