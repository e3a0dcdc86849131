"""``kill -9`` of ``mops jobs delete`` at any moment leaves a whole job or none; another deletion removes the rest."""

from __future__ import annotations

import signal

from study_lab import Runner, StudyLab, betas, rows_of, wait_for

from mops.jobs.listing import list_jobs
from mops.storage.files import Files

KILLS = 3
N_FILES = 3000
"""The number of extra sample files, so that the deletion takes long enough for a kill."""


def test_a_deletion_finishes_one_that_was_killed(lab: StudyLab) -> None:
    lab.write("counted:simulate", betas(6), n_replicates=1)
    lab.run()
    first = rows_of(lab.job())
    files, root = Files.open(str(lab.storage)), lab.storage / "jobs" / "job"
    in_the_middle = 0
    for kill in range(KILLS):
        (root / "events").mkdir(exist_ok=True)
        for n in range(N_FILES):
            (root / "events" / f"1-{n}.json").write_text("{}")
        deleter = lab.start("delete", "job", "--yes")
        kill_it(lab, deleter, kill)
        if lab.exists():  # killed before the first change
            assert [job.job for job in list_jobs(files)] == ["job"]
            assert rows_of(lab.job()) == first
            lab.assert_sound()
            continue
        if root.exists():
            in_the_middle += 1
            assert list_jobs(files) == []
            again = lab.submit()
            assert again.wait() == 2
            assert "job 'job' is only partly deleted" in again.said
            assert "mops jobs delete job" in again.said
            finisher = lab.start("delete", "job", "--yes")
            assert finisher.wait() == 0, finisher.said
        assert not root.exists()
        lab.run()
        assert rows_of(lab.job()) == first
        lab.assert_sound()
    assert in_the_middle


def kill_it(lab: StudyLab, deleter: Runner, kill: int) -> None:
    """Kill a deletion: one right after its start, the others at a random moment."""
    root = lab.storage / "jobs" / "job"
    if kill == 0:
        wait_for(lambda: (root / "deleted.json").exists() or not root.exists())
    else:
        wait_for(lambda: not root.exists() or sum(1 for _ in (root / "events").glob("*")) < N_FILES - 1000 * kill)
    deleter.signal(signal.SIGKILL)
    deleter.process.wait()
