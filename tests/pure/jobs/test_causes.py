"""Failures are grouped by cause: what varies from one simulation to the next does not make another cause."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mops import units
from mops.jobs import causes
from mops.jobs.causes import COLUMNS, Cause, causes_of, place_in_project, reasons_of, without_varying
from mops.jobs.summary import Reason
from mops.task import FAILURES

TRACE = """Traceback (most recent call last):
  File "model.py", line {line}, in run
    solve(params)
  File "/usr/lib/python3.11/site-packages/scipy/linalg.py", line 8, in solve
    raise ValueError(text)
{message}
"""
SCHEMA = pa.schema([FAILURES.field(name) for name in COLUMNS])


def failure(group: int = 0, message: str = "ValueError: x", **fields: Any) -> dict[str, Any]:
    line = fields.pop("line", 3)
    row = {"param_id": f"id{group}", "group": group, "replicate": 0, "seed": 7, "target": None, "reason": "error"}
    return row | {"message": message, "traceback": TRACE.format(line=line, message=message)} | fields


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    at = table.schema.get_field_index("traceback")
    (found,) = table.set_column(at, "traceback", table["traceback"].dictionary_encode()).to_batches()
    return found


def found(*batches: pa.RecordBatch) -> list[Cause]:
    return causes_of(batches)


def test_numbers_ids_folders_and_later_lines_do_not_count(subtests: pytest.Subtests) -> None:
    for one, other in [
        ("beta 0.41 is too large", "beta -1.5e-07 is too large"),
        ("12.5 is odd", "123456789.600000000001 is odd"),
        ("used 1.0 GiB of its 1.0 GiB limit", "used 513 MiB of its 512 MiB limit"),
        ("no file /tmp/work-3ab/out.csv here", "no file /home/ada/x/out.csv here"),
        ("<Model object at 0x7f0a12>", "<Model object at 0xffab>"),
        ("no room at 0x7f3c81d5b2e0 for 5 GiB", "no room at 0x1 for 1.5 GiB"),
        ("set 761edf35ca1634d7 is odd", "set deadbeefdeadbeef is odd"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 99999999-e89b-12d3-a456-426614174abc"),
        ("the first line\nand 1 note", "the first line\nand another"),
    ]:
        with subtests.test(str((one, other))):
            lines = without_varying(pa.chunked_array([[one, other]])).to_pylist()
            assert lines[0] == lines[1] == units.without_varying(one.partition("\n")[0]), "also in a running job"
            rows = batch(failure(message=one), failure(message=other))
            assert reasons_of([rows]) == [Reason(2, "error", one.partition("\n")[0])], "7 reasons were 1 cause"


def test_words_and_names_of_files_count(subtests: pytest.Subtests) -> None:
    for one, other in [
        ("KeyError: 'beta'", "KeyError: 'gamma'"),
        ("no file /tmp/a/out.csv", "no file /tmp/a/in.csv"),
        ("the loss is nan", "the loss is inf"),
        ("ValueError: bad", "TypeError: bad"),
    ]:
        with subtests.test(str((one, other))):
            lines = without_varying(pa.chunked_array([[one, other]])).to_pylist()
            assert lines[0] != lines[1]


def test_the_most_frequent_cause_comes_first_with_its_first_failure_in_study_order() -> None:
    first = batch(failure(5, "ValueError: 5"), failure(2, "ValueError: 2"), failure(9, "TypeError: 1"))
    second = batch(failure(2, "ValueError: 3", replicate=1), failure(1, "ValueError: 1", replicate=2))
    value, kind = found(first, second)
    assert (value.n, value.groups.tolist(), value.first["message"]) == (4, [1, 2, 5], "ValueError: 1")
    assert (value.first["group"], value.first["replicate"], value.place) == (1, 2, "model.py:3 in run")
    assert (kind.n, kind.groups.tolist()) == (1, [9])


def test_equal_messages_from_two_lines_are_two_causes() -> None:
    assert [cause.place for cause in found(batch(failure(0, line=3), failure(1, line=4)))] == [
        "model.py:3 in run",
        "model.py:4 in run",
    ]


def test_simulations_that_run_too_long_in_two_lines_of_a_loop_are_one_cause() -> None:
    rows = [failure(group, "ran for more than 2 s", line=group, reason="timeout") for group in (3, 4)]
    assert [(cause.n, cause.place) for cause in found(batch(*rows))] == [(2, "model.py in run")]


def test_each_target_has_its_causes_and_a_missing_loss_is_none() -> None:
    rows = [failure(group, target=target, replicate=None, seed=None) for group, target in enumerate("ab*")]
    assert [cause.first["target"] for cause in found(batch(*rows))] == ["a", "b"]
    assert found(batch(rows[-1])) == []


def test_only_so_many_causes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "_MOST_CAUSES", 2)
    kept = found(batch(*(failure(group, f"KeyError: {chr(97 + group)}") for group in range(9))))
    assert [(cause.n, cause.first["message"]) for cause in kept] == [
        (7, "other messages"),
        (1, "KeyError: a"),
        (1, "KeyError: b"),
    ]


FAULT = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "inner/solver.py", line 12 in step
  File "model.py", line 3 in run"""
PYARROW = """Traceback (most recent call last):
  File "model.py", line 8, in run
    return pa.table(columns)
  File "pyarrow/table.pxi", line 5221, in pyarrow.lib.table
  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status
pyarrow.lib.ArrowInvalid: Column 1 named b expected length 3 but got length 2
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "model.py", line 3, in run
  |     raise ExceptionGroup("two", errors)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "model.py", line 9, in inner
    | ValueError: 1
"""


def test_the_place_is_the_innermost_line_of_the_project(subtests: pytest.Subtests) -> None:
    for traceback, place in [
        (TRACE.format(line=3, message="ValueError: x"), "model.py:3 in run"),
        (FAULT, "inner/solver.py:12 in step"),
        (PYARROW, "model.py:8 in run"),
        (GROUP, "model.py:9 in inner"),
        ('  File "<string>", line 1, in <module>\n', ""),
        ("the last output of a program", ""),
        ("", ""),
    ]:
        with subtests.test(str((traceback, place))):
            assert place_in_project(traceback) == place
