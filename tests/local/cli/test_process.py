"""Commands whose standard streams are closed, full, or without a reader, with real pipes and terminals."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

import pytest

from mops.jobs.job import open_job
from programs import Ran
from soak import spread

from .command_lab import MOPS, CommandLab
from .test_commands import wait_for
from .test_watch import Terminal

SETS = [{"x": x, "sleep": 0.1} for x in (1, 2, 3, -4)]
PARTIAL = 3


def bash(lab: CommandLab, command: str) -> Ran:
    """Run ``mops`` as in a shell; the exit code is that of the first command of a pipe."""
    script = f"{MOPS} {command}; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(
        ["bash", "-c", script],
        env=lab.environment,
        cwd=lab.root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def without_reader(lab: CommandLab, arguments: Sequence[object], stdout: str | None = None) -> Ran:
    """Run a command whose stdout is a pipe that no process reads, or a file."""
    if stdout is None:
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(stdout, os.O_WRONLY)
    try:
        ran = subprocess.run(
            [MOPS, *map(str, arguments)],
            env=lab.environment,
            cwd=lab.root,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    return Ran(ran.returncode, "", ran.stderr)


STREAMS = ["2>/dev/null | true", "2>&1 | head -1", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", ">/dev/full 2>&1"]


@pytest.mark.parametrize("streams", spread(STREAMS, 2))
def test_a_job_runs_to_its_end_whatever_happens_to_its_output(lab: CommandLab, streams: str) -> None:
    """Regression: a reader that left ended the job, and a closed stream gave a traceback after the job's success."""
    lab.write_study(parameter_sets=SETS)
    ran = bash(lab, f"-v jobs submit {lab.study} --name job {streams}")
    assert ran.code == PARTIAL, ran.err
    assert "Traceback" not in ran.out + ran.err
    status = open_job("job", str(lab.storage)).status()
    assert (status.state, status.counts.simulations_good, status.counts.simulations_failed) == ("partial", 6, 2)
    assert lab.run("jobs", "verify", "job").code == 0, "a file of the job had the number of a closed stream"


def test_a_detached_job_starts_with_closed_streams(lab: CommandLab) -> None:
    """Regression: the runner was not started, and nothing told so."""
    lab.write_study(parameter_sets=SETS)
    assert bash(lab, f"jobs submit {lab.study} --name job --detach <&- >&- 2>&-").code == 0
    wait_for(lab, "job", lambda status: status["state"] == "partial")


def test_a_closed_terminal_costs_no_finished_simulation(lab: CommandLab) -> None:
    """A write to a closed terminal fails with EIO, also in the handler of SIGHUP."""
    n = 30  # the hangup comes before the end, also on a busy machine
    lab.write_study(parameter_sets=[{"x": x, "sleep": 0.5} for x in range(n)])
    around = ("env", "--default-signal=HUP")  # whatever this process does with it
    terminal = Terminal(lab, "jobs", "submit", lab.study, "--name", "job", around=around)
    terminal.wait_for("running")
    wait_for(lab, "job", lambda status: status["live"] is not None and status["counts"]["simulations_good"] > 0)
    terminal.hang_up()
    assert terminal.process.wait(60) == 128 + signal.SIGHUP
    status = open_job("job", str(lab.storage)).status()
    assert status.state == "interrupted"
    assert status.counts.simulations_good > 0
    assert lab.run("jobs", "resume", "job").code == 0
    assert open_job("job", str(lab.storage)).status().counts.simulations_good == 2 * n
    assert lab.run("jobs", "verify", "job").code == 0


PRINTS: list[list[str]] = [
    ["jobs", "list"],
    ["jobs", "status", "done"],
    ["jobs", "status", "done", "--json"],
    ["jobs", "logs", "done"],
    ["jobs", "results", "done"],
    ["jobs", "failures", "done", "--json"],
    ["jobs", "watch", "done"],
    ["settings"],
]


@pytest.mark.parametrize("arguments", spread(PRINTS, 2), ids=" ".join)
def test_a_command_that_only_prints_ends_quietly_without_a_reader(
    finished: tuple[CommandLab, str], arguments: list[str]
) -> None:
    lab, _ = finished
    assert without_reader(lab, arguments) == Ran(141, "", "")


def test_a_command_that_only_prints_reports_a_full_disk(finished: tuple[CommandLab, str]) -> None:
    lab, _ = finished
    ran = without_reader(lab, ["jobs", "list"], "/dev/full")
    assert ran == Ran(
        4,
        "",
        "error: the output cannot be written: No space left on device\n  at: stdout\nhint: write to another file\n",
    )


def test_followed_logs_end_when_their_reader_leaves(lab: CommandLab) -> None:
    """Otherwise `mops jobs logs -f JOB | head` would last as long as the job."""
    lab.write_study(parameter_sets=[{"x": x, "sleep": 0.3} for x in range(200)], n_replicates=1)
    lab.environment |= {"MODELOPS_JOB_SLOTS": "1", "MODELOPS_JOB_CHECKPOINT_SECONDS": "1"}
    with lab.start("jobs", "submit", lab.study, "--name", "job") as runner:
        wait_for(lab, "job", lambda status: status["live"] is not None)
        ran = bash(lab, "jobs logs -f job | head -1")
        assert (ran.code, ran.err) == (141, "")
        assert runner.poll() is None, "it ended with the job"
        runner.send_signal(signal.SIGINT)
        runner.communicate(timeout=60)
