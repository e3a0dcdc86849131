"""The paths of a job's objects. Other versions and tools read them, so the tests pin each one."""

from __future__ import annotations

import pytest

from mops.errors import JobError
from mops.storage.paths import (
    JobPaths,
    NamePaths,
    bundle_path,
    is_compacted,
    is_job_name,
    numbers_of,
    table_of,
)

PATHS = JobPaths("job", "0123456789abcdef")
ROOT = "jobs/job/0123456789abcdef"


def test_every_object_of_a_job_has_a_fixed_path() -> None:
    assert PATHS.root == ROOT
    assert PATHS.record == "jobs/job/job.json"
    assert PATHS.study == f"{ROOT}/study.json"
    assert PATHS.params == f"{ROOT}/params.parquet"
    assert PATHS.schema == f"{ROOT}/schema.json"
    assert PATHS.finished == f"{ROOT}/finished.json"
    assert PATHS.deleted == f"{ROOT}/deleted.json"
    assert PATHS.options(3) == f"{ROOT}/options/00000003.json"
    assert PATHS.log == f"{ROOT}/log"
    assert PATHS.log_record(12) == f"{ROOT}/log/00000012.json"
    assert PATHS.folder("losses") == f"{ROOT}/losses"
    assert PATHS.part("failures", None, 2, 7) == f"{ROOT}/failures/2-7.parquet"
    assert PATHS.part("outputs", "daily", 2, 7) == f"{ROOT}/outputs/daily/2-7.parquet"
    assert PATHS.compaction == f"{ROOT}/compacted.json"
    assert PATHS.compacted("losses", None, "2e", 7) == f"{ROOT}/losses/compacted-2e-7.parquet"
    assert PATHS.texts == f"{ROOT}/logs"
    assert PATHS.text(2, 7) == f"{ROOT}/logs/2-7.txt"
    assert PATHS.samples == f"{ROOT}/events"
    assert PATHS.events(2, 7) == f"{ROOT}/events/2-7.json"
    assert PATHS.live(2) == f"{ROOT}/live/2.json"
    assert bundle_path("ab12") == "bundles/ab12.zip"


def test_an_output_of_any_name_has_one_folder_from_which_its_name_is_read(subtests: pytest.Subtests) -> None:
    for output, segment in [
        ("daily", "daily"),
        ("a/b", "a%2Fb"),
        (".", "%2E"),
        ("..", ".%2E"),
        ("50%", "50%25"),
        ("Gr\u00f6\u00dfe", "Gr%C3%B6%C3%9Fe"),
        ("x.", "x%2E"),
    ]:
        with subtests.test(str((output, segment))):
            path = PATHS.part("outputs", output, 2, 7)
            assert path == f"{ROOT}/outputs/{segment}/2-7.parquet"
            assert table_of(path) == ("outputs", output)
            assert table_of(PATHS.part("losses", None, 2, 7)) == ("losses", None)


def test_a_part_of_a_compaction_is_known_by_its_name() -> None:
    path = PATHS.compacted("outputs", "daily", "12ab", 7)
    assert is_compacted(path)
    assert numbers_of(path) is None
    assert table_of(path) == ("outputs", "daily")
    for other in (PATHS.part("losses", None, 1, 2), "compacted-1.parquet", "x-compacted-1-2.parquet"):
        assert not is_compacted(other)


def test_a_part_belongs_to_one_job_and_one_attempt() -> None:
    path = PATHS.part("outputs", "daily", 2, 7)
    assert PATHS.has_part(path, 2)
    assert not PATHS.has_part(path, 1)
    assert not JobPaths("job", "0" * 16).has_part(path, 2)
    assert not PATHS.has_part(PATHS.compacted("outputs", "daily", "2", 7), 2)


def test_only_tables_of_outputs_have_names() -> None:
    for kind, output in (("outputs", None), ("losses", "daily"), ("logs", None)):
        with pytest.raises(AssertionError):
            PATHS.folder(kind, output)


def test_a_valid_job_name_is_accepted(subtests: pytest.Subtests) -> None:
    for name in ["a", "A-1", "x" * 63, "0.b_c"]:
        with subtests.test(name):
            assert is_job_name(name)
            assert NamePaths(name).root == f"jobs/{name}"


def test_an_invalid_job_name_is_refused(subtests: pytest.Subtests) -> None:
    for name in ["", "..", "a/b", ".hidden", "x" * 64, "a b", "dot.", "job\n"]:
        with subtests.test(name):
            assert not is_job_name(name)
            with pytest.raises(JobError, match="no job can be named"):
                NamePaths(name)


def test_attempt_and_number_are_read_from_a_path(subtests: pytest.Subtests) -> None:
    for path, numbers in [
        ("jobs/job/losses/2-17.parquet", (2, 17)),
        ("jobs/job/logs/12-7.txt", (12, 7)),
        ("2-7.json", (2, 7)),
        ("jobs/job/losses/2-7.csv", None),
        ("jobs/job/live/2.json", None),
        ("jobs/job/losses/x2-7.parquet", None),
    ]:
        with subtests.test(str((path, numbers))):
            assert numbers_of(path) == numbers
