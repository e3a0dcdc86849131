"""With any settings, a study gives the same rows as a plain loop."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from study_lab import StudyLab, betas

from mops.jobs.job import Job
from rows import Rows, rows_of
from soak import spread

WARM_CHILDREN = True
N_SETS = 16
SETTINGS = spread([(batch, slots) for batch in (1, 7, 200) for slots in (1, 2)], 3)


@pytest.fixture
def study(lab: StudyLab) -> StudyLab:
    lab.write("counted:simulate", betas(N_SETS), n_replicates=3, targets=["scores:order", "targets:number"])
    return lab


def test_batch_size_and_slots_do_not_change_a_row(study: StudyLab) -> None:
    expected = study.serial()
    assert expected.outputs["daily"].num_rows == N_SETS * 3 * 50
    assert expected.losses.num_rows == N_SETS * 3
    given: dict[tuple[int, int], Rows] = {}
    for batch, slots in SETTINGS:
        name = f"b{batch}-s{slots}"
        study.run(name, BATCH_SIZE=batch, SLOTS=slots)
        given[batch, slots] = rows_of(study.job(name))
        study.assert_sound(name)
    assert {setting: rows == expected for setting, rows in given.items()} == dict.fromkeys(SETTINGS, True)


def test_split_groups_and_a_shuffled_study_give_the_same_rows(lab: StudyLab) -> None:
    sets = betas(12, sleep=0.02)
    lab.write("counted:simulate", sets, n_replicates=5, targets=["scores:order", "targets:number"], outputs=["daily"])
    expected = lab.serial()
    split = lab.run("split", TASK_SECONDS=0.045, SLOTS=2)
    assert rows_of(lab.job("split")) == expected
    assert set(lab.called(split).values()) == {1}
    assert "warning" not in split.said, "nothing is left of pieces, nor of what their targets were given"
    request = list(range(12))
    random.Random(1).shuffle(request)
    lab.write(
        "counted:simulate", [sets[i] for i in request], n_replicates=5, targets=lab.study["targets"], outputs=["daily"]
    )
    lab.run("shuffled", TASK_SECONDS=0.045)
    assert by_param_id(lab.job("shuffled")) == by_param_id(lab.job("split"))


def by_param_id(job: Job) -> list[list[dict[str, Any]]]:
    """Return the rows of a job without the group number, which depends on the order of the study."""
    tables = [job.outputs("daily").to_arrow(), job.losses().to_arrow()]
    keys = [["param_id", "replicate", "day"], ["param_id", "target", "name"]]
    return [
        table.drop_columns("group")
        .sort_by([(key, "ascending") for key in names if key in table.schema.names])
        .to_pylist()
        for table, names in zip(tables, keys, strict=True)
    ]


def test_split_groups_have_the_failures_of_whole_groups(lab: StudyLab) -> None:
    whats = ("good", "raises", "system_exit", "os_exit", "segfault", "returns_none", "good")
    sets = [{"what": what, "place": place, "sick": 1, "sleep": 0.02} for place, what in enumerate(whats)]
    lab.write("sometimes:simulate", sets, n_replicates=4, targets=["scores:rows"])
    lab.run("whole", exit_code=3, TASK_SECONDS=1.0, RETRIES=0, SLOTS=2)
    lab.run("split", exit_code=3, TASK_SECONDS=0.03, RETRIES=0, SLOTS=2)
    names = ["group", "replicate", "seed", "target", "reason", "message", "attempts"]
    failures = [lab.job(name).failures().to_arrow().select(names).to_pylist() for name in ("whole", "split")]
    for rows in failures:
        for row in rows:
            row["message"] = re.sub(r"after [\d.]+ s", "", row["message"])
    assert failures[0] == failures[1]
    assert failures[0]
    assert rows_of(lab.job("whole")) == rows_of(lab.job("split"))
