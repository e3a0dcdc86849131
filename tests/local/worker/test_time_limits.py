"""The time that a simulation takes: what counts against its limits, and by which clock."""

from __future__ import annotations

import pytest
from pool_lab import PoolLab, values

# Replaces the clocks in every module that has them, as freezegun does.
FREEZES = """
import sys, time

spins_until = time.clock_gettime
clocks = {id(getattr(time, name)): name for name in ("time", "monotonic", "perf_counter", "monotonic_ns", "time_ns")}

def freeze(at):
    for module in list(sys.modules.values()):
        for attribute in dir(module):
            if id(getattr(module, attribute, None)) in clocks:
                setattr(module, attribute, lambda: at)

def spin(seconds):
    end = spins_until(time.CLOCK_MONOTONIC) + seconds
    while spins_until(time.CLOCK_MONOTONIC) < end:
        pass
"""


class TestFrozenClock:
    """Regression: child processes measured with `time.monotonic`, which libraries such as freezegun replace."""

    @pytest.mark.parametrize("at", [0.0, 1e15], ids=["past", "future"])
    def test_an_import_that_freezes_the_clock_changes_no_limit(self, lab: PoolLab, at: float) -> None:
        code = FREEZES + f"freeze({at})\n\ndef run(p, s):\n    spin(p['seconds'])\n    return {{'x': s}}\n"
        result = lab.run(lab.pool(code, timeout_s=2.0), [{"seconds": 0.1}, {"seconds": 30.0}, {"seconds": 0.2}])
        assert sorted(values(result, "x")) == [(0, 0), (2, 0)]
        assert [(failure.group, failure.reason) for failure in result.failures] == [(1, "timeout")]

    def test_a_simulation_that_freezes_the_clock_does_not_end_the_next(self, lab: PoolLab) -> None:
        code = FREEZES + "\n\ndef run(p, s):\n    spin(0.6)\n    freeze(100.0)\n    return {'x': s}\n"
        result = lab.run(lab.pool(code, timeout_s=8.0), [{"a": 1}, {"a": 2}, {"a": 3}])
        assert (result.done, result.failures) == ({0, 1, 2}, [])
        assert 1.5 < result.seconds < 60.0
