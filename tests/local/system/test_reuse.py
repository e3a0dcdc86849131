"""``mops jobs submit --reuse`` runs only what no complete job of the storage has, and gives the rows of a full run."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter

from study_lab import Runner, StudyLab, betas, wait_for

from rows import rows_of

WARM_CHILDREN = True
N = 8


def write(lab: StudyLab, sets: list[dict[str, float]], n_replicates: int, model: str = "held:simulate") -> None:
    lab.write(model, sets, n_replicates=n_replicates, targets=["scores:order"])


def reuse(lab: StudyLab, name: str, *, exit_code: int = 0, **settings: object) -> Runner:
    runner = lab.start("submit", str(lab.project / "study.json"), "--name", name, "--reuse", **settings)
    assert runner.wait() == exit_code, runner.said
    return runner


def assert_is_whole_study(lab: StudyLab, name: str) -> None:
    job = lab.job(name)
    assert rows_of(job) == lab.serial()
    lab.assert_sound(name)
    assert job.verify() == []
    status = job.status()
    n_sets, n_replicates = len(lab.study["parameter_sets"]), lab.study["n_replicates"]
    assert (status.state, status.groups, status.n_simulations) == ("succeeded", n_sets, n_sets * n_replicates)
    assert status.counts.simulations_good == n_sets * n_replicates
    assert status.counts.targets_good == n_sets


def test_only_what_is_missing_runs_and_targets_are_scored_anew(lab: StudyLab) -> None:
    """The sets have another order, some are new, and there are more replicates."""
    sets = betas(N)
    write(lab, sets[:3], 2)
    lab.run("first")
    write(lab, sets[2:5], 3)
    lab.run("second")
    write(lab, sets[::-1], 3)
    third = reuse(lab, "third")
    had = {(i, r) for i in range(3) for r in range(2)} | {(i, r) for i in range(2, 5) for r in range(3)}
    missing = {(N - 1 - i, r) for i in range(N) for r in range(3) if (i, r) not in had}
    assert lab.called(third) == Counter(missing)
    assert "runs 11 simulations; reuses 13 simulations: 9 from second, 4 from first" in third.said
    assert_is_whole_study(lab, "third")

    again = reuse(lab, "again")
    assert again.calls == []
    assert "runs 0 simulations; reuses 24 simulations: 24 from third" in again.said
    assert_is_whole_study(lab, "again")

    shutil.rmtree(lab.storage / "jobs" / "third")
    assert_is_whole_study(lab, "again")  # it has its own rows


def test_what_a_derived_job_ran_is_reused_and_what_it_took_over_comes_from_its_parent(lab: StudyLab) -> None:
    write(lab, betas(N), 2)
    lab.run("first")
    longer = lab.start("extend", "first", "--replicates", "4", "--name", "longer")
    assert longer.wait() == 0, longer.said
    write(lab, betas(N), 5)
    whole = reuse(lab, "whole")
    assert lab.called(whole) == Counter((group, 4) for group in range(N))
    assert "16 from longer, 16 from first" in whole.said
    assert_is_whole_study(lab, "whole")
    extended = lab.start("extend", "whole", "--replicates", "6", "--name", "extended")
    assert extended.wait() == 0, extended.said
    assert len(extended.calls) == N
    assert not lab.job("extended").record.reuse


def test_a_kill_in_the_middle_and_then_a_source_that_is_gone(lab: StudyLab) -> None:
    write(lab, betas(N)[::2], 2)
    lab.run("first")
    write(lab, betas(N), 3)
    job = lab.start("submit", str(lab.project / "study.json"), "--name", "job", "--reuse", hold=7, SLOTS=1,
                    CHECKPOINT_SECONDS=0)  # fmt: skip
    wait_for(lambda: len(job.calls) >= 8 and len(lab.view("job").committed) >= 1, of=job)
    job.signal(signal.SIGKILL)
    job.wait()
    had = {(group, r) for group in range(0, N, 2) for r in range(2)}
    assert not had & lab.called(job).keys()
    done = lab.view("job").committed

    resumed = lab.resume("job", hold=0, SLOTS=1, CHECKPOINT_SECONDS=0)
    wait_for(lambda: len(resumed.calls) >= 1, of=resumed)
    resumed.signal(signal.SIGKILL)
    resumed.wait()
    assert not had & lab.called(resumed).keys()

    deleted = lab.start("delete", "first", "--yes")
    assert deleted.wait() == 0, deleted.said
    last = lab.resume("job")
    assert last.wait() == 0, last.said
    left = {(group, r) for group in range(N) for r in range(3) if group not in done}
    assert lab.called(last) == Counter(left), "what cannot be read runs"
    assert "job first was deleted or replaced" in last.said + (lab.job("job").logs() or "")
    assert_is_whole_study(lab, "job")


def test_other_variables_and_a_changed_model_are_not_reused(lab: StudyLab) -> None:
    write(lab, betas(2), 1)
    lab.run("first")
    study = str(lab.project / "study.json")
    other = lab.start("submit", study, "--name", "other", "--reuse", "--env", "MODE=fast")
    assert other.wait() == 0, other.said
    assert len(other.calls) == 2
    fast = lab.start("submit", study, "--name", "fast", "--reuse", "--env", "MODE=fast")
    assert fast.wait() == 0, fast.said
    assert "reuses 2 simulations: 2 from other" in fast.said
    with (lab.project / "counted.py").open("a") as file:
        file.write("\nCHANGED = print()\n")
    changed = reuse(lab, "changed")
    assert len(changed.calls) == 2
    assert "job first is not reused, because its files differ: counted.py (changed)" in changed.said
    assert not lab.job("changed").record.reuse


def test_sets_with_a_failed_simulation_run_again(lab: StudyLab) -> None:
    sets = [{**params, "ward": str(lab.folder / "ward.txt")} for params in betas(4)]
    lab.write("ill:simulate", sets, n_replicates=2, targets=["ill:score"])
    (lab.folder / "ward.txt").write_text(f"{sets[1]['beta']} error\n{sets[2]['beta']} target\n")
    lab.run("first", exit_code=3)
    (lab.folder / "ward.txt").write_text("")
    again = reuse(lab, "again")
    assert lab.called(again) == Counter([(1, 0), (1, 1)])
    assert_is_whole_study(lab, "again")


def test_jobs_that_are_not_complete_and_studies_that_store_some_outputs(lab: StudyLab) -> None:
    write(lab, betas(3), 1)
    first = lab.submit("first", hold=1, SLOTS=1, CHECKPOINT_SECONDS=0)
    wait_for(lambda: lab.exists("first") and len(lab.view("first").committed) >= 1, of=first)
    first.signal(signal.SIGINT)
    first.wait()
    other = reuse(lab, "other")
    assert len(other.calls) == 3
    lab.study["outputs"] = ["daily"]
    (lab.project / "study.json").write_text(json.dumps(lab.study))
    refused = reuse(lab, "refused", exit_code=2)
    assert "stores only some outputs cannot reuse simulations" in refused.said
