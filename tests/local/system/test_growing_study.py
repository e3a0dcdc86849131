"""``mops jobs extend`` and ``rescore`` compute what is missing, once, and give the rows of the whole study."""

from __future__ import annotations

import json
import signal
from collections import Counter

from study_lab import Runner, StudyLab, betas, wait_for

from mops.storage.sources import verify_job
from rows import rows_of

WARM_CHILDREN = True
N = 12
MORE = 4


def write(lab: StudyLab, n_sets: int, n_replicates: int) -> None:
    lab.write("held:simulate", betas(N + MORE)[:n_sets], n_replicates=n_replicates, targets=["scores:order"])


def simulated(*runners: Runner) -> Counter[int]:
    """Count the model's calls by seed."""
    return Counter(seed for runner in runners for _, seed, _ in runner.calls)


def assert_is_whole_study(lab: StudyLab, name: str) -> None:
    job = lab.job(name)
    assert rows_of(job) == lab.serial()
    assert verify_job(job.files, name) == []
    assert job.verify() == []
    status = job.status()
    n_sets, n_replicates = len(lab.study["parameter_sets"]), lab.study["n_replicates"]
    assert (status.state, status.groups, status.n_simulations) == ("succeeded", n_sets, n_sets * n_replicates)
    assert status.counts.simulations_good == n_sets * n_replicates


def test_a_study_that_grows_computes_each_simulation_once(lab: StudyLab) -> None:
    """More replicates (with a kill in the middle), more sets, a mended target: simulations computed = needed."""
    write(lab, N, 2)
    first = lab.run("first")
    (lab.folder / "more.csv").write_text("beta\n" + "".join(f"{s['beta']}\n" for s in betas(N + MORE)[N:]))

    longer = lab.start(
        "extend", "first", "--replicates", "5", "--name", "longer", hold=7, SLOTS=1, CHECKPOINT_SECONDS=0
    )
    wait_for(lambda: len(longer.calls) >= 8 and len(lab.view("longer").committed) >= 1, of=longer)
    longer.signal(signal.SIGKILL)
    longer.wait()
    resumed = lab.resume("longer")
    assert resumed.wait() == 0, resumed.said
    write(lab, N, 5)
    assert_is_whole_study(lab, "longer")
    seeds = simulated(first, longer, resumed)
    lost = set(simulated(longer)) & set(simulated(resumed))
    assert seeds.keys() == {seed for seeds in lab.seeds() for seed in seeds}
    assert {seed for seed, n in seeds.items() if n > 1} == lost, "only what the kill took runs again"
    assert len(lost) <= 8 - 3, "at most what was not committed"

    wider = lab.start("extend", "longer", "--sets", "more.csv", "--name", "wider")
    assert wider.wait() == 0, wider.said
    assert "runs 20 simulations and scores 4 of 16 parameter sets; takes over 60 simulations from longer" in wider.said
    write(lab, N + MORE, 5)
    assert_is_whole_study(lab, "wider")
    assert max(simulated(wider).values()) == 1

    target = lab.project / "scores.py"
    target.write_text(target.read_text().replace("place * peak", "place * peak + 1"))
    again = lab.start("rescore", "wider", "--name", "again")
    assert again.wait() == 0, again.said
    assert again.calls == []
    assert "changed since the submit: scores.py (changed)" in again.said
    assert rows_of(lab.job("again")).losses != rows_of(lab.job("wider")).losses
    assert_is_whole_study(lab, "again")
    assert lab.job("again").failures().to_arrow().num_rows == 0


def test_a_new_target_is_scored_without_a_simulation(lab: StudyLab) -> None:
    lab.write("held:simulate", betas(4), n_replicates=2)
    lab.run("first")
    more = lab.start("extend", "first", "--target", "scores:order", "--name", "scored")
    assert more.wait() == 0, more.said
    assert more.calls == []
    lab.study["targets"] = ["scores:order"]
    (lab.project / "study.json").write_text(json.dumps(lab.study))
    assert_is_whole_study(lab, "scored")


def test_a_changed_model_is_another_study(lab: StudyLab) -> None:
    write(lab, 2, 1)
    (lab.project / "data.csv").write_text("1\n")
    lab.run("first")
    for change in ("held.py", "counted.py", "data.csv"):
        file = lab.project / change
        before = file.read_text()
        file.write_text(f"{before}\nCHANGED = print()\n")
        refused = lab.start("rescore", "first")
        assert refused.wait() == 2, change
        assert f"the model of job 'first' may have changed since the submit: {change}" in refused.said
        if change != "data.csv":
            file.write_text(before)
    trusted = lab.start("rescore", "first", "--trust-model", "--name", "trusted")
    assert trusted.wait() == 0, trusted.said
    assert trusted.calls == []


def test_groups_with_a_failed_simulation_run_again_as_a_whole(lab: StudyLab) -> None:
    sets = [{**params, "ward": str(lab.folder / "ward.txt")} for params in betas(4)]
    lab.write("ill:simulate", sets, n_replicates=2, targets=["ill:score"])
    (lab.folder / "ward.txt").write_text(f"{sets[1]['beta']} error\n{sets[2]['beta']} target\n")
    lab.run("first", exit_code=3)
    (lab.folder / "ward.txt").write_text("")
    longer = lab.start("extend", "first", "--replicates", "3", "--name", "longer")
    assert longer.wait() == 0, longer.said
    lab.write("ill:simulate", sets, n_replicates=3, targets=["ill:score"])
    assert_is_whole_study(lab, "longer")
    assert lab.called(longer) == Counter([(0, 2), (1, 0), (1, 1), (1, 2), (2, 2), (3, 2)])


def test_a_long_group_of_stored_and_new_replicates_runs_as_several_tasks(lab: StudyLab) -> None:
    lab.write("held:simulate", betas(1, sleep=0.3), n_replicates=2, targets=["scores:order"])
    lab.run("first")
    longer = lab.start("extend", "first", "--replicates", "8", "--name", "longer", SLOTS=2, TASK_SECONDS=0.3)
    assert longer.wait() == 0, longer.said
    assert len({pid for _, _, pid in longer.calls}) == 2, "two slots share the group"
    lab.write("held:simulate", betas(1, sleep=0.3), n_replicates=8, targets=["scores:order"])
    assert_is_whole_study(lab, "longer")
    assert max(simulated(longer).values()) == 1


def test_a_study_that_stores_some_outputs_is_not_scored_again(lab: StudyLab) -> None:
    lab.write("held:simulate", betas(2), n_replicates=1, targets=["scores:order"], outputs=["daily"])
    lab.run("first")
    refused = lab.start("rescore", "first")
    assert refused.wait() == 2
    assert "stores only the outputs daily, and targets may need others" in refused.said
    longer = lab.start("extend", "first", "--replicates", "2", "--name", "longer")
    assert longer.wait() == 0, longer.said
    assert len(longer.calls) == 4, "whole groups run again"


def test_other_targets_replace_those_of_the_job(lab: StudyLab) -> None:
    """Only Python could replace targets; `extend --target` adds."""
    write(lab, 3, 2)
    lab.run("first")
    target = lab.project / "scores.py"
    target.write_text(
        f"{target.read_text()}\n\ndef one(replicates):\n    return 1\n\n\ndef two(replicates):\n    return 2\n"
    )
    other = lab.start("rescore", "first", "--target", "scores:one", "--target", "scores:two", "--name", "other")
    assert other.wait() == 0, other.said
    assert other.calls == []
    job = lab.job("other")
    assert job.record.spec.targets == ("scores:one", "scores:two")
    losses = job.losses().to_arrow()
    assert sorted(zip(losses["target"].to_pylist(), losses["loss"].to_pylist(), strict=True)) == [
        *[("scores:one", 1.0)] * 3,
        *[("scores:two", 2.0)] * 3,
    ]
    assert job.verify() == []
    assert lab.job("first").record.spec.targets == ("scores:order",)
    refused = lab.start("rescore", "first", "--target", "scores")
    assert refused.wait() == 2
    assert "'scores' names no function" in refused.said
