"""The paths of a job's objects. Other versions and tools read them, so the tests pin each one."""

from __future__ import annotations

import pytest

from mops.errors import JobError
from mops.storage.paths import JobPaths, bundle_path, compaction_of, is_job_name, numbers_of, record_path, table_of

PATHS = JobPaths("job")


def test_every_object_of_a_job_has_a_fixed_path() -> None:
    assert PATHS.root == "jobs/job"
    assert PATHS.record == "jobs/job/job.json"
    assert PATHS.study == "jobs/job/study.json"
    assert PATHS.params == "jobs/job/params.parquet"
    assert PATHS.schema == "jobs/job/schema.json"
    assert PATHS.finished == "jobs/job/finished.json"
    assert PATHS.deleted == "jobs/job/deleted.json"
    assert PATHS.options(3) == "jobs/job/options/00000003.json"
    assert PATHS.log == "jobs/job/log"
    assert PATHS.log_record(12) == "jobs/job/log/00000012.json"
    assert PATHS.folder("losses") == "jobs/job/losses"
    assert PATHS.part("failures", None, 2, 7) == "jobs/job/failures/2-7.parquet"
    assert PATHS.part("outputs", "daily", 2, 7) == "jobs/job/outputs/daily/2-7.parquet"
    assert PATHS.compactions_behind("0123456789") == "jobs/job/compactions/0123456789"
    assert record_path("folder", 3) == "folder/00000003.json"
    assert PATHS.compacted("losses", None, 2, 7, "0123456789") == "jobs/job/losses/compacted-2-7-01234567.parquet"
    assert PATHS.texts == "jobs/job/logs"
    assert PATHS.text(2, 7) == "jobs/job/logs/2-7.txt"
    assert PATHS.samples == "jobs/job/events"
    assert PATHS.events(2, 7) == "jobs/job/events/2-7.json"
    assert PATHS.live(2) == "jobs/job/live/2.json"
    assert bundle_path("ab12") == "bundles/ab12.zip"


@pytest.mark.parametrize(
    ("output", "segment"),
    [
        ("daily", "daily"),
        ("a/b", "a%2Fb"),
        (".", "%2E"),
        ("..", ".%2E"),
        ("50%", "50%25"),
        ("Gr\u00f6\u00dfe", "Gr%C3%B6%C3%9Fe"),
        ("x.", "x%2E"),
    ],
)
def test_an_output_of_any_name_has_one_folder_from_which_its_name_is_read(output: str, segment: str) -> None:
    path = PATHS.part("outputs", output, 2, 7)
    assert path == f"jobs/job/outputs/{segment}/2-7.parquet"
    assert table_of(path) == ("outputs", output)
    assert table_of(PATHS.part("losses", None, 2, 7)) == ("losses", None)


def test_a_part_of_a_compaction_tells_its_compaction_and_the_end_before_it() -> None:
    path = PATHS.compacted("outputs", "daily", 12, 7, "0123456789")
    assert (compaction_of(path, "0123456789"), compaction_of(path, "9876543210")) == (12, -1)
    assert numbers_of(path) is None
    assert table_of(path) == ("outputs", "daily")
    for other in (PATHS.part("losses", None, 1, 2), "compacted-1.parquet", "x-compacted-1-2-01234567.parquet"):
        assert compaction_of(other, "0123456789") is None


def test_only_tables_of_outputs_have_names() -> None:
    for kind, output in (("outputs", None), ("losses", "daily"), ("logs", None)):
        with pytest.raises(AssertionError):
            PATHS.folder(kind, output)


@pytest.mark.parametrize("name", ["a", "A-1", "x" * 63, "0.b_c"])
def test_a_valid_job_name_is_accepted(name: str) -> None:
    assert is_job_name(name)
    assert JobPaths(name).root == f"jobs/{name}"


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 64, "a b", "dot.", "job\n"])
def test_an_invalid_job_name_is_refused(name: str) -> None:
    assert not is_job_name(name)
    with pytest.raises(JobError, match="no job can be named"):
        JobPaths(name)


@pytest.mark.parametrize(
    ("path", "numbers"),
    [
        ("jobs/job/losses/2-17.parquet", (2, 17)),
        ("jobs/job/logs/12-7.txt", (12, 7)),
        ("2-7.json", (2, 7)),
        ("jobs/job/losses/2-7.csv", None),
        ("jobs/job/live/2.json", None),
        ("jobs/job/losses/x2-7.parquet", None),
    ],
)
def test_attempt_and_number_are_read_from_a_path(path: str, numbers: tuple[int, int] | None) -> None:
    assert numbers_of(path) == numbers
