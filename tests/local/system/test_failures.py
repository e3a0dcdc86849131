"""Simulations that fail in every known way: mops reports each failure and keeps every other row."""

from __future__ import annotations

import math
from typing import Any

import pytest
from study_lab import StudyLab

from rows import rows_of

WARM_CHILDREN = True
TIMEOUT = "ran for more than 2 s"
# The expected failure for each value of the parameter `what` of nasty.py: reason, part of the message, attempts.
BAD = {
    "raises": ("error", "ValueError: the model does not like this: beta must be below 1", 1),
    "raises_locked": ("error", "LockedError: this exception holds a lock", 1),
    "raises_local_class": ("error", "LocalError: the class of this exception lives in a function", 1),
    "raises_two_arguments": ("error", "TwoArgumentsError: 7: cannot be unpickled", 1),
    "raises_unprintable": ("error", "UnprintableError", 1),
    "memory_error": ("error", "MemoryError", 1),
    "system_exit": ("error", "SystemExit: 3", 1),
    "keyboard_interrupt": ("error", "KeyboardInterrupt", 1),
    "os_exit": ("crashed", "ended with exit code 7", 2),
    "segfault": ("crashed", "ended with SIGSEGV", 2),
    "abort": ("crashed", "ended with SIGABRT", 2),
    "returns_none": ("invalid_output", "", 1),
    "returns_five_wide_list": ("invalid_output", "", 1),
    "returns_ragged": ("invalid_output", "", 1),
    "returns_mixed_column": ("invalid_output", "", 1),
    "returns_empty": ("invalid_output", "", 1),
    "returns_generator": ("invalid_output", "", 1),
    "returns_other_columns": ("invalid_output", "speed", 1),
    "returns_other_kind": ("invalid_output", "value", 1),
    "endless": ("timeout", TIMEOUT, 1),
    "endless_holding_gil": ("timeout", TIMEOUT, 1),
}
GOOD = ["good", "returns_nan", "returns_integers", "prints", "good"]
SICK, REPLICATES = 1, 3
"""The number of the replicate that misbehaves in each bad set."""


@pytest.fixture
def study(lab: StudyLab) -> StudyLab:
    seedless = [{"what": what, "place": place} for place, what in enumerate(GOOD)]
    bad: list[dict[str, Any]] = [{"what": what, "place": len(GOOD) + at} for at, what in enumerate(BAD)]
    # The seeds follow from the parameters, so the sick replicate is named by its number.
    bad = [params | {"sick": SICK} for params in bad]
    lab.write("sometimes:simulate", [*seedless, *bad], n_replicates=REPLICATES, targets=["scores:rows"])
    return lab


@pytest.mark.timeout(180)
def test_each_failure_is_reported_and_loses_no_other_row(study: StudyLab) -> None:
    runner = study.run(exit_code=3, SIM_TIMEOUT=2)
    job = study.job()
    assert job.status().state == "partial"
    seeds = study.seeds()
    params = study.study["parameter_sets"]
    first_bad = len(GOOD)
    failures = job.failures().to_arrow().to_pylist()
    of_simulations = [row for row in failures if row["target"] is None]
    assert [row["group"] for row in of_simulations] == list(range(first_bad, len(params))), runner.said
    for row, (what, (reason, message, attempts)) in zip(of_simulations, BAD.items(), strict=True):
        group = row["group"]
        assert (what, row["param_id"]) == (what, study.ids()[group])
        assert (what, row["replicate"], row["seed"]) == (what, SICK, seeds[group][SICK])
        assert (what, row["reason"], row["attempts"]) == (what, reason, attempts)
        assert message in row["message"], what
    # A group with a failed simulation has no losses, and one row that names the missing simulation.
    of_targets = [row for row in failures if row["target"] is not None]
    assert [row["group"] for row in of_targets] == list(range(first_bad, len(params)))
    for row, (reason, _, _) in zip(of_targets, BAD.values(), strict=True):
        missing = f"replicate {SICK} (seed {seeds[row['group']][SICK]})"
        assert (row["target"], row["replicate"], row["seed"], row["reason"]) == ("*", None, None, reason)
        assert missing in row["message"]
    given = rows_of(job)
    assert given.losses.column("group").to_pylist() == list(range(first_bad))
    # The rows of every other simulation are present.
    rows = given.outputs["output"]
    simulations = set(zip(rows["group"].to_pylist(), rows["replicate"].to_pylist(), strict=True))
    everything = {(group, replicate) for group in range(len(params)) for replicate in range(REPLICATES)}
    assert simulations == everything - {(group, SICK) for group in range(first_bad, len(params))}
    nan_rows = [row["value"] for row in rows.to_pylist() if row["group"] == 1 and row["replicate"] == 0]
    assert math.isnan(nan_rows[0])
    assert nan_rows[1:] == [math.inf, -math.inf, 1.0]
    assert rows.filter(rows["group"].to_numpy() == 1)["value"].null_count == 0
    study.assert_sound()
    assert f"{len(BAD)} failed" in " ".join(runner.said.split())


def test_a_failed_target_loses_only_its_losses(lab: StudyLab) -> None:
    targets = ["targets:number", "targets:raising", "targets:loss_nan", "targets:exiting", "targets:mapping"]
    lab.write("counted:simulate", [{"beta": 0.3}], n_replicates=2, targets=targets)
    lab.run(exit_code=3)
    job = lab.job()
    assert job.status().state == "partial"
    assert {(row["target"], row["name"]) for row in job.losses().to_arrow().to_pylist()} == {
        ("targets:number", "loss"),
        ("targets:mapping", "lowest"),
        ("targets:mapping", "highest"),
    }
    failed = {
        row["target"]: (row["replicate"], row["reason"], row["message"])
        for row in job.failures().to_arrow().to_pylist()
    }
    *raising, given = failed["targets:raising"][2].splitlines()
    assert raising == ["ZeroDivisionError: no one was tested", "the target got params beta and 2 replicates:"]
    assert given.startswith("  daily: 50 rows of ")
    assert failed["targets:raising"][:2] == (None, "error")
    assert failed["targets:exiting"][2].startswith("SystemExit: 3\n")
    assert failed["targets:loss_nan"][:2] == (None, "invalid_output")
    assert len(failed) == 3
    assert len(job.outputs("daily")) == 2 * 50
