"""Two runners on one job: the newer attempt owns the job."""

from __future__ import annotations

import signal

from study_lab import StudyLab, betas, wait_for

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
