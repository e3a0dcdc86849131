"""Whatever the settings are, a study gives the rows that a plain loop over it gives."""

from __future__ import annotations

import pytest
from study_lab import Lab, Rows, betas, rows_of

SETTINGS = [(batch, slots) for batch in (1, 7, 200) for slots in (1, 2)]


@pytest.fixture
def study(lab: Lab) -> Lab:
    lab.write("counted:simulate", betas(40), n_replicates=3, targets=["scores:order", "targets:number"])
    return lab


def test_batch_size_and_slots_do_not_change_a_row(study: Lab) -> None:
    expected = study.serial()
    assert expected.outputs["daily"].num_rows == 40 * 3 * 50
    assert expected.losses.num_rows == 40 * 3
    given: dict[tuple[int, int], Rows] = {}
    for batch, slots in SETTINGS:
        name = f"b{batch}-s{slots}"
        study.run(name, BATCH_SIZE=batch, SLOTS=slots)
        given[batch, slots] = rows_of(study.job(name))
        study.assert_sound(name)
    assert {setting: rows == expected for setting, rows in given.items()} == dict.fromkeys(SETTINGS, True)
