"""A study whose parameter sets are decoded one at a time says what one that is decoded whole says."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mops.errors import StudyError
from mops.study.json_file import Elements, read_json
from mops.study.study_file import parse_study

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
STUDIES = st.dictionaries(st.sampled_from(["model", "sets", "metadata", "s\nt"]), VALUES, max_size=3)


def told(text: str, apart: str | None) -> object:
    """Return what the text says, or what is wrong with it."""
    try:
        found = read_json(text, where="study.json", apart=apart)
    except StudyError as bad:
        return str(bad), bad.problems
    if isinstance(found, dict):
        found = {key: list(value) if isinstance(value, Elements) else value for key, value in found.items()}
    return repr(found)


@given(VALUES | STUDIES, st.sampled_from([None, 2]), st.booleans())
def test_what_is_decoded_an_element_at_a_time_is_what_the_whole_is(value: object, indent: int, ascii_only: bool):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert told(text, "sets") == told(text, None)


@given(
    STUDIES, st.integers(0, 200), st.sampled_from(["", ",", "]", "}", "[", "{", '"', "NaN", "\\ud800", " ", "7", ":"])
)
@example({"sets": [1, 2]}, 12, ",")
@example({"sets": [1, 2]}, 13, "7")
@example({"sets": []}, 10, ",")
def test_a_slip_anywhere_is_told_as_of_the_whole(value: object, place: int, slip: str):
    text = json.dumps(value)
    place %= len(text) + 1
    for broken in (text[:place] + slip + text[place:], text[:place] + slip + text[place + 1 :], text[:place]):
        assert told(broken, "sets") == told(broken, None)


@pytest.mark.parametrize(
    "text",
    [
        '{"sets": [1], "sets": [2]}',
        '{"sets": [{"a": 1, "a": 2}]}',
        '{"sets": [NaN, -Infinity]}',
        '{"sets": ["\\ud800"]}',
        '{"sets": [1]} x',
        '{"sets": [1],}',
        "{1: [1]}",
        '{"sets": [' + "9" * 5000 + "]}",
        '{"sets": [' + "[" * 200_000,
        "",
    ],
)
def test_what_is_not_strict_is_told_as_of_the_whole(text: str):
    assert told(text, "sets") == told(text, None)
    assert "not JSON" in str(told(text, "sets"))


def test_only_the_array_under_the_key_of_the_file_itself_is_apart():
    found = read_json('{"metadata": {"sets": [1]}, "sets" :[ 2 , 3 ] }', where="x", apart="sets")
    assert isinstance(found, dict)
    assert found["metadata"] == {"sets": [1]}
    sets = found["sets"]
    assert isinstance(sets, Elements)
    assert (len(sets), list(sets), list(sets)) == (2, [2, 3], [2, 3])


def test_a_study_of_elements_has_the_groups_and_the_places_of_a_list():
    sets = [{"beta": i % 1500, "seed": 1} if i % 2 else {"params": {"beta": i}, "seed": 7} for i in range(3000)]
    text = json.dumps({"model": "m:f", "parameter_sets": sets, "n_replicates": 3})
    apart, whole = (parse_study(read_json(text, where="x", apart=key), where="x") for key in ("parameter_sets", None))
    assert apart.warnings == whole.warnings
    assert list(apart.groups.groups(range(len(apart.groups)))) == list(whole.groups.groups(range(len(whole.groups))))

    wrong = text.replace('{"beta": 2998', '{"beta": null').replace('{"beta": 2996', '{"beta": [1]')
    problems = []
    for key in ("parameter_sets", None):
        with pytest.raises(StudyError) as caught:
            parse_study(read_json(wrong, where="x", apart=key), where="x")
        problems.append(caught.value.problems)
    assert problems[0] == problems[1]
