"""``kill -9`` of ``mops jobs delete`` at any moment leaves a whole job or none; another deletion removes the rest."""

from __future__ import annotations

from pathlib import Path

from study_lab import Runner, StudyLab, betas, wait_for

from job_folders import folder_of
from mops.jobs.listing import list_jobs
from mops.storage.files import Files
from rows import rows_of

WARM_CHILDREN = True
KILLS = 2
N_FILES = 2000
"""The number of extra sample files, so that the deletion takes long enough for a kill."""


def test_a_deletion_finishes_one_that_was_killed(lab: StudyLab) -> None:
    lab.write("counted:simulate", betas(6), n_replicates=1)
    lab.run()
    first = rows_of(lab.job())
    files, root = Files.open(str(lab.storage)), lab.storage / "jobs" / "job"
    in_the_middle = 0
    for kill in range(KILLS):
        folder = folder_of(lab.storage, "job")
        (folder / "events").mkdir(exist_ok=True)
        for n in range(N_FILES):
            (folder / "events" / f"1-{n}.json").write_text("{}")
        deleter = lab.start("delete", "job", "--yes")
        kill_it(folder, deleter, kill)
        if lab.exists():  # killed before the first change
            assert [job.job for job in list_jobs(files)] == ["job"]
            assert rows_of(lab.job()) == first
            lab.assert_sound()
            continue
        if any(path.is_file() for path in root.rglob("*")):  # folders may be left, which only a local storage has
            in_the_middle += 1
            assert list_jobs(files) == []
            if kill % 2:  # else the next submit does not mind what is left
                finisher = lab.start("delete", "job", "--yes")
                assert finisher.wait() == 0, finisher.said
                assert not root.exists()
        lab.run()
        assert rows_of(lab.job()) == first
        lab.assert_sound()
    assert in_the_middle


def kill_it(folder: Path, deleter: Runner, kill: int) -> None:
    """Kill a deletion: one right after its start, the others at a random moment."""
    if kill == 0:
        wait_for(lambda: (folder / "deleted.json").exists() or not folder.exists())
    else:
        wait_for(lambda: not folder.exists() or sum(1 for _ in (folder / "events").glob("*")) < N_FILES - 1000 * kill)
    deleter.process.kill()  # it may have ended
    deleter.process.wait()
