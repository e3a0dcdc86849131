"""Models that fail or kill their process: the recorded failure, and the effect on other simulations."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from typing import ClassVar

import pytest
from pool_lab import PATIENCE_S, REFERENCE, WILD, PoolLab, groups_of, request_for, values

from mops.errors import ClusterError, ModelError
from mops.study.ids_and_seeds import param_id, replicate_seed
from mops.task import Failure, TaskResult
from mops.worker.child_process import ChildProcess
from mops.worker.task_progress import TaskProgress
from processes import descriptors
from waiting import until

WARM_CHILDREN = True


class TestExceptions:
    """An exception fails only its simulation, and the process continues."""

    SAYS: ClassVar = {
        "raises": "ValueError: the model does not like this: beta must be below 1",
        "raises_locked": "nasty.LockedError: this exception holds a lock",
        "raises_local_class": "LocalError: the class of this exception lives in a function",
        "raises_two_arguments": "nasty.TwoArgumentsError: 7: cannot be unpickled",
        "raises_chained": "RuntimeError: while looking something up",
        "raises_with_note": "ValueError: the solver diverged",
        "raises_group": "ExceptionGroup: two solvers (2 sub-exceptions)",
        "raises_unprintable": "UnprintableError: <exception str() failed>",
        "raises_long": "ValueError: xxxxxxxx",
        "recurses": "RecursionError: maximum recursion depth exceeded",
        "memory_error": "MemoryError",
        "system_exit": "SystemExit: 3",
        "keyboard_interrupt": "KeyboardInterrupt",
        "reads_stdin": "EOFError: EOF when reading a line",
    }

    @pytest.fixture(scope="class")
    @classmethod
    def found(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TaskResult, dict[str, Failure]]]:
        lab = PoolLab(tmp_path_factory.mktemp("lab"))
        result = lab.nasty(*cls.SAYS, "good")
        yield result, dict(zip(cls.SAYS, result.failures, strict=True))
        lab.close()

    def test_no_exception_affects_another_simulation(self, found: tuple[TaskResult, dict[str, Failure]]) -> None:
        result, failures = found
        assert result.done == set(range(len(self.SAYS) + 1))
        assert set(values(result, "day")) == {(len(self.SAYS), 0)}
        assert [failure.group for failure in failures.values()] == list(range(len(self.SAYS)))

    def test_the_message_has_the_type_and_text_of_the_exception(
        self, found: tuple[TaskResult, dict[str, Failure]], subtests: pytest.Subtests
    ) -> None:
        for way in self.SAYS:
            with subtests.test(str(way)):
                failure = found[1][way]
                assert (failure.reason, failure.attempts, failure.replicate, failure.target) == ("error", 1, 0, None)
                assert self.SAYS[way] in failure.message
                assert len(failure.message) <= 2_000

    def test_the_traceback_has_only_frames_of_the_user(
        self, found: tuple[TaskResult, dict[str, Failure]], subtests: pytest.Subtests
    ) -> None:
        for way in self.SAYS:
            with subtests.test(str(way)):
                trace = found[1][way].traceback
                assert f"in {way}" in trace
                assert trace.splitlines()[0].endswith("Traceback (most recent call last):")
                assert f'File "{WILD / "nasty.py"}"' in "".join(trace.splitlines()[:3])
                assert "runner/mops" not in trace
                assert len(trace) <= 8_000

    def test_causes_notes_and_members_of_a_group_are_in_the_traceback(
        self, found: tuple[TaskResult, dict[str, Failure]]
    ) -> None:
        """Regression: the traceback had only the frames of the last exception, so the first cause was lost."""
        chained = found[1]["raises_chained"].traceback
        assert "KeyError: 'missing'" in chained
        assert "The above exception was the direct cause of the following exception:" in chained
        assert chained.rstrip().endswith("RuntimeError: while looking something up")
        assert "at step 17" in found[1]["raises_with_note"].traceback
        group = found[1]["raises_group"].traceback
        assert "ValueError: the first diverged" in group
        assert "KeyError: 'the second'" in group


class TestNonsense:
    """A result that is not a table fails as `invalid_output`; valid results of unusual shapes succeed."""

    SAYS: ClassVar = {
        "returns_none": "returned None",
        "returns_five_wide_list": "list of 5",
        "returns_ragged": "'output'",
        "returns_objects": "'output'",
        "returns_mixed_column": "'output'",
        "returns_empty": "empty mapping",
        "returns_generator": "generator",
        "returns_other_columns": "column 'value' missing; column 'speed' extra",
        "returns_other_kind": "column 'value' is string, not a number",
    }
    GOOD = ("returns_integers", "returns_nan", "returns_nothing_in_rows", "prints_bytes", "leaves_thread")

    def test_each_invalid_result_is_reported_and_valid_ones_are_kept(self, lab: PoolLab) -> None:
        result = lab.nasty(*self.SAYS, *self.GOOD)
        assert {failure.reason for failure in result.failures} == {"invalid_output"}
        for failure, says in zip(result.failures, self.SAYS.values(), strict=True):
            assert says in failure.message
            assert failure.traceback == ""
        n_good = {group - len(self.SAYS): len(days) for (group, _), days in values(result, "day").items()}
        assert n_good == {0: 3, 1: 4, 2: 0, 3: 3, 4: 3}


class TestDeaths:
    """The death of a process affects only the simulation that it ran."""

    @pytest.mark.parametrize(
        ("way", "message", "trace"),
        [
            ("os_exit", "ended with exit code 7", ""),
            ("segfault", "SIGSEGV", "in segfault"),
            ("abort", "SIGABRT", "in abort"),
        ],
    )
    def test_a_crash_is_retried_and_reported_with_its_line(
        self, lab: PoolLab, way: str, message: str, trace: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "mops")
        result = lab.nasty("good", way, "good", retries=1)
        assert result.done == {0, 1, 2}
        assert set(values(result, "day")) == {(0, 0), (2, 0)}
        (failure,) = result.failures
        assert (failure.group, failure.reason, failure.attempts) == (1, "crashed", 2)
        assert message in failure.message
        assert trace in failure.traceback
        first, second = (record.getMessage() for record in caplog.records)
        assert re.match(r"job: crashed: group 1 \([0-9a-f]{12}\) replicate 0 ended with ", first)
        assert first.endswith("; retrying in a new process (try 2 of 2)")
        assert second.endswith("; recorded as failed after 2 tries")

    def test_a_catastrophic_regex_is_a_timeout(self, lab: PoolLab) -> None:
        result = lab.nasty("endless_regex", timeout_s=0.5)
        (failure,) = result.failures
        assert failure.reason == "timeout"
        assert "in endless_regex" in failure.traceback

    def test_a_target_that_never_ends_is_a_timeout_of_the_target(self, lab: PoolLab) -> None:
        code = "import time\n\ndef run(p, s):\n    return {'x': s}\n\ndef score(p, r):\n    time.sleep(600)\n"
        result = lab.run(lab.pool(code, targets=("model:score",), timeout_s=0.5), [{"a": 1}])
        (failure,) = result.failures
        assert (failure.target, failure.replicate, failure.reason) == ("model:score", None, "timeout")
        assert set(values(result, "x")) == {(0, 0)}

    @pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGINT)", "os.kill(os.getpid(), signal.SIGTERM)"])
    def test_a_model_that_sends_itself_a_stop_signal_fails_in_the_end(self, lab: PoolLab, how: str) -> None:
        """The worker cannot know where the signal comes from. It repeats the simulation once without counting that."""
        code = f"import os, signal\n\ndef run(p, s):\n    {how}\n    return {{'x': s}}\n"
        result = lab.run(lab.pool(code, retries=1), [{"a": 1}])
        (failure,) = result.failures
        assert (failure.reason, failure.attempts) == ("crashed", 2)

    def test_a_model_cannot_take_a_sigint_from_outside_for_the_end_of_its_work(self, lab: PoolLab) -> None:
        """Samplers catch KeyboardInterrupt and return what they have: the partial result was stored as good."""
        code = (
            "import os, signal, pathlib\n\ndef run(p, s):\n    flag = pathlib.Path(p['flag'])\n    try:\n"
            "        if not flag.exists():\n            flag.touch()\n            os.kill(os.getpid(), signal.SIGINT)\n"
            "        return {'x': 'whole'}\n    except KeyboardInterrupt:\n        return {'x': 'partial'}\n"
        )
        result = lab.run(lab.pool(code, retries=0), [{"flag": str(lab.folder / "flag")}])
        assert result.failures == []
        assert values(result, "x") == {(0, 0): ["whole"]}

    def test_children_that_die_between_simulations_are_an_error_of_the_cluster(self, lab: PoolLab) -> None:
        """mops does not blame a parameter set, and does not retry without end."""
        code = "import os\nif (HERE / 'dies').exists():\n    os._exit(5)\n\ndef run(p, s):\n    return {'x': 1}\n"
        pool = lab.pool(code, start="spawn")
        pool.check()
        (lab.folder / "dies").touch()
        for pid in pool.pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(ClusterError, match="exit code 5"):
            lab.run(pool, [{"a": 1}])

    def test_children_that_die_in_each_import_are_an_error_of_the_model(self, lab: PoolLab) -> None:
        """Regression: on workers they were an error of the cluster, after which Kubernetes starts another runner."""
        code = (
            "import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), os._exit(5))).start()\n"
            "time.sleep(600)\n"
        )
        with pytest.raises(ModelError, match="the process that imports the model ended with exit code 5"):
            lab.run(lab.pool(code), [{"a": 1}])


# Counts its calls in a file, and kills its process at a seed with a file deadly-<seed>.
COUNTED = """
import os, signal, time
from pathlib import Path
from mops.child.task_run import HANDOVER_SECONDS

def run(p, s):
    with (HERE / "calls").open("a") as calls:
        calls.write(f"{s}\\n")
    time.sleep(HANDOVER_SECONDS)  # as long as a child keeps what is finished
    mortal = HERE / f"deadly-{s}"
    if mortal.exists():
        if mortal.read_text() == "once":
            mortal.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"daily": {"x": [s, s]}, "other": {"text": ["a"]}}

def order(p, replicates):
    return sum(i * one["daily"]["x"][0].as_py() % 1000 for i, one in enumerate(replicates, start=1))

def deadly(p, replicates):
    os._exit(3)
"""


class TestHandedOver:
    """Simulations that a child handed over before its death are not lost and do not run again."""

    SEEDS = tuple(replicate_seed(param_id({"a": 1}), n) for n in range(4))

    def calls(self, lab: PoolLab) -> list[int]:
        made = [int(line) for line in (lab.folder / "calls").read_text().split()]
        return [made.count(seed) for seed in self.SEEDS]

    def deadly(self, lab: PoolLab, replicate: int, how: str) -> None:
        (lab.folder / f"deadly-{self.SEEDS[replicate]}").write_text(how)

    def test_a_target_sees_all_replicates_of_two_children_in_order(self, lab: PoolLab) -> None:
        self.deadly(lab, 2, "once")
        result = lab.run(lab.pool(COUNTED, targets=("model:order",)), [{"a": 1}], n_replicates=4)
        assert self.calls(lab) == [1, 1, 2, 1]
        assert (result.done, result.failures) == ({0}, [])
        assert values(result, "x", "daily") == {(0, n): [seed, seed] for n, seed in enumerate(self.SEEDS)}
        (loss,) = result.losses
        assert loss.loss == sum(i * seed % 1000 for i, seed in enumerate(self.SEEDS, start=1))

    def test_replicates_before_a_deadly_one_are_kept_and_there_are_no_losses(self, lab: PoolLab) -> None:
        self.deadly(lab, 2, "always")
        result = lab.run(lab.pool(COUNTED, targets=("model:order",)), [{"a": 1}], n_replicates=4)
        assert self.calls(lab) == [1, 1, 2, 1]
        assert set(values(result, "x", "daily")) == {(0, 0), (0, 1), (0, 3)}
        simulation, losses = result.failures
        assert (simulation.replicate, simulation.seed, simulation.attempts) == (2, self.SEEDS[2], 2)
        assert (losses.target, result.losses) == ("*", [])

    def test_a_deadly_target_costs_no_simulation_and_no_other_target(self, lab: PoolLab) -> None:
        targets = ("model:deadly", "model:order")
        result = lab.run(lab.pool(COUNTED, targets=targets, retries=1), [{"a": 1}], n_replicates=4)
        assert self.calls(lab) == [1, 1, 1, 1]
        assert [(row.target, row.reason, row.attempts) for row in result.failures] == [("model:deadly", "crashed", 2)]
        assert [loss.target for loss in result.losses] == ["model:order"]


class TestWatching:
    """The worker notices the end of a child even if the model hides it."""

    @pytest.mark.parametrize("leave", ["", "os.setsid()"], ids=["same session", "own session"])
    def test_a_death_is_noticed_while_a_forked_process_keeps_the_socket(self, lab: PoolLab, leave: str) -> None:
        code = (
            "import os, time\nfrom pathlib import Path\n\ndef run(p, s):\n    if os.fork() == 0:\n"
            f"        {leave}\n        (HERE / 'forked').write_text(str(os.getpid()))\n        time.sleep(600)\n"
            "    while not (HERE / 'forked').exists() or not (HERE / 'forked').read_text():\n        time.sleep(0.01)\n"
            "    os._exit(3)\n"
        )
        result = lab.run(lab.pool(code, retries=0), [{"a": 1}])
        with pytest.raises(ProcessLookupError):  # it has ended too, although it was in another session
            os.kill(int((lab.folder / "forked").read_text()), 0)
        assert [failure.message.split(" after")[0] for failure in result.failures] == [
            "ended with exit code 3 (os._exit?)"
        ]

    def test_a_child_that_died_when_its_time_was_up_is_still_ours_to_wait_for(self, lab: PoolLab) -> None:
        """Regression: the request for a stack trace took the exit status, so the child's subprocesses survived."""
        pool = lab.pool("def run(p, s):\n    pass\n", timeout_s=0.01)
        child = pool._starter._spawn(ChildProcess)
        assert child is not None
        try:
            assert child.ready() is None
            child._page.begin(0, 0)
            os.kill(child.pid, signal.SIGKILL)
            assert child._process.await_end(10.0)
            time.sleep(0.02)
            child._enforce_limits()
            assert child.death().returncode == -signal.SIGKILL
        finally:
            child.close()

    @pytest.mark.parametrize(
        "after", ["raise ValueError", "time.sleep(600)", "return {'x': 1}"], ids=["raises", "hangs", "returns"]
    )
    def test_a_simulation_that_closes_the_descriptors_of_mops_is_blamed(
        self, lab: PoolLab, monkeypatch: pytest.MonkeyPatch, after: str
    ) -> None:
        monkeypatch.setattr("mops.worker.child_process.LEAVE_SECONDS", 0.5)
        code = (
            "import os, time\n\ndef run(p, s):\n    if p['a'] != 1:\n        return {'x': 1}\n"
            f"    os.closerange(3, 256)\n    {after}\n"
        )
        result = lab.run(lab.pool(code, retries=0), [{"a": n} for n in range(3)])
        (failure,) = result.failures
        assert (failure.group, failure.reason) == (1, "crashed")
        assert "out of memory" not in failure.message
        assert "closed the socket to its worker" in failure.message + failure.traceback

    def test_a_target_that_closes_the_descriptors_of_mops_is_blamed(self, lab: PoolLab) -> None:
        code = (
            "import os\n\ndef run(p, s):\n    return {'x': 1}\n\n"
            "def score(p, r):\n    if p['a'] == 0:\n        os.closerange(3, 256)\n    return 1.0\n"
        )
        result = lab.run(lab.pool(code, targets=("model:score",), retries=0), [{"a": 0}, {"a": 1}])
        assert [(row.group, row.target, row.reason) for row in result.failures] == [(0, "model:score", "crashed")]
        assert [(loss.group, loss.loss) for loss in result.losses] == [(1, 1.0)]

    def test_the_line_of_a_crash_is_reported_despite_many_imports_and_threads(self, lab: PoolLab) -> None:
        """The stacks of other threads and the list of extension modules are longer than the kept text."""
        code = (
            "import ctypes, threading\nimport pandas, polars, duckdb\n\n"
            "for _ in range(20):\n    threading.Thread(target=threading.Event().wait, daemon=True).start()\n\n"
            "def a_long_name_for_a_function_that_calls_itself(n):\n"
            "    return a_long_name_for_a_function_that_calls_itself(n - 1) if n else ctypes.string_at(0)\n\n"
            "def run(p, s):\n    return a_long_name_for_a_function_that_calls_itself(90)\n"
        )
        (failure,) = lab.run(lab.pool(code, retries=0), [{"a": 1}]).failures
        assert failure.traceback.startswith("Fatal Python error: Segmentation fault")
        assert "ctypes/__init__.py" in failure.traceback
        assert len(failure.traceback) <= 4096

    def test_time_of_dead_children_counts_in_the_budget(self, lab: PoolLab) -> None:
        """Regression: a task whose simulations all hang returned only after the last one."""
        pool = lab.pool(model="nasty:simulate", timeout_s=0.3)
        sets = [{"what": "endless_asleep", "n": n} for n in range(3)]
        result = lab.run(pool, sets, reference=REFERENCE, seconds=0.2)
        assert result.done == {0}
        assert result.seconds > 0.3


class TestPrints:
    """mops keeps the whole output of models up to a limit."""

    def test_a_last_line_without_a_newline_is_kept(self, lab: PoolLab, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
        pool = lab.pool("def run(p, s):\n    print('no end of line', end='')\n    return {'x': 1}\n")
        assert lab.run(pool, [{"a": 1}]).prints.endswith(" printed:\nno end of line")

    @pytest.mark.usefixtures("real_children")
    def test_bytes_are_written_at_once_if_python_is_told_to(
        self, lab: PoolLab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONUNBUFFERED", "1")
        code = "import os, sys\n\ndef run(p, s):\n    sys.stdout.buffer.write(b'last words\\n')\n    os._exit(3)\n"
        (failure,) = lab.run(lab.pool(code, retries=0), [{"a": 1}]).failures
        assert "last words" in failure.traceback

    def test_a_process_that_never_stops_printing_does_not_delay_others(self, lab: PoolLab) -> None:
        code = "import subprocess\n\ndef run(p, s):\n    subprocess.Popen(['yes'])\n    return {'x': 1}\n"
        pool = lab.pool(code)
        assert [lab.run(pool, [{"a": n}]).done for n in range(2)] == [{0}, {0}]

    def test_only_the_end_of_a_long_output_is_in_memory(self, lab: PoolLab) -> None:
        pool = lab.pool("def run(p, s):\n    print('x' * 5_000_000)\n    return {'x': 1}\n")
        child = pool._starter._spawn(ChildProcess)
        assert child is not None
        try:
            assert child.ready() is None
            assert child.run(TaskProgress(request_for(child._context, groups_of([{"a": 1}], 1))), 1 << 40) is None
            assert len(child._prints._text) < 1_000_000
            assert child.take_prints().startswith("(49")
        finally:
            child.close()

    def test_text_with_surrogates_can_be_stored(self, lab: PoolLab) -> None:
        """File names may contain surrogates, which a string column cannot store."""
        code = "def run(p, s):\n    raise ValueError('no file caf\\udce9')\n"
        (failure,) = lab.run(lab.pool(code), [{"a": 1}]).failures
        assert failure.message == "ValueError: no file caf\\udce9"
        failure.message.encode()


def test_memory_of_a_failed_simulation_is_freed_at_once(lab: PoolLab) -> None:
    """An exception in a local variable is a reference cycle, so its tables would wait for the garbage collector."""
    code = (
        "import gc, weakref\ngc.disable()\nkept = []\n\nclass Big:\n    pass\n\ndef run(p, s):\n"
        "    alive = sum(one() is not None for one in kept)\n    big = Big()\n    kept.append(weakref.ref(big))\n"
        "    try:\n        raise ValueError(f'{alive} are alive')\n    except ValueError as error:\n"
        "        again = error\n        raise\n"
    )
    result = lab.run(lab.pool(code), [{"a": 0}, {"a": 1}, {"a": 2}])
    assert [failure.message for failure in result.failures] == ["ValueError: 0 are alive"] * 3


@pytest.mark.usefixtures("real_children")
def test_a_model_may_use_subprocesses(lab: PoolLab) -> None:
    code = (
        "import math, multiprocessing\n\ndef run(p, s):\n"
        "    with multiprocessing.get_context(p['start']).Pool(2) as pool:\n"
        "        return {'roots': pool.map(math.sqrt, [1.0, 4.0, 9.0])}\n"
    )
    result = lab.run(lab.pool(code), [{"start": "fork"}, {"start": "spawn"}])
    assert values(result, "roots") == {(0, 0): [1.0, 2.0, 3.0], (1, 0): [1.0, 2.0, 3.0]}


class TestPool:
    """A child runs one task at a time, and no child outlives its pool."""

    def test_tasks_share_at_most_as_many_children_as_there_are_slots(self, lab: PoolLab) -> None:
        pool = lab.pool("import os\n\ndef run(p, s):\n    return {'pid': os.getpid()}\n", slots=2)
        got: list[TaskResult] = []
        threads = [threading.Thread(target=lambda n=n: got.append(lab.run(pool, [{"a": n}]))) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        pids = {pid for result in got for (pid,) in values(result, "pid").values()}
        assert (len(got), len(pids) <= 2, pids <= set(pool.pids())) == (6, True, True)

    def test_a_child_that_cannot_import_the_model_is_not_kept(self, lab: PoolLab) -> None:
        pool = lab.pool("raise SystemExit('not today')")
        for _ in range(3):
            with pytest.raises(ModelError, match="SystemExit: not today"):
                lab.run(pool, [{"a": 1}])
        assert pool.pids() == []

    def test_a_model_that_kills_its_process_during_import_is_reported(self, lab: PoolLab) -> None:
        with pytest.raises(ModelError, match="SIGSEGV") as refused:
            lab.pool("import ctypes\nctypes.string_at(0)\n").check()
        assert "; its last output: Fatal Python error: Segmentation fault" in refused.value.what

    def test_closing_while_a_task_runs_ends_it_without_an_error(self, lab: PoolLab) -> None:
        before = descriptors()
        code = (
            "import time\nfrom pathlib import Path\n\ndef run(p, s):\n    (HERE / 'on').touch()\n    time.sleep(600)\n"
        )
        pool = lab.pool(code)
        got: list[TaskResult] = []
        thread = threading.Thread(target=lambda: got.append(lab.run(pool, [{"a": 1}])))
        thread.start()
        until((lab.folder / "on").exists)
        pool.close()
        assert pool.pids() == []
        thread.join(PATIENCE_S)
        assert [(result.done, result.failures) for result in got] == [(frozenset(), [])]
        assert descriptors() <= before

    def test_after_a_stop_no_child_is_started(self, lab: PoolLab) -> None:
        pool = lab.pool("def run(p, s):\n    return {'x': 1}\n")
        pool.stop(0.0)
        assert lab.run(pool, [{"a": 1}]).done == set()
        assert pool.pids() == []
