"""Rounds of a calibration overlap on a shared Dask cluster: a slow set does not hold the next round.

The scheduler and the workers are real processes, and each round has a detached runner. The model's tally counts the
simulations.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dask_processes import DaskProcesses, dask_in
from study_lab import MOPS, Runner, StudyLab, betas, lab_in
from study_lab import wait_for as wait_for_briefly

from mops.calibration.options import Plan
from mops.calibration.prepare import Begun
from mops.calibration.round_jobs import RoundJobs
from mops.errors import JobError
from mops.jobs.job import Job
from mops.storage.calibration_records import CalibrationRecords
from soak import SOAKING

N, ROUNDS = 8, 3
SLOW_BELOW = 0.23
"""The sets with a smaller beta are slow: 1 of the 8 sets of round 1."""
SPACE = {"beta": {"min": 0.2, "max": 0.6}}
NO_POSTERIOR = 3
OPTIONS = ("--rounds", str(ROUNDS), "-n", str(N), "--ess", "1e6", "--temperature", "100", "--name", "fit")
MODEL = """
import json
import os
import time
from pathlib import Path

import counted


def simulate(params, seed):
    \"\"\"Count the call, wait while the file MOPS_TEST_HOLD says so, and run the epidemic.\"\"\"
    number = counted.count(params, seed)
    while waits(params["beta"], number):
        time.sleep(0.02)
    return {"daily": counted.epidemic(params["beta"], 0.1, seed)}


def waits(beta, number):
    try:
        below, n_calls = json.loads(Path(os.environ["MOPS_TEST_HOLD"]).read_text())
    except FileNotFoundError:
        return False
    return beta < below or number > n_calls
"""
KILLED_AT_A_RECORD = """
import os, signal, sys

from mops.cli.main import app
from mops.storage.backends.local import LocalFolder

moment, record = sys.argv[1:3]
put_new = LocalFolder.put_new


def killing(folder, path, data):
    if not path.endswith(record):
        return put_new(folder, path, data)
    if moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    created = put_new(folder, path, data)
    os.kill(os.getpid(), signal.SIGKILL if moment == "after" else signal.SIGINT)
    return created


LocalFolder.put_new = killing
app(sys.argv[3:])
"""


KILLS = [
    ("00000002-asked.json", "after"),
    ("00000001-told.json", "before"),
    ("00000002-asked.json", "before"),
    ("00000001-told.json", "after"),
    ("00000002-told.json", "before"),
    ("00000002-told.json", "after"),
]

wait_for = partial(wait_for_briefly, patience_s=240)
"""A round starts several processes one after the other, which takes long on a busy machine."""


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[DaskProcesses]:
    with dask_in(tmp_path / "dask") as processes:
        yield processes


@pytest.fixture
def study(tmp_path: Path, dask: DaskProcesses) -> Iterator[StudyLab]:
    with lab_in(tmp_path / "lab") as lab:
        lab.more_env = {"MODELOPS_SCHEDULER": dask.address}
        (lab.project / "slow.py").write_text(MODEL)
        lab.write("slow:simulate", betas(1), targets=["scores:order"])
        (lab.folder / "space.json").write_text(json.dumps(SPACE))
        yield lab


def arguments(study: StudyLab, *more: str) -> list[str]:
    files = [str(study.folder / "space.json"), "--study", str(study.project / "study.json")]
    return ["calibrate", *files, *OPTIONS, "--to", str(study.folder / "fit"), "--overwrite", "--overlap", "0.8", *more]


def calibrate(study: StudyLab, *more: str, program: tuple[object, ...] = (MOPS, "study")) -> Runner:
    return study.start(*arguments(study, *more), program=program, CHECKPOINT_SECONDS=0)


def hold(dask: DaskProcesses, below: float, n_calls: int) -> None:
    """Let simulations wait whose beta is smaller, and all after this number of calls."""
    new = dask.hold_file.with_suffix(".new")
    new.write_text(json.dumps([below, n_calls]))
    new.replace(dask.hold_file)


def state(study: StudyLab, job: str) -> str:
    return study.job(job).status().state if study.exists(job) else "absent"


def trials_of(study: StudyLab) -> list[dict[str, Any]]:
    return pq.read_table(study.folder / "fit" / "trials.parquet").to_pylist()


def assert_finished(study: StudyLab, dask: DaskProcesses, last: Runner) -> None:
    """Check that each simulation ran once, and that the records alone give the same trials and weights."""
    assert last.wait(240) == NO_POSTERIOR, last.said
    assert set(Counter(dask.tally).values()) == {1}
    assert len(dask.tally) == N * ROUNDS
    trials = trials_of(study)
    assert [row["round"] for row in trials] == [k for k in range(1, ROUNDS + 1) for _ in range(N)]
    assert not any(row["failure"] for row in trials)
    assert sum(row["weight"] for row in trials) == pytest.approx(1)
    again = calibrate(study)
    assert again.wait(240) == NO_POSTERIOR, again.said
    assert trials_of(study) == trials
    assert len(dask.tally) == N * ROUNDS


def running_when_asked(study: StudyLab, k: int) -> list[int]:
    asked = CalibrationRecords(study.job("fit-r1").files, "fit").asked(k)
    assert asked is not None
    return list(asked.state.get("running", []))


@pytest.mark.parametrize("method", ["importance", *(["abc", "tpe", "cmaes"] if SOAKING else [])])
def test_a_slow_set_does_not_hold_the_next_round(study: StudyLab, dask: DaskProcesses, method: str) -> None:
    hold(dask, SLOW_BELOW, N * ROUNDS)
    first = calibrate(study, "--method", method)
    wait_for(lambda: state(study, "fit-r2") in ("running", "succeeded"), of=first)
    assert state(study, "fit-r1") == "running"
    assert len(running_when_asked(study, 2)) == 1
    assert not study.exists("fit-r3"), "at most two rounds run at a time"
    dask.let_go()
    assert first.wait(240) in (0, NO_POSTERIOR), first.said
    assert set(Counter(dask.tally).values()) == {1}
    assert len(dask.tally) == len(trials_of(study)) == N * ROUNDS


def two_rounds_running(study: StudyLab, dask: DaskProcesses) -> Runner:
    """Start a calibration; return when the slow set of round 1 and the first sets of round 2 are held."""
    hold(dask, SLOW_BELOW, N)
    first = calibrate(study)
    wait_for(lambda: len(dask.tally) > N, of=first)
    return first


def test_a_kill_while_two_rounds_run_loses_and_repeats_no_simulation(study: StudyLab, dask: DaskProcesses) -> None:
    killed = two_rounds_running(study, dask)
    killed.signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert state(study, "fit-r1") == "running", "its runner is another process"
    last = calibrate(study)
    wait_for(lambda: "round 2 of 3: job fit-r2, " in last.said, of=last)
    dask.let_go()
    assert_finished(study, dask, last)


def kill_with_runners(study: StudyLab, killed: Runner) -> None:
    """Kill a command and the runners that it has started."""
    killed.signal(signal.SIGKILL)
    for pid in killed.alive():
        os.kill(pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    wait_for(lambda: state(study, "fit-r1") == "interrupted")


def test_a_kill_of_the_command_and_of_both_runners_repeats_only_what_was_not_committed(
    study: StudyLab, dask: DaskProcesses
) -> None:
    kill_with_runners(study, two_rounds_running(study, dask))
    committed = {seed for job in ("fit-r1", "fit-r2") for seed in committed_seeds(study, job)}
    n_before = len(dask.tally)
    dask.let_go()
    last = calibrate(study)
    assert last.wait(240) == NO_POSTERIOR, last.said
    assert not {seed for _, seed in dask.tally[n_before:]} & committed
    assert len({key for key, _ in dask.tally}) == len(trials_of(study)) == N * ROUNDS


def committed_seeds(study: StudyLab, job: str) -> list[int]:
    if not study.view(job).committed:
        return []
    return list(study.job(job).outputs("daily").to_arrow()["seed"].to_pylist())


@pytest.mark.parametrize(("record", "moment"), KILLS if SOAKING else KILLS[:2])
def test_a_kill_at_a_record_loses_and_repeats_no_simulation(
    study: StudyLab, dask: DaskProcesses, record: str, moment: str
) -> None:
    program = study.folder / "killed.py"
    program.write_text(KILLED_AT_A_RECORD)
    hold(dask, SLOW_BELOW, N * ROUNDS)
    killed = calibrate(study, program=(sys.executable, program, moment, record, "study"))
    if record != "00000002-asked.json":
        wait_for(lambda: state(study, "fit-r2") in ("running", "succeeded"), of=killed)
        dask.let_go()
    assert killed.wait() == -signal.SIGKILL, killed.said
    dask.let_go()
    assert_finished(study, dask, calibrate(study))


def test_ctrl_c_stops_both_rounds_and_the_same_command_continues(study: StudyLab, dask: DaskProcesses) -> None:
    stopped = two_rounds_running(study, dask)
    stopped.signal(signal.SIGINT)
    assert stopped.wait() == 130, stopped.said
    assert "stopped in job fit-r1; to continue, repeat the command with --name fit" in stopped.said
    assert [state(study, job) for job in ("fit-r1", "fit-r2")] == ["cancelled", "cancelled"]
    study.assert_nothing_lives(stopped)
    committed = {seed for job in ("fit-r1", "fit-r2") for seed in committed_seeds(study, job)}
    n_before = len(dask.tally)
    dask.let_go()
    last = calibrate(study)
    assert last.wait(240) == NO_POSTERIOR, last.said
    assert not {seed for _, seed in dask.tally[n_before:]} & committed
    assert len(trials_of(study)) == N * ROUNDS


def test_a_failed_round_ends_the_calibration_and_stops_the_other_round(study: StudyLab, dask: DaskProcesses) -> None:
    fails = MODEL.replace("    return {", f"    assert params['beta'] >= {SLOW_BELOW}, 'too low'\n    return {{")
    (study.project / "slow.py").write_text(fails)
    hold(dask, SLOW_BELOW, N)
    first = study.start(*arguments(study), program=(MOPS, "study"), CHECKPOINT_SECONDS=0, MAX_FAILURES=0)
    wait_for(lambda: len(dask.tally) > N, of=first)
    hold(dask, 0, N)
    assert first.wait() == 1, first.said
    assert [state(study, job) for job in ("fit-r1", "fit-r2")] == ["failed", "cancelled"]
    study.assert_nothing_lives(first)


def test_a_failed_round_is_noticed_before_the_round_before_it_ends(study: StudyLab, dask: DaskProcesses) -> None:
    """The command waited for round 1 to the end, with a round 2 that had failed."""
    fails = MODEL.replace("    return {", f"    assert number <= {N}, 'in round 2'\n    return {{")
    (study.project / "slow.py").write_text(fails)
    hold(dask, SLOW_BELOW, N * ROUNDS)
    first = study.start(*arguments(study), program=(MOPS, "study"), CHECKPOINT_SECONDS=0, MAX_FAILURES=0)
    assert first.wait(240) == 1, first.said
    assert [state(study, job) for job in ("fit-r1", "fit-r2")] == ["cancelled", "failed"]
    study.assert_nothing_lives(first)


def test_equal_sets_do_not_delay_the_next_round(study: StudyLab, dask: DaskProcesses) -> None:
    """Equal sets are one group, and the groups were counted as sets."""
    (study.folder / "space.json").write_text(json.dumps({"beta": {"values": [0.2, 0.3, 0.4, 0.5]}}))
    hold(dask, SLOW_BELOW, N * ROUNDS)
    first = calibrate(study, "--overlap", "0.7")
    wait_for(lambda: state(study, "fit-r2") in ("running", "succeeded"), of=first)
    assert study.job("fit-r1").status().n_groups == 4
    assert len(running_when_asked(study, 2)) == 2
    first.signal(signal.SIGINT)
    assert first.wait(240) == 130, first.said


def test_a_call_without_overlap_finishes_rounds_that_have_begun(study: StudyLab, dask: DaskProcesses) -> None:
    """Round 2 was abandoned if the effective sample size was reached after round 1."""
    kill_with_runners(study, two_rounds_running(study, dask))
    dask.let_go()
    smaller = calibrate(study, "--overlap", "1", "--ess", "1", "--rounds", "1")
    assert smaller.wait(240) == 0, smaller.said
    assert {row["round"] for row in trials_of(study)} == {1}, "--rounds comes first"
    last = calibrate(study, "--overlap", "1", "--ess", "1")
    assert last.wait(240) == 0, last.said
    assert {row["round"] for row in trials_of(study)} == {1, 2}


def test_the_jobs_of_a_killed_command_are_joined_and_stopped(study: StudyLab, dask: DaskProcesses) -> None:
    """Another call knew only the jobs that it had started, and failed if a runner claimed a job before it."""
    killed = two_rounds_running(study, dask)
    killed.signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    records = CalibrationRecords(study.job("fit-r1").files, "fit")
    begun = Begun(records, records.calibration(), {}, {}, {}, None, None)
    job = Job(records.files, "fit-r1", local=True)
    alone, overlapping = (RoundJobs(begun, Plan.of({"overlap": share}), {}, lambda *_: None) for share in (1.0, 0.5))
    with pytest.raises(JobError, match="job 'fit-r1' is running"):
        alone._resume(job, lambda *_: None)
    overlapping._resume(job, lambda *_: None)
    overlapping.stop()
    assert [state(study, name) for name in ("fit-r1", "fit-r2")] == ["cancelled", "cancelled"]
    study.assert_nothing_lives(killed)


def test_ctrl_c_after_the_last_round_stops_nothing(study: StudyLab) -> None:
    """The command said that it stopped in the job of a round that does not exist."""
    program = study.folder / "stopped.py"
    program.write_text(KILLED_AT_A_RECORD)
    last = calibrate(study, "--rounds", "1", program=(sys.executable, program, "stop", "00000001-told.json", "study"))
    assert last.wait(240) == NO_POSTERIOR, last.said
    assert "stopped" not in last.said


def test_rounds_do_not_overlap_on_separate_clusters(study: StudyLab) -> None:
    study.more_env = {}
    refused = calibrate(study)
    assert refused.wait() == 2
    assert "rounds overlap only on shared workers" in refused.said
    assert "set MODELOPS_SCHEDULER to a Dask scheduler" in refused.said
    assert not (study.storage / "calibrations").exists()
