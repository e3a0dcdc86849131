"""How an attempt ends after stops, and after faults that come when the main loop is over."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from runner_lab import RunnerLab

from claimed_jobs import ID
from mops.attempt.threads import TaskThreads
from mops.errors import ClusterError, Terminated, UsageError
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.paths import JobPaths
from mops.storage.progress_record import read_live
from mops.task import RunningStep


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loop end right after the grace period of a stop, as if the cluster did not answer."""
    monkeypatch.setattr("mops.attempt.main_loop._STOP_SECONDS", 0.0)


def stop_during_delivery(lab: RunnerLab, deliver: Callable[..., None], delivering: threading.Event) -> None:
    """Stop the runner while ``deliver`` has the result of its only task."""
    lab.runner._tasks_in_flight._receiver.receive = deliver
    lab.turn()
    (future,) = lab.cluster.running
    lab.answer(future)
    delivering.wait()
    lab.runner.stop(0.0)


def test_what_hung_is_logged_and_still_shown_after_a_cancel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: a simulation that hung was invisible, and the counts only stopped."""
    lab = RunnerLab(tmp_path, [1, 1])
    lab.cluster.steps = [RunningStep(0, "ab" * 32, 0, None, "node-7", 500.0, 1)]
    lab.turn()
    assert "slow: group 0 (abababababab) replicate 0 on node-7: 8 min 20 s, since " in caplog.text
    assert "set MODELOPS_JOB_SIM_TIMEOUT" in caplog.text
    lab.runner.stop(0.0)
    lab.cluster.steps = []  # it was killed
    lab.runner.run()
    live = read_live(Files.open(str(tmp_path)), JobPaths("job", ID), 1)
    assert live is not None
    assert [(step.group, step.worker) for step in live.slow] == [(0, "node-7")]


@pytest.mark.parametrize(
    ("error", "state"), [(ZeroDivisionError("a defect"), None), (UsageError("no output"), "failed")]
)
def test_a_fault_of_a_delivery_is_raised_even_if_it_comes_after_a_stop(
    tmp_path: Path, error: Exception, state: str | None
) -> None:
    """The loop was over when the fault came, and the attempt ended as cancelled without an error."""
    lab = RunnerLab(tmp_path, [1], threads=TaskThreads)
    delivering, may_fail = threading.Event(), threading.Event()

    def broken(*_: object) -> None:
        delivering.set()
        may_fail.wait()
        raise error

    stop_during_delivery(lab, broken, delivering)
    timer = threading.Timer(0.5, may_fail.set)
    timer.start()
    with pytest.raises(type(error)):
        lab.runner.run()
    timer.join()
    assert JobLog(Files.open(str(tmp_path)), JobPaths("job", ID)).read().state == state


def test_a_delivery_that_hangs_does_not_prevent_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit waited for the delivery without a limit, so that a kill lost all results since the last checkpoint."""
    monkeypatch.setattr("mops.attempt.main_loop._DELIVERY_SECONDS", 0.2)
    lab = RunnerLab(tmp_path, [1], threads=TaskThreads)
    delivering, may_end = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        delivering.set()
        may_end.wait()

    stop_during_delivery(lab, hang, delivering)
    ended = threading.Event()
    monkeypatch.setattr(lab.runner.committer, "finish", lambda: (ended.set(), may_end.set()))
    assert lab.runner.run() == "cancelled"
    assert ended.is_set()


def test_a_reconnection_that_fails_after_a_stop_is_no_fault(tmp_path: Path) -> None:
    """A stop ends the wait for the cluster with an error."""
    lab = RunnerLab(tmp_path, [1])
    lab.runner.stop(0.0)
    lab.threads.call("connect", lambda: (_ for _ in ()).throw(ClusterError("out of reach")))
    lab.threads.step("connect")
    assert lab.runner.run() == "cancelled"


def test_sigterm_alone_leaves_the_job_to_the_next_runner(tmp_path: Path) -> None:
    lab = RunnerLab(tmp_path, [1] * 8)
    lab.runner.stop(0.0, by=signal.SIGTERM)
    with pytest.raises(Terminated):
        lab.runner.run()


@pytest.mark.parametrize("sigterm_first", [False, True])
def test_a_cancel_wins_over_sigterm_in_any_order(tmp_path: Path, sigterm_first: bool) -> None:
    """SIGTERM after Ctrl-C left the job without an end: the next pod continued a job that a person had cancelled."""
    lab = RunnerLab(tmp_path, [1] * 8)
    for by in (signal.SIGTERM, None) if sigterm_first else (None, signal.SIGTERM):
        lab.runner.stop(0.0, by=by)
        lab.turn()
    assert lab.runner.run() == "cancelled"


def test_a_cancel_in_the_log_wins_over_a_sigterm_that_came_before_it_was_read(tmp_path: Path) -> None:
    lab = RunnerLab(tmp_path, [1] * 8)
    lab.runner.stop(0.0, by=signal.SIGTERM)
    JobLog(Files.open(str(tmp_path)), JobPaths("job", ID)).cancel("person")
    lab.job.log.poll()  # as the committing thread does every few seconds
    assert lab.runner.run() == "cancelled"


def test_a_later_stop_gives_simulations_no_more_time(tmp_path: Path) -> None:
    """A SIGTERM after a cancel gave them the whole grace period of the pod once more."""
    lab = RunnerLab(tmp_path, [1] * 8)
    for grace_s in (10.0, 80.0, 0.0):
        lab.runner.stop(grace_s)
        lab.turn()
    first, second, third = lab.cluster.graces
    assert (first, third) == (10.0, 0.0)
    assert 9.0 < second < 10.0
