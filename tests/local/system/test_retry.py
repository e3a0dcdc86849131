"""``mops jobs retry`` runs failed groups again in a new job, which shows the whole study as if nothing had failed."""

from __future__ import annotations

import signal

from study_lab import StudyLab, betas, wait_for

from mops.storage.sources import verify_job
from rows import rows_of

WARM_CHILDREN = True
N = 24
ILL = {3: "error", 4: "error", 9: "crashed", 10: "timeout", 15: "target", 23: "error"}
LIMITS = {"SIM_TIMEOUT": 2, "RETRIES": 0, "CHECKPOINT_SECONDS": 0}


def admit(lab: StudyLab, ill: dict[int, str]) -> None:
    """Make these groups fail."""
    lines = [f"{lab.study['parameter_sets'][group]['beta']} {how}\n" for group, how in ill.items()]
    (lab.folder / "ward.txt").write_text("".join(lines))


def write(lab: StudyLab) -> None:
    sets = [{**params, "ward": str(lab.folder / "ward.txt")} for params in betas(N)]
    lab.write("ill:simulate", sets, n_replicates=2, targets=["ill:score"])


def test_retries_of_retries_give_the_rows_of_a_study_without_failures(lab: StudyLab) -> None:
    write(lab)
    admit(lab, ILL)
    lab.run("first", exit_code=3, **LIMITS)
    assert lab.job("first").status().counts.simulations_failed == 2 * 5
    admit(lab, {3: "error", 4: "error", 15: "target", 23: "error"})

    second = lab.start("retry", "first", "--verdict", "crashed,timeout", "--name", "second", **LIMITS)
    assert second.wait() == 3, second.said
    assert "runs 4 simulations and scores 2 of 24 parameter sets; takes over 44 simulations from first" in second.said
    assert lab.called(second).keys() == {(group, i) for group in (9, 10) for i in (0, 1)}
    status = lab.job("second").status()
    assert (status.counts.simulations_failed, status.counts.targets_failed) == (2 * 3, 4)

    admit(lab, {})
    # One slot, so that a whole group finishes before the held call, and no timeout for the held call.
    patient = LIMITS | {"SLOTS": 1, "SIM_TIMEOUT": 60}
    third = lab.start("retry", "second", "--verdict", "all", "--name", "third", hold=4, **patient)
    wait_for(lambda: len(third.calls) >= 5 and len(lab.view("third").committed) >= 1, of=third)
    third.signal(signal.SIGKILL)
    third.wait()
    committed = set(lab.view("third").committed)
    resumed = lab.resume("third")
    assert resumed.wait() == 0, resumed.said
    assert lab.called(resumed).keys() == {(group, i) for group in {3, 4, 23} - committed for i in (0, 1)}

    assert rows_of(lab.job("third")) == lab.serial()
    assert lab.job("third").failures().to_arrow().num_rows == 0
    assert lab.job("third").status().state == "succeeded"
    for name in ("first", "second", "third"):
        assert verify_job(lab.job(name).files, name) == []

    lab.run("whole")
    assert rows_of(lab.job("third")) == rows_of(lab.job("whole"))
    assert lab.job("third").status().counts == lab.job("whole").status().counts
    assert rows_of(lab.job("first")).losses.num_rows == 2 * (N - len(ILL)), "the parent has changed"
