"""``mops jobs submit --detach``: the runner survives Ctrl-C, the closing of the terminal and a logout."""

from __future__ import annotations

import json
import os
import pty
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from study_lab import MOPS, Runner, StudyLab, betas, wait_for

import mops
from mops.settings import Settings
from mops.storage.joblog.records import Claim
from rows import rows_of

HELD = 9
FAILS_AT_SECOND_IMPORT = """
from pathlib import Path

BEEN_HERE = Path({flag!r})
if BEEN_HERE.exists():
    {what}
BEEN_HERE.touch()

def simulate(params, seed):
    return {{"n": seed}}
"""


@pytest.fixture
def study(lab: StudyLab) -> StudyLab:
    lab.write("held:simulate", betas(60), n_replicates=2, targets=["scores:order"])
    return lab


def detached(lab: StudyLab, *arguments: str, **settings: object) -> tuple[Runner, int]:
    """Submit with --detach. Return the finished command and the process id of the runner."""
    task = lab.start("submit", str(lab.project / "study.json"), "--name", "job", "--detach", *arguments, **settings)
    assert task.wait() == 0, task.said
    pids = [pid for pid, line in task.alive().items() if "jobs run job" in line]
    assert len(pids) == 1, task.alive()
    return task, pids[0]


def printed(lab: StudyLab) -> str:
    return (lab.folder / "state" / "mops" / "job.log").read_text()


def test_the_command_returns_when_the_runner_has_claimed(study: StudyLab) -> None:
    task, pid = detached(study, hold=0)
    assert (study.folder / "stdout-1.txt").read_text() == "job\n"
    for said in ("60 parameter sets", f"process {pid} runs the job", "mops jobs watch job", "mops jobs cancel job"):
        assert said in task.said
    claims = [record.by for record in study.records() if isinstance(record, Claim)]
    assert claims == ["person"]
    links = [Path(f"/proc/{pid}/fd/{number}").readlink() for number in range(3)]
    assert os.getsid(pid) == pid != os.getsid(0)
    assert links[0] == Path(os.devnull)
    assert set(links[1:]) == {study.folder / "state" / "mops" / "job.log"}
    task.let_go()
    wait_for(lambda: study.job().status().state == "succeeded")
    wait_for(lambda: not task.alive())
    assert "succeeded in" in printed(study)
    assert rows_of(study.job()) == study.serial()


@pytest.mark.parametrize("how", ["typed", "closed"])
def test_neither_ctrl_c_nor_the_terminals_end_reaches_the_runner(study: StudyLab, how: str) -> None:
    """A shell on a real terminal detaches a job. Then the test types ^C or closes the terminal (SIGHUP)."""
    lab = study.start("status", "nothing", hold=0)  # for the environment of the lab's commands
    lab.wait()
    command = f"{MOPS} jobs submit {study.project / 'study.json'} --name job --detach; echo RETURNED; exec sleep 600"
    shell, terminal = pty.fork()
    if shell == 0:
        for number in (
            signal.SIGINT,
            signal.SIGHUP,
        ):  # a background job ignores them
            signal.signal(number, signal.SIG_DFL)
        os.chdir(study.folder)
        os.execvpe("bash", ["bash", "-c", command], lab.env)
    said = b""
    while b"RETURNED" not in said:
        said += os.read(terminal, 4096)
    assert b"runs the job, and keeps running after this terminal closes" in said
    wait_for(lambda: psutil.Process(shell).name() == "sleep")  # a signal in the shell's last moments would be lost
    pids = [pid for pid, line in lab.alive().items() if "jobs run job" in line]
    if how == "typed":
        os.write(terminal, b"\x03")  # the terminal sends SIGINT to its foreground group: the sleep ends by it
    else:
        os.close(terminal)
    ended_by = {"typed": signal.SIGINT, "closed": signal.SIGHUP}[how]
    assert os.waitstatus_to_exitcode(os.waitpid(shell, 0)[1]) == -ended_by
    if how == "typed":
        os.close(terminal)
    assert [pid for pid, line in lab.alive().items() if "jobs run job" in line] == pids
    lab.let_go()
    wait_for(lambda: study.job().status().state == "succeeded")
    assert rows_of(study.job()) == study.serial()
    assert "SIG" not in printed(study)


def test_cancel_stops_a_detached_runner_and_a_detached_resume_completes_the_job(study: StudyLab) -> None:
    task, pid = detached(study, hold=HELD, SLOTS=2, CHECKPOINT_SECONDS=0)
    wait_for(lambda: len(study.view().committed) >= 1)
    assert study.start("cancel", "job").wait() == 0
    allowed = HELD
    while (
        pid in task.alive()
    ):  # the runner reads the request at its next poll of the log; until then, calls run one at a time
        allowed += 1
        task.hold_after(allowed)
        time.sleep(0.2)
    assert study.job().status().state == "cancelled"
    committed = set(study.view().committed)
    by_itself = study.start("run", "job")
    assert by_itself.wait() == 130, "a job that was cancelled stays so until a person resumes it"
    assert "job job has ended (cancelled): there is nothing to run" in by_itself.said
    resumed = study.start("resume", "job", "--detach")
    assert resumed.wait() == 0, resumed.said
    assert f"continues: {len(committed)} of 60 parameter sets are committed" in resumed.said
    wait_for(lambda: study.job().status().state == "succeeded")
    assert not {group for group, _ in study.called(resumed)} & committed
    assert rows_of(study.job()) == study.serial()
    assert "cancelled in" in printed(study)
    assert "succeeded in" in printed(study)
    study.assert_sound()


def test_a_killed_detached_runner_leaves_no_process_and_the_job_resumes(study: StudyLab) -> None:
    task, pid = detached(study, "--json", hold=HELD, SLOTS=2, CHECKPOINT_SECONDS=0)
    told = json.loads((study.folder / "stdout-1.txt").read_text())
    assert told == {"job": "job", "pid": pid, "log": str(study.folder / "state" / "mops" / "job.log")}
    wait_for(lambda: len(study.view().committed) >= 1)
    os.kill(pid, signal.SIGKILL)
    study.assert_nothing_lives(task)
    assert study.job().status().state == "interrupted"
    committed = set(study.view().committed)
    resumed = study.resume()
    assert resumed.wait() == 0, resumed.said
    assert not {group for group, _ in study.called(resumed)} & committed
    assert rows_of(study.job()) == study.serial()


def test_in_a_pod_an_import_error_of_the_model_ends_the_job_and_it_resumes_after_a_repair(study: StudyLab) -> None:
    """The command can import the model and the runner cannot, so that the runner dies before its claim.

    No job log has the output of a pod before its claim, and Kubernetes removes its records of the pod.
    """
    flag = study.folder / "flag"
    text = FAILS_AT_SECOND_IMPORT.format(flag=str(flag), what="raise OSError('the licence server is down')")
    (study.project / "fickle.py").write_text(text)
    study.write("fickle:simulate", betas(2))
    task = study.start("submit", str(study.project / "study.json"), "--name", "job", "--detach")
    assert task.wait() == 2
    assert (study.folder / "stdout-1.txt").read_text() == ""
    assert "error: the runner ended with exit code 2 before it claimed the job; its output: error: " in task.said
    assert "the licence server is down" in task.said
    assert f"at: {study.folder}/state/mops/job.log" in task.said
    assert "hint: correct the cause, then continue the job: mops jobs resume job" in task.said
    assert not task.alive()
    assert study.job().status().state == "submitted"

    pod = study.start("run", "job", "--pod")
    assert pod.wait() == 2, "Kubernetes would retry a permanent failure"
    assert study.job().status().state == "failed"
    assert study.start("logs", "job").wait() == 0
    log = (study.folder / "stdout-3.txt").read_text()
    assert "attempt 1 ends before any simulation: " in log
    assert "the licence server is down" in log

    flag.unlink()
    assert study.resume().wait() == 0
    study.assert_sound()


def test_ctrl_c_while_the_runner_starts_leaves_no_runner(study: StudyLab) -> None:
    flag = str(study.folder / "flag")
    text = FAILS_AT_SECOND_IMPORT.format(flag=flag, what="__import__('time').sleep(600)")
    (study.project / "fickle.py").write_text(text)
    study.write("fickle:simulate", betas(2))
    task = study.start("submit", str(study.project / "study.json"), "--name", "job", "--detach", SLOTS=1)
    wait_for(lambda: any("jobs run job" in line for line in task.alive().values()), of=task)
    task.signal(signal.SIGINT, whole_group=True)
    assert task.wait() == 130
    wait_for(lambda: not task.alive())
    assert study.job().status().state == "submitted"


def test_an_invalid_submit_fails_in_the_command_and_writes_nothing(study: StudyLab) -> None:
    study.write("held:nothing", betas(2))
    task = study.start("submit", str(study.project / "study.json"), "--name", "job", "--detach")
    assert task.wait() == 2
    assert "no 'nothing'" in task.said
    assert not study.storage.joinpath("jobs").exists()
    assert not task.alive()


def test_retry_detaches_too(study: StudyLab) -> None:
    study.write("ill:simulate", [{"beta": 0.3, "ward": str(study.folder / "ward")}])
    (study.folder / "ward").write_text("0.3 error\n")
    study.run(exit_code=3)
    (study.folder / "ward").unlink()
    retry = study.start("retry", "job", "--verdict", "error", "--name", "again", "--detach")
    assert retry.wait() == 0, retry.said
    wait_for(lambda: study.job("again").status().state == "succeeded")
    wait_for(lambda: not retry.alive())


def test_in_python_submit_returns_at_once_and_the_runner_uses_the_given_settings(
    study: StudyLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a detached runner reads the environment, so it lost settings given as an object."""
    folders = {"XDG_STATE_HOME": study.folder / "state", "XDG_CACHE_HOME": study.folder / "cache"}
    for name, value in folders.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MODELOPS_JOB_BATCH_SIZE", "7")
    (study.folder / "hold").write_text("0")
    monkeypatch.setenv("MOPS_TEST_HOLD", str(study.folder / "hold"))
    monkeypatch.setenv("MOPS_TEST_CALLS", str(study.folder / "calls"))
    runners: list[int] = []
    given = Settings(slots=1, checkpoint_bytes=2 << 20)
    job = mops.submit(
        study.project / "study.json",
        storage=str(study.storage),
        settings=given,
        wait=False,
        on_detach=lambda _job, runner: runners.append(runner.pid),
    )
    try:
        live = wait_for(lambda: job.status().live)
        assert (live.pid, live.settings) == (runners[0], given.to_json())
        (study.folder / "hold").unlink()
        wait_for(lambda: job.status().state == "succeeded")
        wait_for(lambda: not Path(f"/proc/{runners[0]}").exists())  # reaped: no zombie remains
    finally:
        with suppress(ProcessLookupError):
            os.kill(runners[0], signal.SIGKILL)


def test_memory_cannot_be_detached_from(study: StudyLab) -> None:
    task = study.start("submit", str(study.project / "study.json"), "--detach", "--storage", "memory://here")
    assert task.wait() == 2
    assert task.said == (
        "error: a detached runner cannot reach a storage in this process's memory\n"
        "  at: memory://here\n"
        "hint: use --storage with a folder or a URL\n"
    )


def test_a_read_only_state_folder_is_reported_before_the_job_is_created(study: StudyLab) -> None:
    (study.folder / "state").write_text("a file in the way")
    task = study.start("submit", str(study.project / "study.json"), "--name", "job", "--detach")
    assert task.wait() == 2
    assert task.said == (
        "error: the detached runner's output cannot be written (Not a directory)\n"
        f"  at: {study.folder}/state/mops/job.log\n"
        "hint: make the folder writable, or set XDG_STATE_HOME to another folder\n"
    )
    assert not study.exists()


def test_a_runner_of_a_complete_job_exits_with_the_code_of_its_state(study: StudyLab) -> None:
    """Rule 5: a restarted pod of a complete job does nothing and exits with the same code."""
    study.write("counted:simulate", betas(1))
    study.run()
    again = study.start("run", "job")
    assert (again.wait(), (study.folder / "stdout-2.txt").read_text()) == (0, "")
    assert again.said == "job job has ended (succeeded): there is nothing to run\n"
    assert sum(isinstance(record, Claim) for record in study.records()) == 1
