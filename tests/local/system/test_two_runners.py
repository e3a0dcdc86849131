"""Two runners on one job: the newer attempt owns the job."""

from __future__ import annotations

import signal

import pytest
from study_lab import StudyLab, betas, wait_for

from mops.jobs.removal import clean
from mops.storage.backends.base import Entry
from mops.storage.files import Files
from rows import rows_of


def test_a_runner_that_wakes_up_after_a_take_over_commits_nothing(lab: StudyLab) -> None:
    """A node did not answer for a while. Its runner has finished groups and still believes that it owns the job."""
    lab.write("held:simulate", betas(60, sleep=0.002), n_replicates=2, targets=["scores:order"])
    older = lab.submit(CHECKPOINT_SECONDS=0, hold=30)
    wait_for(lambda: len(lab.view().committed) >= 5 if lab.exists() else False, of=older)
    older.signal(signal.SIGSTOP)
    newer = lab.resume(take_over=True, CHECKPOINT_SECONDS=0, hold=10)
    wait_for(lambda: lab.view().attempt == 2 and len(newer.calls) >= 10, of=newer)
    older.let_go()  # the held simulations finish before the older runner reads the log
    older.signal(signal.SIGCONT)
    assert older.wait() == 5, older.said
    assert "superseded by attempt 2" in older.said
    newer.let_go()
    assert newer.wait() == 0, newer.said
    assert rows_of(lab.job()) == lab.serial()
    lab.assert_sound()
    for runner in (older, newer):
        lab.assert_nothing_lives(runner)


def test_two_runners_at_once_give_one_set_of_rows(lab: StudyLab) -> None:
    lab.write("held:simulate", betas(60, sleep=0.002), n_replicates=2, targets=["scores:order"])
    killed = lab.submit(CHECKPOINT_SECONDS=0, hold=30)
    wait_for(lambda: len(lab.view().committed) >= 5 if lab.exists() else False, of=killed)
    killed.signal(signal.SIGKILL)
    killed.wait()
    both = []
    for attempt in (2, 3):
        both.append(lab.resume(take_over=True, CHECKPOINT_SECONDS=0, hold=10))
        wait_for(lambda attempt=attempt: lab.view().attempt == attempt, of=both[-1])
    for runner in both:
        runner.let_go()
    codes = sorted(runner.wait() for runner in both)
    loser = next(runner for runner in both if runner.process.returncode == 5)
    assert codes == [0, 5], [runner.said for runner in both]
    assert "superseded by attempt 3" in loser.said
    assert "Traceback" not in loser.said
    assert rows_of(lab.job()) == lab.serial()
    lab.assert_sound()
    for runner in both:
        lab.assert_nothing_lives(runner)


def test_a_runner_that_takes_over_while_the_job_is_cleaned_loses_nothing(
    lab: StudyLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the cleaner took a runner that claimed after it for the dead runner, and removed its parts."""
    lab.write("held:simulate", betas(40, sleep=0.002), n_replicates=2, targets=["scores:order"])
    killed = lab.submit(CHECKPOINT_SECONDS=0, hold=20)
    wait_for(lambda: len(lab.view().committed) >= 5 if lab.exists() else False, of=killed)
    killed.signal(signal.SIGKILL)
    killed.wait()
    before, listing, taken_over = len(lab.view().committed), Files.list, []

    def take_over_first(files: Files, folder: str) -> list[Entry]:
        if folder == f"{lab.paths().root}/outputs" and not taken_over:
            taken_over.append(runner := lab.resume(take_over=True, CHECKPOINT_SECONDS=0, hold=20))
            wait_for(lambda: lab.view().attempt == 3 and len(lab.view().committed) > before, of=runner)
        return listing(files, folder)

    monkeypatch.setattr(Files, "list", take_over_first)
    clean(lab.job(), last_attempt=True)
    (runner,) = taken_over
    runner.let_go()
    assert runner.wait() == 0, runner.said
    assert rows_of(lab.job()) == lab.serial()
    lab.assert_sound()
