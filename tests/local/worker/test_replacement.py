"""Metrics count started children by method and replaced children by reason."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import pytest
from pool_lab import PoolLab

from mops.worker import children
from mops.worker.deaths import EndedBy

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
    before = Counter(children.counts()[1])
    lab.run(lab.pool(code, **fields), [{"a": i} for i in range(n_simulations)])
    assert Counter(children.counts()[1]) - before == expected


def test_a_child_that_grows_is_counted_as_grown(lab: PoolLab) -> None:
    before = Counter(children.counts()[1])
    lab.run(lab.pool(LEAKS, growth_bytes=100 << 20), [{"a": i} for i in range(20)])
    more = Counter(children.counts()[1]) - before
    assert set(more) == {"growth"}
    assert 1 <= more["growth"] <= 3


@pytest.mark.parametrize(("start", "expected"), [("fork", {"spawned": 1, "forked": 3}), ("spawn", {"spawned": 3})])
def test_processes_are_counted_by_how_they_start(lab: PoolLab, start: str, expected: dict[str, int]) -> None:
    """The template process counts as spawned."""
    before = Counter(children.counts()[0])
    lab.run(lab.pool(GOOD, start=start, tasks_per_child=1), [{"a": i} for i in range(3)])
    assert Counter(children.counts()[0]) - before == expected


def test_every_way_to_end_a_child_has_a_reason() -> None:
    """An ending without a reason would fail its task with a KeyError. mypy checks that the list is complete."""
    ways = {way for literal in get_args(EndedBy) for way in get_args(literal)}
    assert {"itself", "timeout", "memory", "stop"} < ways
    assert set(children.REPLACED_DEATHS) == ways - {"stop"}, "a child that mops stops is not replaced"
