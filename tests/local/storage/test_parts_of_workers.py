"""Files that workers store: in each storage they are parts that the runner can commit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
from made import ID

from mops.storage.files import Files
from mops.storage.paths import numbers_of, table_of
from mops.task import JobContext, PartFile, TaskResult
from mops.worker.results import store_files

CONTENT = b"PAR1 and so on"


def context(storage: str, run: str) -> JobContext:
    return JobContext("job", run, "bundle", storage, "model:run", "baseline", (), None, slots=None, job_id=ID)


def result_with(*outputs: str) -> TaskResult:
    digest = hashlib.sha256(CONTENT).hexdigest()
    facts: dict[str, Any] = {"rows": 1, "bytes": len(CONTENT), "digest": digest, "row_bytes": 8, "families": {}}
    groups, content = frozenset({1}), pa.py_buffer(CONTENT)
    files = [PartFile(output=output, groups=groups, content=content, **facts) for output in outputs]
    return TaskResult(("sim-1",), groups, 1.0, None, files=files)


def test_a_stored_file_is_a_part_of_its_output_and_attempt(files: Files) -> None:
    one, same_task = result_with("daily", "a b"), result_with("daily", "a b")
    for result in (one, same_task):
        store_files(result, context(files.url, "1"), 3)
    stored = [*one.files, *same_task.files]
    assert len({file.path for file in stored}) == 4, "a task that runs twice writes two files"
    for file, output in zip(stored, ["daily", "a b"] * 2, strict=True):
        assert file.content is None
        assert table_of(file.path) == ("outputs", output)
        numbers = numbers_of(file.path)
        assert numbers is not None
        assert numbers[0] == 3
        assert files.get(file.path) == CONTENT
    assert one.nbytes == 0
    assert one.row_bytes == 16


def test_a_worker_that_cannot_store_a_file_returns_it_and_tries_no_more(tmp_path: Path) -> None:
    (tmp_path / "jobs").touch()  # a file where the storage needs a folder
    for n_notes in (1, 0):
        result = result_with("daily")
        store_files(result, context(str(tmp_path), "2"), 1)
        assert [file.content.to_pybytes() for file in result.files] == [CONTENT]
        assert len(result.notes) == n_notes
        assert result.nbytes == len(CONTENT)
