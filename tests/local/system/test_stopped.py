"""Signals and ``mops jobs cancel`` keep finished groups, and resume computes the rest."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import psutil
import pytest
from study_lab import MOPS, Runner, StudyLab, betas, wait_for

from mops.attempt.main_loop import GRACE_SECONDS
from mops.system.signals import STOP_SIGNALS
from rows import rows_of
from soak import spread

HELD = 21


@pytest.fixture
def study(lab: StudyLab) -> StudyLab:
    lab.write("held:simulate", betas(60), n_replicates=2, targets=["scores:order"])
    return lab


def started(study: StudyLab, *around: str) -> Runner:
    """Start a job with a held simulation in each of its two slots and without any commit.

    Parameters
    ----------
    around
        The program that starts the command.
    """
    submit = ("submit", str(study.project / "study.json"), "--name", "job")
    program = (*around, str(MOPS), "jobs")
    runner = study.start(*submit, program=program, SLOTS=2, CHECKPOINT_SECONDS=3600, hold=HELD)
    wait_for(lambda: len(runner.calls) >= HELD + 2, of=runner)
    return runner


def assert_stopped_and_resumable(study: StudyLab, runner: Runner) -> None:
    """Check that the job was cancelled, that all finished groups are committed, and that resume completes it."""
    committed = set(study.view().committed)
    called = study.called(runner)
    assert study.job().status().state == "cancelled"
    assert "mops jobs resume job" in runner.said
    assert set(called.values()) == {1}, "a simulation ran twice"
    whole = {group for group, _ in called if {(group, 0), (group, 1)} <= set(called)}
    assert committed == whole
    assert 0 < len(committed) < len(study.study["parameter_sets"])
    resumed = study.resume()
    assert resumed.wait() == 0, resumed.said
    assert not {group for group, _ in study.called(resumed)} & committed
    assert rows_of(study.job()) == study.serial()
    study.assert_sound()


def test_ctrl_c_commits_finished_groups(study: StudyLab) -> None:
    """A terminal sends SIGINT to the whole foreground group."""
    runner = started(study)
    children = runner.children()
    assert len(children) == 2
    runner.signal(signal.SIGINT, whole_group=True)
    wait_for(lambda: "SIGINT" in runner.said, of=runner)
    assert runner.children() == children, "Ctrl-C reached a child"
    runner.let_go()
    assert runner.wait() == 130, runner.said
    assert "cancelled in" in runner.said
    assert "Traceback" not in runner.said
    assert_stopped_and_resumable(study, runner)


def test_a_second_ctrl_c_stops_at_once(study: StudyLab) -> None:
    runner = started(study)
    runner.signal(signal.SIGINT)
    wait_for(lambda: "SIGINT" in runner.said, of=runner)
    children = runner.children()
    assert len(children) == 2
    runner.signal(signal.SIGINT)
    since = time.monotonic()
    wait_for(lambda: not any(map(psutil.pid_exists, children)))  # although the simulations are held
    assert time.monotonic() - since < GRACE_SECONDS - 1, "it waited for the simulations that run"
    assert runner.wait() == 130, runner.said
    study.assert_nothing_lives(runner)
    committed = study.view().committed
    resumed = study.resume()
    assert resumed.wait() == 0, resumed.said
    assert not {group for group, _ in study.called(resumed)} & set(committed)
    assert rows_of(study.job()) == study.serial()


def test_sigterm_commits_finished_groups_and_leaves_the_job_to_the_next_runner(study: StudyLab) -> None:
    runner = started(study)
    runner.signal(signal.SIGTERM)
    wait_for(lambda: "SIGTERM" in runner.said, of=runner)
    runner.let_go()
    assert runner.wait() == 143, runner.said
    assert "error: SIGTERM stopped the runner of job 'job'; finished parameter sets are committed" in runner.said
    committed = set(study.view().committed)
    assert 0 < len(committed) < len(study.study["parameter_sets"])
    assert study.view().end is None
    assert study.job().status().state == "interrupted"

    # Kubernetes restarts the runner without a request. A cancelled job would stay cancelled.
    in_a_pod = study.start("run", "job", "--grace", "60", hold=2, SLOTS=2, CHECKPOINT_SECONDS=3600)
    wait_for(lambda: len(in_a_pod.calls) >= 4, of=in_a_pod)
    in_a_pod.signal(signal.SIGTERM)
    wait_for(lambda: "SIGTERM: running simulations get 40 s" in in_a_pod.said, of=in_a_pod)
    in_a_pod.let_go()
    assert in_a_pod.wait() == 143, in_a_pod.said
    committed = set(study.view().committed)

    again = study.start("run", "job")
    assert again.wait() == 0, again.said
    assert not {group for group, _ in study.called(again)} & committed
    assert rows_of(study.job()) == study.serial()
    study.assert_sound()


@pytest.mark.parametrize(
    "number", spread([one for one in STOP_SIGNALS if one != signal.SIGTERM], 1), ids=lambda number: number.name
)
def test_each_stop_signal_commits_finished_groups_and_resume_continues(study: StudyLab, number: signal.Signals) -> None:
    """Regression: a closed terminal (SIGHUP), Slurm (SIGUSR1) and others ended the runner without a last commit."""
    runner = started(study, "env", "--default-signal")
    runner.signal(number)
    wait_for(lambda: f"{number.name}: running simulations get" in runner.said, of=runner)
    runner.let_go()
    assert runner.wait() == 128 + number, runner.said
    assert f"error: {number.name} stopped the runner of job 'job'; finished parameter sets are committed" in runner.said
    committed = set(study.view().committed)
    assert 0 < len(committed) < len(study.study["parameter_sets"])
    assert study.job().status().state == "interrupted"
    resumed = study.resume()
    assert resumed.wait() == 0, resumed.said
    assert not {group for group, _ in study.called(resumed)} & committed
    assert rows_of(study.job()) == study.serial()
    verified = study.start("verify", "job")
    assert verified.wait() == 0, verified.said


def test_a_second_signal_of_another_kind_stops_at_once(study: StudyLab) -> None:
    runner = started(study, "env", "--default-signal")
    children = runner.children()
    runner.signal(signal.SIGHUP)
    wait_for(lambda: "SIGHUP: " in runner.said, of=runner)
    runner.signal(signal.SIGTERM)
    wait_for(lambda: "SIGTERM again: " in runner.said, of=runner)
    wait_for(lambda: not any(map(psutil.pid_exists, children)))  # although the simulations are held
    assert runner.wait() == 128 + signal.SIGHUP, "the first signal decides"
    assert study.job().status().state == "interrupted"
    study.assert_nothing_lives(runner)


def test_the_kernels_repeated_sigxcpu_does_not_shorten_the_grace_period(study: StudyLab) -> None:
    """The kernel sends SIGXCPU after each second of CPU time beyond the limit."""
    runner = started(study, "env", "--default-signal")
    children = runner.children()
    for _ in range(3):
        runner.signal(signal.SIGXCPU)
        wait_for(lambda: "SIGXCPU: running simulations get" in runner.said, of=runner)
    assert runner.children() == children
    runner.let_go()
    assert runner.wait() == 128 + signal.SIGXCPU, runner.said


def test_nohup_still_protects_a_job_from_sighup(study: StudyLab) -> None:
    runner = started(study, "nohup")
    runner.signal(signal.SIGHUP)
    runner.let_go()
    assert runner.wait() == 0, runner.said
    assert "SIGHUP" not in runner.said
    assert rows_of(study.job()) == study.serial()


ORDERS = [
    (number, order)
    for number in (signal.SIGTERM, signal.SIGINT)
    for order in ("children first", "runner first", "children long before")
]


@pytest.mark.parametrize(("number", "order"), spread(ORDERS, 2), ids=lambda value: getattr(value, "name", value))
def test_a_signal_to_every_process_of_a_job_is_no_failure_of_the_model(
    study: StudyLab, number: signal.Signals, order: str
) -> None:
    """Regression: `systemctl stop` and `scancel` made failures of good simulations, which resume did not run again."""
    runner = study.submit(SLOTS=2, CHECKPOINT_SECONDS=3600, RETRIES=0, hold=HELD)
    wait_for(lambda: len(runner.calls) >= HELD + 2, of=runner)
    alone, others = [runner.process.pid], [pid for pid in runner.alive() if pid != runner.process.pid]
    assert len(others) >= 3
    for pid in [*alone, *others] if order == "runner first" else [*others, *alone]:
        if pid == runner.process.pid and order == "children long before":
            wait_for(lambda: len(runner.calls) >= HELD + 4, of=runner)  # the simulations run again
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    wait_for(lambda: f"{number.name}: running" in runner.said, of=runner)
    runner.let_go()
    assert runner.wait() == 128 + number, runner.said
    assert study.view().counts.failed == 0
    resumed = study.resume(RETRIES=0)
    assert resumed.wait() == 0, resumed.said
    assert rows_of(study.job()) == study.serial()
    assert study.start("verify", "job").wait() == 0


def test_a_pause_of_all_processes_does_not_count_against_the_timeout(lab: StudyLab) -> None:
    """Regression: a batch system that stopped a job for a while, or `docker pause`, made good simulations `timeout`."""
    lab.write("held:simulate", betas(2), n_replicates=1)
    runner = lab.submit(SLOTS=2, SIM_TIMEOUT=5, hold=0)
    wait_for(lambda: len(runner.calls) == 2, of=runner)
    stopped = list(runner.alive())
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(8.0)
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)  # the worker looks at its children again
    runner.let_go()
    assert runner.wait() == 0, runner.said
    assert "timeout" not in runner.said
