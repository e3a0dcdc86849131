"""JSON files: strict, and decoded whole or one parameter set at a time."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mops.errors import StudyError, UsageError
from mops.study.json_file import Elements, read_json, read_text
from mops.study.study_file import parse_study

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
STUDIES = st.dictionaries(st.sampled_from(["model", "sets", "metadata", "s\nt"]), VALUES, max_size=3)


def faults(text: str, apart: str | None = None) -> list[tuple[str, str]]:
    """Return the path and the message of every problem."""
    with pytest.raises(StudyError) as raised:
        read_json(text, where="study.json", apart=apart)
    assert raised.value.what in ("the study file is not JSON", "the study file is not strict JSON")
    assert raised.value.where == "study.json"
    return [(problem.path, problem.message) for problem in raised.value.problems]


def decoded(text: str, apart: str | None) -> object:
    """Return the value of the text, or its problems."""
    try:
        found = read_json(text, where="study.json", apart=apart)
    except StudyError as bad:
        return str(bad), bad.problems
    if isinstance(found, dict):
        found = {key: list(value) if isinstance(value, Elements) else value for key, value in found.items()}
    return repr(found)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_json_is_read_with_or_without_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "study.json"
    path.write_text('{"a": 1}', encoding=encoding)
    assert read_json(read_text(path, "study"), where="x") == {"a": 1}
    assert read_json(r'["\ud83d\ude00", "Genève"]', where="x") == ["😀", "Genève"]


@pytest.mark.parametrize(("ending", "language"), [("yaml", "YAML"), ("yml", "YAML"), ("toml", "TOML")])
def test_a_study_in_another_language_is_refused_with_the_way_to_run_it(ending: str, language: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_text(Path(f"study.{ending}"), "study")
    assert raised.value.what == f"this study file is {language}, and mops reads JSON"
    assert "convert it to study.json" in str(raised.value.hint)


@pytest.mark.parametrize("apart", [None, "sets"])
@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
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
    ],
)
def test_text_that_is_not_strict_json_is_refused_with_its_place(
    text: str, path: str, message: str, apart: str | None
) -> None:
    ((found_path, found),) = faults(text, apart)
    assert (found_path, found[: len(message)]) == (path, message)


def test_all_problems_are_listed_at_once() -> None:
    assert faults('{"a": NaN, "b": {"c": 1, "c": Infinity}}') == [
        ("$.a", "NaN is not JSON; write a finite number"),
        ("$.b", "the key 'c' appears twice; keep one"),
        ("$.b.c", "Infinity is not JSON; write a finite number"),
    ]
    assert faults(json.dumps([float("nan")] * 30))[-1] == ("$", "and 10 more problems")


@given(VALUES | STUDIES, st.sampled_from([None, 2]), st.booleans())
def test_a_file_decoded_one_element_at_a_time_has_the_same_value(value: object, indent: int, ascii_only: bool):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert decoded(text, "sets") == decoded(text, None)


@given(
    STUDIES, st.integers(0, 200), st.sampled_from(["", ",", "]", "}", "[", "{", '"', "NaN", "\\ud800", " ", "7", ":"])
)
@example({"sets": [1, 2]}, 12, ",")
@example({"sets": [1, 2]}, 13, "7")
@example({"sets": []}, 10, ",")
def test_an_error_anywhere_is_the_same_when_decoded_one_element_at_a_time(value: object, place: int, wrong: str):
    text = json.dumps(value)
    place %= len(text) + 1
    for broken in (text[:place] + wrong + text[place:], text[:place] + wrong + text[place + 1 :], text[:place]):
        assert decoded(broken, "sets") == decoded(broken, None)


def test_only_the_array_under_the_top_level_key_is_decoded_one_element_at_a_time():
    found = read_json('{"metadata": {"sets": [1]}, "sets" :[ 2 , 3 ] }', where="x", apart="sets")
    assert isinstance(found, dict)
    assert found["metadata"] == {"sets": [1]}
    sets = found["sets"]
    assert isinstance(sets, Elements)
    assert (len(sets), list(sets), list(sets)) == (2, [2, 3], [2, 3])


def test_a_study_decoded_one_element_at_a_time_has_the_same_groups_and_problems():
    sets = [{"beta": i % 1500, "seed": 1} if i % 2 else {"params": {"beta": i}, "seed": 7} for i in range(3000)]
    text = json.dumps({"model": "m:f", "parameter_sets": sets, "n_replicates": 3})
    apart, whole = (parse_study(read_json(text, where="x", apart=key), where="x") for key in ("parameter_sets", None))
    assert apart.warnings == whole.warnings
    assert list(apart.groups.groups(range(len(apart.groups)))) == list(whole.groups.groups(range(len(whole.groups))))

    invalid = text.replace('{"beta": 2998', '{"beta": null').replace('{"beta": 2996', '{"beta": [1]')
    problems = []
    for key in ("parameter_sets", None):
        with pytest.raises(StudyError) as caught:
            parse_study(read_json(invalid, where="x", apart=key), where="x")
        problems.append(caught.value.problems)
    assert problems[0] == problems[1]
