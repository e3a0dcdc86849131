"""Metrics count started children by method and replaced children by reason."""

from __future__ import annotations

import resource
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from pool_lab import PoolLab

from mops.child.leftovers import ReplacementPolicy
from mops.recovery import EndedBy
from mops.worker import slots

GOOD = "def run(p, s):\n    return {'x': 1}\n"
ENDS = "import os\n\ndef run(p, s):\n    os._exit(3)\n"
HANGS = "import time\n\ndef run(p, s):\n    time.sleep(600)\n"
TAKES = "import time\nimport numpy as np\n\ndef run(p, s):\n    x = np.ones(100 << 20)\n    time.sleep(600)\n"
LEAKS = (
    "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.malloc.restype = ctypes.c_void_p\n\n"
    "def run(p, s):\n    ctypes.memset(libc.malloc(20 << 20), 1, 20 << 20)\n    return {'x': 1}\n"
)


@pytest.mark.parametrize(
    ("code", "fields", "n_simulations", "expected"),
    [
        (GOOD, {}, 4, {}),
        (GOOD, {"tasks_per_child": 2}, 4, {"simulations": 2}),
        (LEAKS, {"growth_bytes": 10 << 20}, 1, {}),
        (ENDS, {"retries": 1}, 1, {"died": 2}),
        (HANGS, {"timeout_s": 0.5}, 1, {"timeout": 1}),
        (TAKES, {"memory_bytes": 200 << 20, "retries": 0}, 1, {"memory": 1}),
    ],
)
def test_each_replacement_has_its_reason(
    lab: PoolLab, code: str, fields: dict[str, Any], n_simulations: int, expected: dict[str, int]
) -> None:
    before = Counter(slots.counts()[1])
    lab.run(lab.pool(code, **fields), [{"a": i} for i in range(n_simulations)])
    assert Counter(slots.counts()[1]) - before == expected


def test_a_child_that_grows_is_counted_as_grown(lab: PoolLab) -> None:
    before = Counter(slots.counts()[1])
    lab.run(lab.pool(LEAKS, growth_bytes=100 << 20), [{"a": i} for i in range(20)])
    more = Counter(slots.counts()[1]) - before
    assert set(more) == {"growth"}
    assert 1 <= more["growth"] <= 3


LEAVES = {
    "descriptors": "KEPT.extend(os.open('/dev/null', os.O_RDONLY) for _ in range(40))",
    "threads": "[threading.Thread(target=time.sleep, args=(600,), daemon=True).start() for _ in range(40)]",
    "processes": "KEPT.extend(subprocess.Popen(['sleep', '600']) for _ in range(20))",
}


@pytest.mark.parametrize("what", LEAVES)
def test_a_child_is_replaced_before_what_simulations_leave_fails_others(
    lab: PoolLab, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """Regression: good simulations failed with "too many open files" and "can't start new thread"."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = Counter(slots.counts()[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        imports = "import os, subprocess, threading, time\nKEPT = []\n"
        code = f"{imports}\ndef run(p, s):\n    time.sleep(0.03)\n    {LEAVES[what]}\n    return {{'x': 1}}\n"
        result = lab.run(lab.pool(code, retries=0), [{"a": i} for i in range(40)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(result.done) == 40
    assert not result.failures
    more = Counter(slots.counts()[1]) - before
    assert set(more) == {what}
    assert 2 <= more[what] <= 20
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
    lab.run(lab.pool(GOOD, start=start, tasks_per_child=1), [{"a": i} for i in range(3)])
    assert Counter(slots.counts()[0]) - before == expected


def test_every_way_to_end_a_child_has_a_reason() -> None:
    """An ending without a reason would fail its task with a KeyError. mypy checks that the list is complete."""
    ways = {way for literal in get_args(EndedBy) for way in get_args(literal)}
    assert {"itself", "timeout", "memory", "stop"} < ways
    assert set(slots.REPLACED_DEATHS) == ways - {"stop", "import"}, "a child that mops stops is not replaced"
