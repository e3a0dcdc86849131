"""Ctrl-C in a program that calls mops, like a notebook kernel: mops raises an error and the program survives.

Regression: the cell continued after the job was cancelled, and a third Ctrl-C killed the kernel.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest
from study_lab import Runner, StudyLab, betas, wait_for

from rows import rows_of

HELD = 9
CELL = """
import faulthandler, logging, os, signal, sys, threading, time
from pathlib import Path
import mops
from mops.storage.backends.local import LocalFolder

study, storage, hang, where = sys.argv[1:]
logging.basicConfig()  # warnings to stderr, as in a notebook
signal.signal(signal.SIGINT, signal.default_int_handler)  # even if the tests run in the background of a shell


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def held_up(call):
    def wait(*given):
        while Path(hang).exists():  # a storage that does not answer
            time.sleep(0.01)
        return call(*given)
    return wait


LocalFolder.put, LocalFolder.put_new = held_up(LocalFolder.put), held_up(LocalFolder.put_new)


def cell():
    job = mops.submit(study, storage=storage, name="job")
    say("the next line:", job.status().state)
    over.set()


if where == "handlers":
    signal.signal(signal.SIGUSR1, lambda *_: say("the program's own SIGUSR1"))
    faulthandler.register(signal.SIGUSR2)
over = threading.Event()
try:
    if where == "thread":
        threading.Thread(target=cell).start()
        over.wait()
    else:
        cell()
except KeyboardInterrupt as stopped:
    say("interrupted:", stopped)
if where == "thread":
    over.wait()
job = mops.open_job("job", storage)
say("alive:", job.status().state)
Path(hang).unlink(missing_ok=True)
if job.status().state != "succeeded":
    Path(os.environ["MOPS_TEST_HOLD"]).unlink(missing_ok=True)
    say("resumed:", mops.resume(job).status().state)
say("over")
"""


@pytest.fixture
def study(lab: StudyLab) -> StudyLab:
    lab.write("held:simulate", betas(30), targets=["scores:order"])
    return lab


def started(study: StudyLab, where: str = "main") -> Runner:
    """Run the cell until a simulation is held in each of its two slots."""
    cell = study.folder / "cell.py"
    cell.write_text(CELL)
    given = (str(cell), str(study.project / "study.json"), str(study.storage), str(hang(study)), where)
    runner = study.start(*given, program=(sys.executable,), SLOTS=2, CHECKPOINT_SECONDS=3600, hold=HELD)
    wait_for(lambda: len(runner.calls) >= HELD + 2, of=runner)
    return runner


def hang(study: StudyLab) -> Path:
    return study.folder / "hang"


def assert_alive_and_resumed(study: StudyLab, runner: Runner, state: str) -> None:
    assert runner.wait() == 0, runner.said
    assert "the next line" not in runner.said, "the cell continued after its job was stopped"
    assert f"alive: {state}\n" in runner.said
    assert "resumed: succeeded\nover" in runner.said
    assert rows_of(study.job()) == study.serial()
    study.assert_sound()
    study.assert_nothing_lives(runner)


def test_an_interrupt_is_raised_after_the_commit(study: StudyLab) -> None:
    runner = started(study)
    runner.signal(signal.SIGINT)
    wait_for(lambda: "SIGINT" in runner.said, of=runner)
    runner.let_go()
    wait_for(lambda: "interrupted:" in runner.said, of=runner)
    assert "interrupted: job 'job' was stopped, and finished results are committed" in runner.said
    assert_alive_and_resumed(study, runner, "cancelled")


def test_a_third_interrupt_abandons_the_job_and_the_kernel_survives(study: StudyLab) -> None:
    runner = started(study)
    hang(study).touch()
    children = runner.children()
    for said in ("SIGINT: ", "SIGINT again"):
        runner.signal(signal.SIGINT)
        wait_for(lambda said=said: said in runner.said, of=runner)
    wait_for(lambda: not any(map(psutil.pid_exists, children)), of=runner)  # only the commit is left, and it hangs
    runner.signal(signal.SIGINT)
    wait_for(lambda: "interrupted: job 'job' was stopped without a last commit" in runner.said, of=runner)
    assert_alive_and_resumed(study, runner, "interrupted")


def test_an_interrupt_does_not_stop_a_job_in_another_thread(study: StudyLab) -> None:
    runner = started(study, "thread")
    runner.signal(signal.SIGINT)
    wait_for(lambda: "interrupted: " in runner.said, of=runner)
    assert "SIGINT" not in runner.said
    runner.let_go()
    assert runner.wait() == 0, runner.said
    assert "the next line: succeeded\nalive: succeeded\nover" in runner.said
    assert rows_of(study.job()) == study.serial()


def test_the_handlers_of_a_program_keep_their_signals(study: StudyLab) -> None:
    """The handler of ``faulthandler.register`` is C code, which ``signal.getsignal`` does not see."""
    runner = started(study, "handlers")
    for number, said in ((signal.SIGUSR1, "the program's own SIGUSR1"), (signal.SIGUSR2, "in submit\n")):
        runner.signal(number)
        wait_for(lambda said=said: said in runner.said, of=runner)
    assert "running simulations get" not in runner.said
    runner.let_go()
    assert runner.wait() == 0, runner.said
    assert "the next line: succeeded\n" in runner.said


def test_a_stop_signal_without_a_handler_of_the_program_commits_finished_groups(study: StudyLab) -> None:
    """Slurm's --signal=USR1 ended a script that calls mops.submit without a last commit."""
    runner = started(study)
    runner.signal(signal.SIGUSR1)
    wait_for(lambda: "SIGUSR1: " in runner.said, of=runner)
    runner.let_go()
    assert runner.wait() == 1
    assert "Terminated: SIGUSR1 stopped the runner of job 'job'; finished parameter sets are committed" in runner.said
    assert study.view().committed
    assert study.resume().wait() == 0
    assert rows_of(study.job()) == study.serial()
