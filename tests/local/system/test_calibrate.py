"""A calibration continues after a kill at any moment, loses nothing, and repeats nothing that is committed.

The model's own log counts the simulations (calls of project/held.py).
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter

import pyarrow.parquet as pq
import pytest
from study_lab import MOPS, Runner, StudyLab, betas, wait_for

from soak import spread

N = 6
ROUNDS = 3
REPLICATES = 2
ALL_CALLS = N * ROUNDS * REPLICATES
SPACE = {"beta": {"min": 0.2, "max": 0.6}, "gamma": {"min": 0.05, "max": 0.2}}
NO_POSTERIOR = 3
N_RECORDS = 2 + 2 * ROUNDS  # one of them, after round 1, says how the call weighs sets

KILLED_AT_RECORDS = """
import os, signal, sys

import mops
import mops.cluster.embedded
from mops.storage.backends.local import LocalFolder

space, study, storage, n, rounds, method = sys.argv[1:]
calibrate, put_new = mops.calibrate, LocalFolder.put_new
for line in sys.stdin:
    (moment, n_written), pid = line.split(), os.fork()
    if pid == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()


def killing(folder, path, data):
    global n_written
    if not path.startswith("calibrations/"):
        return put_new(folder, path, data)
    if int(n_written):
        n_written = int(n_written) - 1
        return put_new(folder, path, data)
    if moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    found = put_new(folder, path, data)
    os.kill(os.getpid(), signal.SIGKILL)
    return found


LocalFolder.put_new = killing
options = {"n": int(n), "rounds": int(rounds), "ess": 1e6, "temperature": 100, "method": method}
calibrate(space, study, name="fit", storage=storage, local=True, **options)
"""
"""For each line of its stdin, this program forks a process that calibrates, and prints its exit code.

The forked process kills itself before or after it writes a record: the first one, or, as the line says, a later one. It
does not import mops again, which would take half the time of the test.
"""
MOMENTS = [(n_records, moment) for n_records in range(N_RECORDS) for moment in ("before", "after")]


@pytest.fixture
def study(lab: StudyLab) -> StudyLab:
    lab.write("held:simulate", betas(1), n_replicates=REPLICATES, targets=["scores:order"])
    (lab.folder / "space.json").write_text(json.dumps(SPACE))
    return lab


def calibrate(study: StudyLab, *more: str, name: str = "fit", **settings: object) -> Runner:
    options = ["--rounds", str(ROUNDS), "-n", str(N), "--ess", "1e6", "--temperature", "100", "--name", name]
    files = [str(study.folder / "space.json"), "--study", str(study.project / "study.json")]
    to = ["--to", str(study.folder / name)]
    return study.start("calibrate", *files, *options, *to, *more, program=(MOPS, "study"), **settings)


def trials_of(study: StudyLab, name: str = "fit") -> list[dict[str, object]]:
    """Return the trials without the names of their jobs."""
    return pq.read_table(study.folder / name / "trials.parquet").drop_columns(["job"]).to_pylist()


def simulations(study: StudyLab) -> Counter[tuple[str, int]]:
    """Count the calls of the model in all commands so far, by parameters and seed."""
    return Counter((key, seed) for runner in study.runners for key, seed, _ in runner.calls)


def assert_same_as_uninterrupted(study: StudyLab, *more: str, code: int = NO_POSTERIOR) -> None:
    simulated = simulations(study)
    assert len(simulated) == ALL_CALLS, "a simulation of another set, or one is missing"
    whole = calibrate(study, *more, name="whole")
    assert whole.wait() == code, whole.said
    assert trials_of(study) == trials_of(study, "whole")
    assert len(trials_of(study)) == N * ROUNDS
    again = calibrate(study, *more)  # all rounds have ended
    assert again.wait() == code, again.said
    assert again.calls == []


@pytest.mark.parametrize("method", spread(["importance", "tpe"], 1))
def test_a_kill_before_or_after_each_record_loses_and_repeats_no_simulation(study: StudyLab, method: str) -> None:
    code = NO_POSTERIOR if method == "importance" else 0
    program = study.folder / "killed.py"
    program.write_text(KILLED_AT_RECORDS)
    paths = [study.folder / "space.json", study.project / "study.json", study.storage]
    given = [*map(str, paths), str(N), str(ROUNDS), method]
    forks = study.start(str(program), *given, program=(sys.executable,), stdin=subprocess.PIPE)
    assert forks.process.stdin is not None
    exit_codes, records = study.folder / "stdout-1.txt", study.storage / "calibrations" / "fit"
    stored = 0
    for n_records, moment in spread(MOMENTS, 6 if method == "importance" else 3):
        killed = exit_codes.read_text().splitlines()
        forks.process.stdin.write(f"{moment} {n_records - stored}\n".encode())
        forks.process.stdin.flush()
        wait_for(lambda killed=killed: exit_codes.read_text().splitlines() != killed, of=forks)
        assert exit_codes.read_text().splitlines() == [*killed, str(-signal.SIGKILL)], forks.said
        study.assert_nothing_lives(forks, but=forks.process.pid)
        stored = sum(path.is_file() for path in records.rglob("*.json"))
        assert stored == n_records + (moment == "after")
    forks.process.stdin.close()
    assert forks.wait() == 0, forks.said
    last = calibrate(study, "--method", method)
    assert last.wait() == code, last.said
    assert last.calls == []
    assert set(simulations(study).values()) == {1}
    assert_same_as_uninterrupted(study, "--method", method, code=code)


@pytest.mark.parametrize("held", spread([N * REPLICATES + 5, 3], 1))  # in round 2; in round 1
def test_a_kill_during_a_round_repeats_only_what_was_not_committed(study: StudyLab, held: int) -> None:
    killed = calibrate(study, SLOTS=2, CHECKPOINT_SECONDS=0, hold=held)
    wait_for(lambda: len(killed.calls) > held, of=killed)
    killed.signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    study.assert_nothing_lives(killed)
    committed = {seed for seed, _ in committed_seeds(study)}
    last = calibrate(study, "--take-over")
    assert last.wait() == NO_POSTERIOR, last.said
    assert not {seed for _, seed, _ in last.calls} & committed, "a committed set ran again"
    assert_same_as_uninterrupted(study)


def committed_seeds(study: StudyLab) -> list[tuple[int, str]]:
    """Return the seeds that the jobs of all rounds have committed."""
    found = []
    for name in sorted(path.name for path in (study.storage / "jobs").iterdir()):
        if study.exists(name) and study.view(name).committed:
            found += [(seed, name) for seed in study.job(name).outputs("daily").to_arrow()["seed"].to_pylist()]
    return found


def test_ctrl_c_stops_the_round_and_the_same_command_continues(study: StudyLab) -> None:
    stopped = calibrate(study, SLOTS=2, SIM_TIMEOUT=60, hold=N * REPLICATES + 3)
    wait_for(lambda: len(stopped.calls) > N * REPLICATES + 3, of=stopped)
    stopped.signal(signal.SIGINT)
    wait_for(lambda: "SIGINT" in stopped.said, of=stopped)
    stopped.let_go()
    assert stopped.wait() == 130, stopped.said
    assert re.search(rf"job fit-r2: \d+ of {N} parameter sets are committed", stopped.said)
    assert "stopped in job fit-r2; to continue, repeat the command with --name fit" in stopped.said
    assert stopped.said.count("limits: SIM_TIMEOUT 60 s (environment)") == 2, "each round says its limits"
    assert study.job("fit-r2").status().state == "cancelled"
    assert {row["round"] for row in trials_of(study)} == {1}, "a stopped round has no trials yet"
    finished = set(committed_seeds(study))
    last = calibrate(study)
    assert last.wait() == NO_POSTERIOR, last.said
    assert not {seed for _, seed, _ in last.calls} & {seed for seed, _ in finished}
    assert len(simulations(study)) == ALL_CALLS


def test_two_commands_at_a_time_do_not_run_the_same_round(study: StudyLab) -> None:
    first = calibrate(study, SLOTS=2, hold=3)
    wait_for(lambda: len(first.calls) > 3, of=first)
    second = calibrate(study)
    assert second.wait() == 2, second.said
    assert "job 'fit-r1' is running" in second.said
    assert second.calls == []
    first.let_go()
    assert first.wait() == NO_POSTERIOR, first.said
    assert set(simulations(study).values()) == {1}
