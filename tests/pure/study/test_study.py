"""The rules for a study, and the errors of a study that is not valid."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.errors import StudyError
from mops.study.groups import Group
from mops.study.ids_and_seeds import param_id, replicate_seed
from mops.study.json_file import read_json
from mops.study.study_file import KEYS, Study, parse_study

FORMS = "write 'package.module', 'module:name' or 'path/file.py:name', relative to the project root"
NAME_CODE = "name the code: 'package.module', 'module:name' or 'path/file.py:name'"
CALIBRATION = (
    "a calibration chooses its parameter sets while it runs, but a study lists them; write the ranges of the "
    "parameters into a space, and run: mops study calibrate space.json"
)
ABSENT = object()


def study(**keys: Any) -> dict[str, Any]:
    """Return a valid study with some keys replaced, or left out if ABSENT."""
    given = {"model": "models.sir:SIR", "parameter_sets": [{"beta": 0.3}], **keys}
    return {key: value for key, value in given.items() if value is not ABSENT}


def parse(**keys: Any) -> Study:
    return parse_study(study(**keys), where="study.json")


def groups(got: Study) -> tuple[Group, ...]:
    return got.groups.groups(range(len(got.groups)))


def problems(data: object) -> list[tuple[str, str]]:
    """Return the path and the message of everything that is wrong."""
    with pytest.raises(StudyError) as raised:
        parse_study(data, where="study.json")
    assert raised.value.what == "the study is not valid"
    assert raised.value.where == "study.json"
    return [(problem.path, problem.message) for problem in raised.value.problems]


# --- valid studies ---------------------------------------------------------------------------------------------------


def test_the_least_study_has_the_defaults() -> None:
    got = parse()
    assert (got.model, got.scenario, got.outputs, got.targets) == ("models.sir:SIR", "baseline", None, None)
    assert (got.metadata, got.sampling_method, got.warnings) == ({}, None, ())
    [group] = groups(got)
    identity = param_id({"beta": 0.3})
    assert (group.index, group.param_id, group.params) == (0, identity, {"beta": 0.3})
    assert group.seeds == (replicate_seed(identity, 0),)


def test_every_key_of_a_study_is_kept() -> None:
    got = parse(
        scenario="lockdown",
        n_replicates=3,
        outputs=["incidence", "final", "incidence"],
        targets=["targets.incidence:loss", "targets/serology.py:loss"],
        sampling_method="sobol",
        metadata={"model_class": "SIR", "author": {"name": "x"}, "n": None},
        kind="SimulationStudy",
    )
    assert got.scenario == "lockdown"
    assert got.outputs == ("incidence", "final")
    assert got.targets == ("targets.incidence:loss", "targets/serology.py:loss")
    assert got.sampling_method == "sobol"
    assert got.metadata == {"model_class": "SIR", "author": {"name": "x"}, "n": None}
    assert got.n_simulations == len(got.groups.group(0).seeds) == 3
    assert got.warnings == ()


def test_every_form_of_a_model_is_kept_as_written(subtests: pytest.Subtests) -> None:
    for model in ["sir", "models.sir", "sir:run", "models.sir:SIR", "models/sir.py:SIR"]:
        with subtests.test(str(model)):
            assert parse(model=model).model == model


def test_null_means_the_same_as_absent(subtests: pytest.Subtests) -> None:
    for key in ["outputs", "targets", "sampling_method", "metadata", "kind"]:
        with subtests.test(str(key)):
            got, least = parse(**{key: None}), parse()
            assert groups(got) == groups(least)
            assert replace(got, groups=least.groups) == least


def test_an_empty_list_of_targets_means_the_registered_ones() -> None:
    assert parse(targets=[]).targets is None


def test_every_form_of_a_parameter_set_is_read_and_forms_may_be_mixed() -> None:
    sets = [
        {"beta": 1},
        {"params": {"beta": 2}},
        {"params": {"beta": 3}, "seed": None},
        {"params": {"beta": 4}, "seed": 7},
        {"seed": 7, "params": {"beta": 5}},
    ]
    got = parse(parameter_sets=sets, n_replicates=2)
    assert [group.params for group in groups(got)] == [{"beta": n} for n in range(1, 6)]
    assert [group.index for group in groups(got)] == [0, 1, 2, 3, 4]
    assert [len(group.seeds) for group in groups(got)] == [2, 2, 2, 1, 1]
    assert got.groups.group(3).seeds == got.groups.group(4).seeds == (7,)
    assert got.n_simulations == 8
    assert got.warnings == ()


def test_seeds_from_0_to_64_bits_are_kept_exactly(subtests: pytest.Subtests) -> None:
    for seed in [0, 1, 2**32, 2**53 + 1, 2**64 - 1]:
        with subtests.test(str(seed)):
            text = json.dumps(study(parameter_sets=[{"params": {"beta": 1}, "seed": seed}], n_replicates=5))
            got = parse_study(read_json(text, where="study.json"), where="study.json")
            assert got.groups.group(0).seeds == (seed,)


def test_values_keep_their_types() -> None:
    """Reading all values of a parameter as one type gave 1 and 1.0 the same identity."""
    text = '[{"x": 1}, {"x": 1.0}, {"x": true}, {"x": "1"}, {"x": -0.0}, {"x": 0.0}, {"x": 12345678901234567890}]'
    got = parse(parameter_sets=read_json(text, where="study.json"))
    assert [repr(group.params["x"]) for group in groups(got)] == (
        ["1", "1.0", "True", "'1'", "-0.0", "0.0", "12345678901234567890"]
    )
    assert len({group.param_id for group in groups(got)}) == 7


def test_a_parameter_may_be_called_params_or_seed() -> None:
    got = parse(parameter_sets=[{"params": 3}, {"params": {"params": 1, "seed": 2}, "seed": 9}])
    assert [group.params for group in groups(got)] == [{"params": 3}, {"params": 1, "seed": 2}]
    assert got.groups.group(1).seeds == (9,)
    assert got.warnings == ("$.parameter_sets: 'seed' is in 1 of 2 sets",)


def test_a_seed_among_plain_parameters_is_a_parameter_with_a_warning() -> None:
    got = parse(parameter_sets=[{"beta": 0.3, "seed": 7}])
    assert got.groups.group(0).params == {"beta": 0.3, "seed": 7}
    assert got.warnings == (
        (
            "$.parameter_sets[0].seed: is a parameter here; a simulation's own seed goes next to 'params': "
            '{"params": {...}, "seed": 7}'
        ),
    )


def test_a_parameter_set_may_be_empty() -> None:
    got = parse(parameter_sets=[{"params": {}, "seed": 1}])
    assert got.groups.group(0).params == {}


# --- one identity, one group ------------------------------------------------------------------------------------------


def test_entries_with_equal_parameters_are_one_group_in_order_of_appearance() -> None:
    sets = [
        {"params": {"a": 1, "b": 2}, "seed": 9},
        {"a": 5, "b": 5},
        {"params": {"b": 2, "a": 1}, "seed": 3},
        {"b": 2, "a": 1},
    ]
    got = parse(parameter_sets=sets, n_replicates=2)
    identity = param_id({"a": 1, "b": 2})
    assert [group.param_id for group in groups(got)] == [identity, param_id({"a": 5, "b": 5})]
    assert got.groups.group(0).seeds == (9, 3, replicate_seed(identity, 0), replicate_seed(identity, 1))
    assert got.warnings == ()


def test_the_same_seed_twice_is_one_simulation_with_a_warning() -> None:
    same = {"params": {"beta": 1}, "seed": 7}
    got = parse(parameter_sets=[same, {"beta": 2}, same, {"params": {"beta": 2}}], n_replicates=2)
    assert [len(group.seeds) for group in groups(got)] == [1, 2]
    assert got.warnings == (
        (
            "$.parameter_sets[2], $.parameter_sets[3]: "
            "the same parameters with the same seed are one simulation; mops runs it once"
        ),
    )


def test_a_warning_about_many_entries_names_five_and_counts_the_rest() -> None:
    [warning] = parse(parameter_sets=[{"beta": 1}] * 1008).warnings
    assert warning.startswith("$.parameter_sets[1], $.parameter_sets[2],")
    assert "$.parameter_sets[5] and 1,002 more: the same parameters" in warning


def test_a_hundred_thousand_sets_are_parsed() -> None:
    """A quadratic search for problems, seeds or groups would take longer than the time limit."""
    sets = [{"params": {"beta": n / 7, "gamma": 0.1}, "seed": n} for n in range(100_000)]
    text = json.dumps(study(parameter_sets=sets))
    got = parse_study(read_json(text, where="study.json"), where="study.json")
    assert len(got.groups) == got.n_simulations == 100_000


def test_a_hundred_thousand_seeds_of_one_set_are_parsed() -> None:
    sets = [{"params": {"beta": 1}, "seed": n // 2} for n in range(100_000)]
    got = parse(parameter_sets=sets)
    assert len(got.groups) == 1
    assert got.n_simulations == 50_000


def test_a_hundred_thousand_wrong_sets_are_refused_with_their_number() -> None:
    found = problems(study(parameter_sets=[{"beta": None}] * 100_000))
    assert len(found) == 21
    assert found[-1] == ("$", "and 99,980 more problems")


# --- errors -----------------------------------------------------------------------------------------------------------

LIST_OF_SETS = 'give a list of objects like {"beta": 0.3}, or name a CSV or Parquet file'
OBJECT_OF_PARAMETERS = 'is not an object of parameters like {"beta": 0.3}'
SCALAR = "cannot be a parameter; write a boolean, a number or a string"
WRAPPED = '{"params": {...}, "seed": 7}'
SET = "$.parameter_sets[0]"


def test_a_file_that_holds_no_object_is_refused(subtests: pytest.Subtests) -> None:
    for data, called in [
        (None, "null"),
        ([], "an empty list"),
        ([{"beta": 1}], "a list"),
        ("study", "'study'"),
        (3, "3"),
        (True, "true"),
    ]:
        with subtests.test(str((data, called))):
            expected = f"a study is a JSON object with 'model' and 'parameter_sets', not {called}"
            assert problems(data) == [("$", expected)]


def test_an_invalid_value_is_refused_with_its_path(subtests: pytest.Subtests) -> None:
    for keys, path, message in [
        ({"model": ABSENT}, "$.model", f"missing; {NAME_CODE}"),
        ({"model": None}, "$.model", f"null is not a string; {NAME_CODE}"),
        ({"model": 3}, "$.model", f"3 is not a string; {NAME_CODE}"),
        ({"model": ["a"]}, "$.model", f"a list is not a string; {NAME_CODE}"),
        ({"model": ""}, "$.model", f"'' is not a module; {FORMS}"),
        ({"model": "models sir"}, "$.model", f"'models sir' is not a module; {FORMS}"),
        ({"model": "sir:"}, "$.model", f"'' after the colon is not a Python name; {FORMS}"),
        ({"model": "../sir.py:f"}, "$.model", f"'../sir.py' is outside the project; {FORMS}"),
        ({"scenario": ""}, "$.scenario", "'' is not a non-empty string"),
        ({"scenario": 1}, "$.scenario", "1 is not a non-empty string"),
        ({"scenario": ["a"]}, "$.scenario", "a list is not a non-empty string"),
        ({"n_replicates": 0}, "$.n_replicates", "0 is not an integer of at least 1"),
        ({"n_replicates": -1}, "$.n_replicates", "-1 is not an integer of at least 1"),
        ({"n_replicates": 2.0}, "$.n_replicates", "2.0 is not an integer of at least 1"),
        ({"n_replicates": True}, "$.n_replicates", "true is not an integer of at least 1"),
        ({"n_replicates": "2"}, "$.n_replicates", "'2' is not an integer of at least 1"),
        ({"outputs": []}, "$.outputs", "an empty list is not a non-empty list of names; leave it out to keep all"),
        ({"outputs": "a"}, "$.outputs", "'a' is not a non-empty list of names; leave it out to keep all"),
        ({"outputs": ["a", 3]}, "$.outputs[1]", "3 is not the name of an output; write a string"),
        ({"outputs": [""]}, "$.outputs[0]", "'' is not the name of an output; write a string"),
        ({"targets": "t:f"}, "$.targets", "'t:f' is not a list of 'module:function'"),
        ({"targets": {"t": "f"}}, "$.targets", "an object is not a list of 'module:function'"),
        ({"targets": ["t:f", 3]}, "$.targets[1]", f"3 is not a string; {NAME_CODE}"),
        ({"targets": ["t.g"]}, "$.targets[0]", "'t.g' names no function; write 't.g:function'"),
        ({"targets": ["a-b:f"]}, "$.targets[0]", f"'a-b' is not a module; {FORMS}"),
        ({"sampling_method": 3}, "$.sampling_method", "3 is not a string"),
        ({"metadata": []}, "$.metadata", "an empty list is not an object"),
        ({"metadata": "x"}, "$.metadata", "'x' is not an object"),
        (
            {"metadata": {"model_class": 3}},
            "$.metadata.model_class",
            "3 does not name a class; write 'Class' or 'package.module:Class'",
        ),
        (
            {"metadata": {"model_class": "models.sir"}},
            "$.metadata.model_class",
            "'models.sir' does not name a class; write 'Class' or 'package.module:Class'",
        ),
        (
            {"metadata": {"model_class": "the model"}},
            "$.metadata.model_class",
            "'the model' does not name a class; write 'Class' or 'package.module:Class'",
        ),
        (
            {"kind": "Simulation"},
            "$.kind",
            "'Simulation' is not a kind that mops runs; leave it out or write 'SimulationStudy'",
        ),
        ({"kind": 3}, "$.kind", "3 is not a kind that mops runs; leave it out or write 'SimulationStudy'"),
        ({"parameter_sets": ABSENT}, "$.parameter_sets", f"missing; {LIST_OF_SETS}"),
        ({"parameter_sets": None}, "$.parameter_sets", f"null is not a non-empty list; {LIST_OF_SETS}"),
        ({"parameter_sets": []}, "$.parameter_sets", f"an empty list is not a non-empty list; {LIST_OF_SETS}"),
        ({"parameter_sets": {"beta": 1}}, "$.parameter_sets", f"an object is not a non-empty list; {LIST_OF_SETS}"),
        ({"parameter_sets": [None]}, SET, f"null {OBJECT_OF_PARAMETERS}"),
        ({"parameter_sets": [[0.3]]}, SET, f"a list {OBJECT_OF_PARAMETERS}"),
        ({"parameter_sets": [0.3]}, SET, f"0.3 {OBJECT_OF_PARAMETERS}"),
        ({"parameter_sets": [{"beta": None}]}, f"{SET}.beta", "null is not a value; leave the parameter out"),
        ({"parameter_sets": [{"beta": [1]}]}, f"{SET}.beta", f"a list {SCALAR}"),
        (
            {"parameter_sets": [{"beta": {"a": 1}}]},
            f"{SET}.beta",
            f"an object {SCALAR}; a set with its own seed is {WRAPPED}",
        ),
        ({"parameter_sets": [{"param": {"beta": 1}}]}, f"{SET}.param", "unknown key; did you mean 'params'?"),
        ({"parameter_sets": [{"beta": float("nan")}]}, f"{SET}.beta", "NaN is not a finite number; write one"),
        (
            {"parameter_sets": [{"params": {"beta": float("-inf")}}]},
            f"{SET}.params.beta",
            "-Infinity is not a finite number; write one",
        ),
        ({"parameter_sets": [{"": 1}]}, f'{SET}[""]', "a parameter's name is empty; give it one"),
        ({"parameter_sets": [{"R 0": None}]}, f'{SET}["R 0"]', "null is not a value; leave the parameter out"),
        (
            {"parameter_sets": [{"params": {"a": "\ud800"}}]},
            f"{SET}.params.a",
            "'\\ud800' has half a character (a lone surrogate); write all of it",
        ),
        (
            {"parameter_sets": [{"params": None, "seed": 1}]},
            f"{SET}.params",
            "null is not a value; leave the parameter out",
        ),
        ({"parameter_sets": [{"params": {"a": 1}, "sed": 1}]}, f"{SET}.sed", "unknown key; did you mean 'seed'?"),
        (
            {"parameter_sets": [{"params": {"a": 1}, "n_replicates": 3}]},
            f"{SET}.n_replicates",
            f"belongs to the study and not to one set; write {WRAPPED}",
        ),
        *(
            (
                {"parameter_sets": [{"params": {"a": 1}, "seed": seed}]},
                f"{SET}.seed",
                f"{called} is not an integer from 0 to 2^64 - 1",
            )
            for seed, called in [
                (-1, "-1"),
                (2**64, "18446744073709551616"),
                (1.0, "1.0"),
                (True, "true"),
                ("7", "'7'"),
                ([7], "a list"),
            ]
        ),
    ]:
        with subtests.test(str((keys, path, message))):
            assert problems(study(**keys)) == [(path, message)]


@pytest.mark.parametrize("n", [1_000_001, 10**30])
def test_more_replicates_than_memory_holds_are_refused(n: int) -> None:
    """10^10 replicates of one set filled the memory before mops refused them."""
    assert problems(study(n_replicates=n)) == [
        ("$.n_replicates", f"{n:,} is too many; a set may have 1,000,000 replicates")
    ]


def test_more_simulations_than_a_study_may_have_are_refused() -> None:
    sets = [{"beta": n} for n in range(101)]
    assert problems(study(parameter_sets=sets, n_replicates=1_000_000)) == [
        ("$", "asks for more than 100,000,000 simulations, the limit for one study; split it")
    ]


def test_a_calibration_is_refused_with_one_hint(subtests: pytest.Subtests) -> None:
    for data, path in [
        ({"kind": "CalibrationSpec", "model": "sir"}, "$.kind"),
        ({"kind": "CalibrationSpec", "algorithm": "optuna"}, "$.kind"),
        (study(algorithm="optuna"), "$.algorithm"),
        (study(algorithm=None, n_replicates=0), "$.algorithm"),
        (study(kind="SimulationStudy", algorithm="optuna"), "$.algorithm"),
    ]:
        with subtests.test(str((data, path))):
            assert problems(data) == [(path, CALIBRATION)]


def test_a_misspelled_key_is_an_error_and_any_other_unknown_key_a_warning(subtests: pytest.Subtests) -> None:
    """Ignoring unknown keys ran n_replicate: 100 as one replicate."""
    for key, near in [
        ("parametersets", "parameter_sets"),
        ("parameter_set", "parameter_sets"),
        ("parameter-sets", "parameter_sets"),
        ("Parameter_Sets", "parameter_sets"),
        ("n_replicate", "n_replicates"),
        ("replicates", "n_replicates"),
        ("n_reps", None),
        ("Model", "model"),
        ("models", "model"),
        ("target", "targets"),
        ("output", "outputs"),
        ("scenarios", "scenario"),
        ("meta_data", "metadata"),
        ("sampling-method", "sampling_method"),
        ("note", None),
        ("description", None),
        ("$schema", None),
    ]:
        with subtests.test(str((key, near))):
            path = f"$.{key}" if key.isidentifier() else f'$["{key}"]'
            if near:
                assert problems(study(**{key: 3})) == [(path, f"unknown key; did you mean {near!r}?")]
            else:
                assert parse(**{key: 3}).warnings == (f"{path}: unknown key, kept with the job and not used",)


def test_unknown_keys_of_parameter_sets_are_a_warning() -> None:
    got = parse(parameter_sets=[{"params": {"beta": 1}, "weight": 2}, {"params": {"beta": 2}, "weight": 2}])
    assert got.warnings == (
        ("$.parameter_sets[0].weight, $.parameter_sets[1].weight: unknown key, kept with the job and not used"),
    )


def test_a_parameter_that_is_text_only_in_some_sets_is_a_warning() -> None:
    got = parse(
        parameter_sets=[{"beta": 1, "kind": "a"}, {"params": {"beta": "2", "kind": "b"}}, {"beta": "3", "kind": "c"}]
    )
    assert got.warnings == ("$.parameter_sets[1]: parameter 'beta' is text here, but not in other sets",)


def test_a_target_named_twice_is_evaluated_once_with_a_warning() -> None:
    got = parse(targets=["t:f", "t:g", "t:f"])
    assert got.targets == ("t:f", "t:g")
    assert got.warnings == ("$.targets[2]: the same target as $.targets[0], evaluated once",)


def test_all_problems_are_listed_at_once_with_their_paths() -> None:
    wrong = {
        "modle": "sir",
        "n_replicates": 0,
        "targets": ["t"],
        "parameter_sets": [{"beta": 1}, {"beta": None, "gamma": []}, 3, {"params": {"a": 1}, "seed": -1}],
    }
    with pytest.raises(StudyError) as raised:
        parse_study(wrong, where="studies/a.json")
    assert str(raised.value) == "\n".join(
        [
            "the study is not valid",
            "  $.modle: unknown key; did you mean 'model'?",
            "  $.n_replicates: 0 is not an integer of at least 1",
            f"  $.model: missing; {NAME_CODE}",
            "  $.targets[0]: 't' names no function; write 't:function'",
            "  $.parameter_sets[1].beta: null is not a value; leave the parameter out",
            f"  $.parameter_sets[1].gamma: an empty list {SCALAR}",
            f"  $.parameter_sets[2]: 3 {OBJECT_OF_PARAMETERS}",
            "  $.parameter_sets[3].seed: -1 is not an integer from 0 to 2^64 - 1",
            "  at: studies/a.json",
        ]
    )


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from([*KEYS, "algorithm", "x"]), json_values)
    | json_values
    | st.builds(lambda key, value: study(**{key: value}), st.sampled_from(KEYS), json_values)
)
def test_any_json_is_a_study_or_a_study_error(data: Any) -> None:
    try:
        found: object = len(parse_study(data, where="study.json").groups)
    except StudyError as bad:
        found = bad.problems
    assert found


def test_a_number_that_overflows_is_not_finite() -> None:
    assert problems(read_json(json.dumps(study(parameter_sets=[{"a": 5}])).replace("5", "1e999"), where="x")) == [
        (f"{SET}.a", "Infinity is not a finite number; write one")
    ]


def test_a_parameter_that_few_sets_have_is_noted() -> None:
    sets: list[dict[str, float]] = [{"beta": i / 10, "gamma": 0.1} for i in range(5)]
    sets[3] = {"bta": 0.3, "gamma": 0.1}
    found = parse_study({"model": "m:f", "parameter_sets": sets}, where="study.json")
    assert found.warnings == (
        "$.parameter_sets: 'beta' is in 4 of 5 sets",
        "$.parameter_sets: 'bta' is in 1 of 5 sets; did you mean 'beta'?",
    )
    assert found.groups.constants == {"gamma": "0.1"}


def test_one_set_has_no_constants() -> None:
    found = parse_study({"model": "m:f", "parameter_sets": [{"beta": 1}]}, where="study.json")
    assert (found.groups.constants, found.warnings) == ({}, ())


def test_a_limit_outside_of_limits_is_an_error(subtests: pytest.Subtests) -> None:
    """It was kept as an unknown key, and the study ran without a limit."""
    for key in ["timeout", "sim_timeout", "memory", "retries"]:
        with subtests.test(str(key)):
            with pytest.raises(StudyError) as refused:
                parse(**{key: 3})
            limit = key.removeprefix("sim_")
            assert f'$.{key}: a limit belongs in "limits"; write "limits": {{"{limit}": ...}}' in str(refused.value)
