"""JSON files are strict."""

import json
from pathlib import Path

import pytest

from mops.errors import StudyError, UsageError
from mops.study.json_file import read_json, read_text


def faults(text: str) -> list[tuple[str, str]]:
    """Return the path and the message of every problem."""
    with pytest.raises(StudyError) as raised:
        read_json(text, where="study.json")
    assert raised.value.what in ("the study file is not JSON", "the study file is not strict JSON")
    assert raised.value.where == "study.json"
    return [(problem.path, problem.message) for problem in raised.value.problems]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_json_is_read_with_or_without_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "study.json"
    path.write_text('{"a": 1}', encoding=encoding)
    assert read_json(read_text(path, "study"), where="x") == {"a": 1}
    assert read_json(r'["\ud83d\ude00", "Genève"]', where="x") == ["😀", "Genève"]


def test_a_study_in_another_language_is_refused_with_the_way_to_run_it(subtests: pytest.Subtests) -> None:
    for ending, language in [("yaml", "YAML"), ("yml", "YAML"), ("toml", "TOML")]:
        with subtests.test(str((ending, language))):
            with pytest.raises(UsageError) as raised:
                read_text(Path(f"study.{ending}"), "study")
            assert raised.value.what == f"this study file is {language}, and mops reads JSON"
            assert "convert it to study.json" in str(raised.value.hint)


def test_text_that_is_not_strict_json_is_refused_with_its_place(subtests: pytest.Subtests) -> None:
    for text, path, message in [
        ("", "line 1, column 1", "Expecting value"),
        ('{\n "a": 1,\n}', "line 2, column 8", "the last entry has a comma after it; remove the comma"),
        ('{"sets": [1],}', "line 1, column 13", "the last entry has a comma after it; remove the comma"),
        ('{"sets": [1, ]}', "line 1, column 12", "the last entry has a comma after it; remove the comma"),
        ('{\n "a": 1 // one\n}', "line 2, column 9", "JSON has no comments; remove it"),
        ("# a\n{}", "line 1, column 1", "JSON has no comments; remove it"),
        ("{'a': 1}", "line 1, column 2", "JSON has double quotes and no single quotes"),
        ('{"a": True}', "line 1, column 7", "True is Python; write true"),
        ("{1: [1]}", "line 1, column 2", "Expecting property name enclosed in double quotes"),
        ('{"sets": [1]} x', "line 1, column 15", "Extra data"),
        ('{"a": NaN}', "$.a", "NaN is not JSON; write a finite number"),
        ('{"sets": [1, -Infinity]}', "$.sets[1]", "-Infinity is not JSON; write a finite number"),
        ('{"sets": [1], "sets": [2]}', "$", "the key 'sets' appears twice; keep one"),
        ('{"sets": [{"b": 1, "c": 2, "b": 1}]}', "$.sets[0]", "the key 'b' appears twice; keep one"),
        (
            r'{"sets": ["\ud800"]}',
            "$.sets[0]",
            "'\\ud800' has half a character (a lone surrogate); write all of it",
        ),
        ("[" * 100_000, "$", "lists and objects are nested too deeply"),
        ('{"sets": [' + "[" * 200_000, "$", "lists and objects are nested too deeply"),
        ('{"sets": [' + "9" * 5000 + "]}", "$", "a number is too long"),
    ]:
        with subtests.test(str((text, path, message))):
            ((found_path, found),) = faults(text)
            assert (found_path, found[: len(message)]) == (path, message)


def test_a_file_that_may_not_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuse)  # root may read every file
    with pytest.raises(UsageError, match="this space file is not readable") as raised:
        read_text(Path("space.json"), "space")
    assert raised.value.hint == "check its owner and mode"


def test_all_problems_are_listed_at_once() -> None:
    assert faults('{"a": NaN, "b": {"c": 1, "c": Infinity}}') == [
        ("$.a", "NaN is not JSON; write a finite number"),
        ("$.b", "the key 'c' appears twice; keep one"),
        ("$.b.c", "Infinity is not JSON; write a finite number"),
    ]
    assert faults(json.dumps([float("nan")] * 30))[-1] == ("$", "and 10 more problems")
