"""``mops jobs watch`` on a real pseudo-terminal and through pipes, with real jobs in other processes."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest

from mops.cli.status import Lines
from mops.cli.terminal import plain
from mops.errors import JobError
from mops.jobs.following import read_log
from mops.jobs.job import Job, open_job
from mops.jobs.prepare import make_record, prepare
from mops.jobs.status import SILENT_SECONDS, Status
from mops.storage.files import Files
from mops.storage.job_options import NO_OPTIONS
from mops.storage.job_records import create_job
from mops.storage.joblog.log import JobLog
from mops.storage.params_file import encode_groups
from mops.system.signals import readable
from mops.verdicts import Counts
from waiting import until
from warm import warm

from .command_lab import MOPS, CommandLab, Process

PATIENCE_SECONDS = 60.0
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

GATED = """
import os, time

def run(params, seed):
    while params["x"] > 1 and os.path.exists(os.environ["MOPS_TEST_GATE"]):
        time.sleep(0.02)
    print("\\x1b[31mthe model\\x1b[2J says", params["x"])
    if params["x"] == 3 and "fails" in params:
        raise ValueError("three is too many")
    return {"out": {"y": [params["x"]]}}
"""


class Terminal:
    """A command on a terminal.

    Parameters
    ----------
    around
        The program that starts the command.
    """

    def __init__(self, lab: CommandLab, *arguments: object, columns: int = 100, around: Sequence[str] = ()):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        env = {name: value for name, value in lab.environment.items() if name != "COLUMNS"} | {"TERM": "xterm"}
        self.process: Process
        with os.fdopen(slave, "r+b", buffering=0) as theirs:
            if around:
                self.process = subprocess.Popen(
                    [*around, MOPS, *map(str, arguments)],
                    stdin=slave,
                    stdout=slave,
                    stderr=slave,
                    text=True,
                    cwd=lab.root,
                    env=env,
                    start_new_session=True,
                    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that the terminal sends it SIGINT
                )
            else:
                words, files = [str(one) for one in arguments], {"out": theirs, "err": theirs, "terminal": theirs}
                self.process = warm().start(words, env, lab.root, **files)
        self.raw, self._decoder = "", codecs.getincrementaldecoder("utf-8")()  # a read may end within a character

    @property
    def text(self) -> str:
        """All output so far, without control sequences."""
        return ANSI.sub("", self.raw)

    def read(self) -> bool:
        """Read the available output; return False at the end."""
        if not readable(self._master, 0.05):
            return True
        try:
            got = os.read(self._master, 65536)
        except OSError:  # EIO: the other end has closed
            return False
        self.raw += self._decoder.decode(got)
        return bool(got)

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.text:
            assert self.read(), f"it ended without {text!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"timed out waiting for {text!r}:\n{self.text}"

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def hang_up(self) -> None:
        """Close the terminal."""
        os.close(self._master)

    def end(self) -> int:
        """Wait for the end of the command; return the exit code."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.read():
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def gated(lab: CommandLab) -> Iterator[CommandLab]:
    """A study of three sets. Two of them wait while the file ``gate`` exists."""
    gate = lab.root / "gate"
    gate.touch()
    lab.environment |= {"MOPS_TEST_GATE": str(gate), "MODELOPS_JOB_SLOTS": "2", "MODELOPS_JOB_CHECKPOINT_SECONDS": "1"}
    lab.write("model.py", GATED)
    lab.write_study(parameter_sets=[{"x": x} for x in (1, 2, 3)], n_replicates=1)
    yield lab
    gate.unlink(missing_ok=True)


@pytest.fixture
def terminals() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(lab: CommandLab, *arguments: object, columns: int = 100) -> Terminal:
        opened.append(Terminal(lab, *arguments, columns=columns))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture
def running(gated: CommandLab) -> Iterator[Process]:
    """A job named ``job`` with one committed set and two that wait."""
    with gated.start("jobs", "submit", gated.study, "--name", "job") as process:
        until(lambda: exists(gated) and open_job("job", str(gated.storage)).status().groups >= 1)
        yield process
        process.kill()


def exists(lab: CommandLab) -> bool:
    return (lab.storage / "jobs" / "job" / "job.json").is_file()


def open_gate(lab: CommandLab) -> None:
    (lab.root / "gate").unlink()


def submit_only(lab: CommandLab) -> None:
    """Write the records of a job without a runner."""
    prepared = prepare(lab.study)
    record = make_record("job", prepared, NO_OPTIONS)
    files = Files.open(str(lab.storage))
    create_job(files, record, prepared.bundle, prepared.text, encode_groups(prepared.study.groups, files.spool()))


def test_a_waiting_job_is_watched_until_it_starts_and_ends(
    gated: CommandLab, terminals: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", gated.environment["XDG_CACHE_HOME"])
    submit_only(gated)
    screen = terminals(gated, "jobs", "watch", "job")
    screen.wait_for("job: submitted, waiting for a runner")
    with gated.start("jobs", "resume", "job") as runner:
        screen.wait_for("job: running, attempt 1, process ")
        screen.wait_for("in flight")
        open_gate(gated)
        assert screen.end() == 0
        assert runner.wait(PATIENCE_SECONDS) == 0
    assert "job: succeeded after" in screen.text
    assert "3 good, 0 failed, of 3" in screen.text
    assert "peak memory" in screen.text


def test_what_follows_a_submitted_job_ends_when_the_job_is_deleted(
    gated: CommandLab, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Regression: a job without a log is submitted, and that of a deleted job is gone."""
    monkeypatch.setenv("XDG_CACHE_HOME", gated.environment["XDG_CACHE_HOME"])
    gone = "job 'job' was deleted meanwhile"
    submit_only(gated)
    with gated.start("jobs", "watch", "job") as watch:
        assert watch.stdout.readline().startswith("submitted: ")
        open_job("job", str(gated.storage)).delete()
        assert gone in watch.communicate(timeout=60)[1]
    assert watch.returncode == 2
    for what, follow in {"logs": lambda job: [*read_log(job, follow=True)], "wait": Job.wait}.items():
        with subtests.test(what):
            submit_only(gated)
            deleting = SimpleNamespace(time=time.time, sleep=lambda _: open_job("job", str(gated.storage)).delete())
            monkeypatch.setattr("mops.jobs.following.time", deleting)
            with pytest.raises(JobError, match=gone):
                follow(open_job("job", str(gated.storage)))


@pytest.mark.usefixtures("running")
def test_output_of_a_model_is_shown_without_its_control_sequences(
    gated: CommandLab, terminals: Callable[..., Terminal]
) -> None:
    screen = terminals(gated, "jobs", "watch", "job")
    screen.wait_for("the model says 1")
    assert "\x1b[2J" not in screen.raw
    screen.wait_for("2 left")
    screen.wait_for("durable")


def test_ctrl_c_stops_watch_and_not_the_job(
    gated: CommandLab, running: Process, terminals: Callable[..., Terminal]
) -> None:
    screen = terminals(gated, "jobs", "watch", "job")
    screen.wait_for("running, attempt 1")
    screen.type(b"\x03")
    assert screen.end() == 130
    assert "stopped watching; the job continues: mops jobs watch job" in screen.text
    assert "Traceback" not in screen.text
    open_gate(gated)
    assert running.wait(PATIENCE_SECONDS) == 0


def test_a_job_with_a_killed_runner_is_interrupted_and_gets_a_hint(gated: CommandLab, running: Process) -> None:
    running.send_signal(signal.SIGKILL)
    running.wait()
    ran = gated.run("jobs", "watch", "job")
    assert ran.code == 1
    assert ran.out.startswith("job: interrupted after ")
    assert ": its runner ended without a result\n" in ran.out
    assert "mops jobs resume job" in ran.out
    assert ran.err == ""


def test_watch_does_not_wait_for_a_runner_that_ended_before_its_first_live_record(
    gated: CommandLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: if the disk was full right after the claim, the job counted as running without end."""
    monkeypatch.setenv("XDG_CACHE_HOME", gated.environment["XDG_CACHE_HOME"])
    submit_only(gated)
    job = open_job("job", str(gated.storage))
    JobLog(job.files, job.record.paths, clock=lambda: time.time() - SILENT_SECONDS - 1).claim(by="person")
    assert job.status().state == "interrupted"
    JobLog(job.files, job.record.paths).claim(by="person")
    assert job.status().state == "running"


def test_through_a_pipe_each_change_is_one_line(gated: CommandLab, running: Process) -> None:
    with gated.start("jobs", "watch", "job") as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith("running: 1 of 3 simulations, 0 failed, 1 durable")
        open_gate(gated)
        rest = watching.stdout.read()
        assert watching.wait(PATIENCE_SECONDS) == 0
    assert "job: succeeded" in rest
    assert "\x1b" not in rest
    assert running.wait(PATIENCE_SECONDS) == 0


@pytest.mark.usefixtures("real_children")
def test_as_json_each_line_is_an_object_and_the_last_one_has_the_final_state(gated: CommandLab) -> None:
    gated.write_study(parameter_sets=[{"x": x, "fails": True} for x in (1, 2, 3)], n_replicates=1)
    with gated.start("jobs", "submit", gated.study, "--name", "job") as process:
        until(lambda: exists(gated) and open_job("job", str(gated.storage)).status().groups >= 1)
        with gated.start("jobs", "watch", "job", "--json") as watching:
            assert watching.stdout is not None
            first = json.loads(watching.stdout.readline())
            open_gate(gated)
            last = json.loads(watching.stdout.read().splitlines()[-1])
            assert watching.wait(PATIENCE_SECONDS) == 3
        assert process.wait(PATIENCE_SECONDS) == 3
    assert (first["state"], last["state"]) == ("running", "partial")
    assert first["live"]["peak_bytes"] >= first["live"]["runner_bytes"] > 0
    assert last["counts"]["verdicts"] == {"error": 1}
    assert last["reasons"][0]["message"] == "ValueError: three is too many"
    assert last["peak_bytes"] > 0


def test_for_an_ended_job_watch_prints_the_summary_at_once(finished: tuple[CommandLab, str]) -> None:
    lab, name = finished
    ran = lab.run("jobs", "watch", name)
    assert ran.code == 0
    assert ran.out.startswith(f"{name}: succeeded after ")
    assert f"mops jobs results {name}" in ran.out


def test_status_of_a_running_job_shows_slots_memory_and_undurable_results(gated: CommandLab) -> None:
    with gated.start("jobs", "submit", gated.study, "--name", "job") as process:
        until(
            lambda: (
                exists(gated)
                and (read := open_job("job", str(gated.storage)).status().live) is not None
                and read.slots > 0
            )
        )
        shown = gated.run("jobs", "status", "job").out
        open_gate(gated)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert "in flight, 2 simulations at once" in shown
    assert re.search(r"^finished +\d of \d simulations\ndurable +\d of \d finished$", shown, re.MULTILINE)
    assert re.search(r"\d+ MiB of memory, \d+ MiB at its peak", shown)


def status(n: int) -> Status:
    return Status("job", "running", 1, n, 9, 9, Counts(n), "2026-01-01", None)


def test_nothing_is_printed_without_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(lambda now: f"{now.groups} groups")
    lines._at = float("-inf")
    for n in (1, 1, 2):
        lines._at = float("-inf")  # as if 10 s had passed
        lines.show(status(n))
    lines.show(status(3))  # before 10 s have passed
    assert capsys.readouterr().out == "1 groups\n2 groups\n"


def test_a_line_is_shown_without_control_sequences() -> None:
    assert plain("\x1b[31mred\x1b[0m\tand\x07 bell\r\n") == "red and bell"
    assert plain("10 %\r100 %") == "100 %"
    assert plain("\x1b]0;title\x07 x \x1b[2J").isprintable()
