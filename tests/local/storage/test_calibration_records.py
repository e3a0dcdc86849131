"""Records of a calibration are create-only, and read back as they were written."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from mops.errors import CorruptRecord, JobError
from mops.project.project import ModelSpec
from mops.storage.calibration_records import (
    Asked,
    CalibrationRecord,
    CalibrationRecords,
    Outcome,
    Scoring,
    calibration_names,
)
from mops.storage.files import Files

SPEC = ModelSpec("model:run", "baseline", ("model:fit",), None)
RECORD = CalibrationRecord("fit", "2026-11-25T12:00:00+00:00", "importance", 3, {"x": {"min": 0}}, SPEC, 2)
SETS = ({"x": 0.1, "n": 2**60, "on": True, "kind": "é"}, {"x": 1.0, "n": 1, "on": False, "kind": ""})
ASKED = Asked(1, "fit-r1", SETS, {"points": [[0.1], [1 / 3]]}, {"61ab": 1})
OUTCOMES = (Outcome({"fit": 1e-07}), Outcome({}, "oom"))


@pytest.fixture
def records() -> CalibrationRecords:
    return CalibrationRecords(Files.open(f"memory://{uuid.uuid4().hex}"), "fit")


def test_a_record_is_none_before_it_is_written_and_values_keep_their_types(records: CalibrationRecords) -> None:
    assert records.calibration() is None
    records.begin(RECORD)
    assert records.asked(1) is None
    records.ask(ASKED)
    assert records.rounds() == []
    records.tell(ASKED, "ab", OUTCOMES)
    assert [type(value) for value in records.rounds()[0].sets[1].values()] == [float, int, bool, str]


def test_a_record_is_never_replaced(records: CalibrationRecords) -> None:
    records.ask(ASKED)
    records.ask(ASKED)  # an answer of the storage got lost
    with pytest.raises(JobError, match="another process also runs calibration 'fit'"):
        records.ask(Asked(1, "fit-r1", SETS[:1], {}))
    assert records.asked(1) == ASKED


def test_of_scorings_the_last_counts(records: CalibrationRecords) -> None:
    assert records.scoring() is None
    first, second = Scoring({"fit": 2.0}, 0.5, 200.0), Scoring(None, 1.0, 50.0, ("a", "b"))
    for scoring in (first, first, second, first):
        records.keep_scoring(scoring)
        assert records.scoring() == scoring
    assert len(records.files.list(f"{records.folder}/scoring")) == 3, "an equal scoring is not stored again"
    assert records.rounds() == []


def test_a_round_is_open_from_its_record_asked_to_its_record_told(records: CalibrationRecords) -> None:
    assert records.open_job() is None
    records.ask(ASKED)
    assert records.open_job() == "fit-r1"
    records.tell(ASKED, "ab", OUTCOMES)
    assert records.open_job() is None
    records.ask(Asked(2, "fit-r2", SETS, {}))
    assert records.open_job() == "fit-r2"


def test_a_missing_record_is_an_error(records: CalibrationRecords) -> None:
    records.tell(ASKED, "ab", OUTCOMES)
    with pytest.raises(CorruptRecord, match="a record of this calibration is missing"):
        records.rounds()


def test_as_many_outcomes_as_sets(records: CalibrationRecords) -> None:
    records.ask(Asked(1, "fit-r1", SETS[:1], {}))
    records.tell(ASKED, "ab", OUTCOMES)
    with pytest.raises(CorruptRecord, match="round 1 has 1 sets and 2 outcomes"):
        records.rounds()


def test_a_killed_removal_leaves_a_calibration_that_is_not_damaged(records: CalibrationRecords) -> None:
    """All records that are left at any moment can be read."""
    records.begin(RECORD)
    for k in (1, 2):
        asked = Asked(k, f"fit-r{k}", SETS, {})
        records.ask(asked)
        records.tell(asked, "ab", OUTCOMES)
    assert records.begun() == [1, 2]
    left = []

    class Watching(Files):
        def remove(self, paths: Sequence[str]) -> None:
            super().remove(paths)
            left.append((len(records.rounds()), records.calibration() is not None))

    files = Watching.open(records.files.url)
    CalibrationRecords(files, "fit").remove()
    assert left == [(1, True), (1, True), (0, True), (0, True), (0, False)]
    assert records.begun() == []
    assert calibration_names(records.files) == []
