"""The time that a simulation takes: what counts against its limits, and by which clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pool_lab import PoolLab, values

from clocks import Clock
from mops.child.channel import Running, Step
from mops.errors import ImportTimeout
from mops.system.process_tree import is_deadlocked
from mops.worker.child_process import ChildProcess
from mops.worker.limits import START_SECONDS, LimitWatch
from waiting import until

WARM_CHILDREN = True
# Replaces the clocks in every module that has them, as freezegun does.
FREEZES = """
import sys, time

clocks = {id(getattr(time, name)): name for name in ("time", "monotonic", "perf_counter", "monotonic_ns", "time_ns")}

def freeze(at):
    for module in list(sys.modules.values()):
        for attribute in dir(module):
            if id(getattr(module, attribute, None)) in clocks:
                setattr(module, attribute, lambda: at)
"""


class TestFrozenClock:
    """Regression: child processes measured with `time.monotonic`, which libraries such as freezegun replace."""

    @pytest.mark.parametrize("at", [0.0, 1e15], ids=["past", "future"])
    def test_an_import_that_freezes_the_clock_changes_no_limit(self, lab: PoolLab, at: float) -> None:
        code = FREEZES + f"freeze({at})\n\ndef run(p, s):\n    time.sleep(p['seconds'])\n    return {{'x': s}}\n"
        result = lab.run(lab.pool(code, timeout_s=2.0), [{"seconds": 0.1}, {"seconds": 30.0}, {"seconds": 0.2}])
        assert sorted(values(result, "x")) == [(0, 0), (2, 0)]
        assert [(failure.group, failure.reason) for failure in result.failures] == [(1, "timeout")]

    def test_a_simulation_that_freezes_the_clock_does_not_end_the_next(self, lab: PoolLab) -> None:
        code = FREEZES + "\n\ndef run(p, s):\n    time.sleep(0.6)\n    freeze(100.0)\n    return {'x': s}\n"
        result = lab.run(lab.pool(code, timeout_s=8.0), [{"a": 1}, {"a": 2}, {"a": 3}])
        assert (result.done, result.failures) == ({0, 1, 2}, [])
        assert 1.5 < result.seconds < 60.0


WAITS = {
    "sleeps": "time.sleep(4)",
    "waits for a process": "subprocess.run(['sleep', '4'])",
    "waits with a timeout": "held.acquire(timeout=4)",
}


class TestWaits:
    """A first simulation in a forked process may wait without CPU time, unless nothing can end the wait."""

    @pytest.mark.parametrize("way", WAITS)
    def test_a_first_simulation_that_waits_is_not_killed(
        self, lab: PoolLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
    ) -> None:
        """Regression: a simulation that waited 60 s for a licence server was killed as `hung`."""
        monkeypatch.setattr("mops.worker.limits.START_SECONDS", 1.0)
        code = (
            "import os, subprocess, threading, time\n"
            "held, importer = threading.Lock(), os.getpid()\nheld.acquire()\n\n"
            f"def run(p, s):\n    {WAITS[way]}\n    return {{'forked': os.getpid() != importer}}\n"
        )
        result = lab.run(lab.pool(code), [{"a": 1}])
        assert values(result, "forked") == {(0, 0): [True]}
        assert "did nothing" not in caplog.text

    def test_a_pause_is_no_hang(self) -> None:
        with waiting("lock.acquire()") as pid:
            until(lambda: is_deadlocked(pid))
            clock, step = Clock(), Step(0, 0)
            watch = LimitWatch(pid, None, LimitWatch(0, None), clock)
            assert watch.breach(Running(step, clock())) is None  # it notices the CPU time of the start
            clock.now += 100.0
            watch.look()
            assert watch.breach(Running(step, 1000.0)) is None
            clock.now += START_SECONDS
            assert watch.breach(Running(step, 1000.0)) == "start"


LAZY = """
import time
import pyarrow as pa

class Lazy:
    def __init__(self, seconds):
        self.seconds = seconds

    def __arrow_c_stream__(self, requested_schema=None):
        time.sleep(self.seconds)
        return pa.table({"x": [1.0]}).__arrow_c_stream__(requested_schema)

def run(p, s):
    return Lazy(p["seconds"])
"""


def test_the_time_to_read_a_result_is_no_time_of_the_model(lab: PoolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mops.recovery._READING_SECONDS", 3.0)
    result = lab.run(lab.pool(LAZY, timeout_s=0.5), [{"seconds": 1.0}, {"seconds": 600.0}, {"seconds": 0.0}])
    assert result.done == {0, 1, 2}
    (failure,) = result.failures
    assert (failure.group, failure.reason) == (1, "timeout")
    assert failure.message.startswith("returned a result that mops could not read within 3 s")
    assert failure.traceback.startswith("where it was when mops stopped it (most recent call first):\n  File ")


class TestImport:
    """The import of a model has a limit of its own."""

    HANGS = "import time\ntime.sleep(600)\n\ndef run(p, s):\n    return {'x': s}\n"

    @pytest.mark.parametrize("start", ["fork", "spawn"])
    def test_an_import_that_hangs_is_reported_and_ends_each_task(
        self, lab: PoolLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, start: str
    ) -> None:
        """Regression: an import that hung on one worker held its tasks for ever, and nothing said so."""
        monkeypatch.setattr("mops.worker.child_process.SLOW_IMPORT_SECONDS", 0.2)
        pool = lab.pool(self.HANGS, import_s=5.0, start=start)  # a busy machine takes 2 s until the import
        for _ in range(2):  # the second task does not wait again
            with pytest.raises(ImportTimeout) as late:
                lab.run(pool, [{"a": 1}])
        assert late.value.what.startswith("the import of the model takes more than 5 s; its last output: where it")
        assert 'model.py", line 3 in <module>' in late.value.what
        (said,) = [line for line in caplog.messages if "slow_import" in line]
        assert said.endswith("; waiting up to 5 s (MODELOPS_JOB_IMPORT_TIMEOUT)")

    def test_an_import_in_time_is_not_reported(self, lab: PoolLab, caplog: pytest.LogCaptureFixture) -> None:
        result = lab.run(lab.pool("def run(p, s):\n    return {'x': s}\n", import_s=60.0), [{"a": 1}])
        assert result.done == {0}
        assert "slow_import" not in caplog.text


def test_a_process_that_does_not_end_costs_a_slot_and_not_the_task(
    lab: PoolLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: a task waited for ever for a killed process that hung in a file system (state D)."""
    monkeypatch.setattr("mops.worker.child_process._KILL_SECONDS", 0.5)
    monkeypatch.setattr("mops.worker.child_process._ABORT_SECONDS", 0.1)
    code = "import time\n\ndef run(p, s):\n    time.sleep(p['seconds'])\n    return {'x': s}\n"
    pool = lab.pool(code, timeout_s=0.5, slots=2)
    ignored: list[int] = []

    def ignores(child: ChildProcess, _: object, number: int) -> None:
        if child._ended_by == "timeout":  # like the kernel while the process waits for a file server
            ignored.append(child.pid)
        else:
            signal_of(child, os.killpg, number)

    signal_of = ChildProcess._signal
    monkeypatch.setattr(ChildProcess, "_signal", ignores)
    try:
        result = lab.run(pool, [{"seconds": 600.0}, {"seconds": 0.0}])
    finally:
        for pid in set(ignored):
            os.kill(pid, signal.SIGKILL)
    assert result.done == {0, 1}
    (failure,) = result.failures
    assert (failure.group, failure.reason) == (0, "timeout")
    assert failure.signals.endswith("killed, and has not ended")
    assert pool.slots.n == 1
    assert "does not end: it may wait for a file server; simulations at a time on this worker: 1" in caplog.text


@contextmanager
def waiting(how: str) -> Iterator[int]:
    """Start a process that waits for something, most with a lock that it holds itself; yield its id."""
    code = (
        "import multiprocessing, os, threading, time\n"
        "lock, shared = threading.Lock(), multiprocessing.Lock()\nlock.acquire()\nshared.acquire()\n"
        f"print('there', flush=True)\n{how}\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        yield process.pid
        os.killpg(process.pid, signal.SIGKILL)


def test_only_a_wait_that_nothing_can_end_is_a_deadlock(subtests: pytest.Subtests) -> None:
    for how in [
        "time.sleep(60)",
        "lock.acquire(timeout=60)",
        "shared.acquire()  # which another process may release",
        "threading.Thread(target=time.sleep, args=(60,)).start(); lock.acquire()",
        "os.fork() or time.sleep(60); lock.acquire()",
        "while True: pass",
    ]:
        with subtests.test(str(how)), waiting(how) as pid:
            time.sleep(0.5)  # until it waits
            assert not is_deadlocked(pid)


def test_a_process_that_has_ended_is_in_no_deadlock() -> None:
    with waiting("lock.acquire()") as pid:
        pass
    assert not is_deadlocked(pid)
