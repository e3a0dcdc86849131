"""Where a project starts, and which code a study of it means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mops.errors import ModelError
from mops.study.project import MARKERS, ModelSpec, Registry, find_root, read_registry, resolve
from mops.study.schema import Study, parse_study

REGISTERED = Path(__file__).parents[1] / "models" / "registered"


def study(**fields: Any) -> Study:
    return parse_study({"model": "models.sir", "parameter_sets": [{"beta": 0.3}]} | fields, where="study.json")


def registry(root: Path, text: str) -> Path:
    path = root / ".modelops-bundle" / "registry.yaml"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return path


def refused(root: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read_registry(root)
    return caught.value


@pytest.mark.parametrize("marker", MARKERS)
def test_the_root_is_the_nearest_folder_with_a_marker(tmp_path: Path, marker: str) -> None:
    (tmp_path / "pyproject.toml").touch()
    root = tmp_path / "project"
    folder = root / "studies" / "deep"
    folder.mkdir(parents=True)
    (root / marker).touch()
    assert find_root(folder / "study.json") == root
    assert find_root(root / "study.json") == root


def test_the_root_is_the_studys_folder_where_nothing_marks_one(tmp_path: Path) -> None:
    assert not [folder for folder in tmp_path.parents for marker in MARKERS if (folder / marker).exists()]
    assert find_root(tmp_path / "study.json") == tmp_path


def test_a_relative_study_has_an_absolute_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "studies").mkdir()
    monkeypatch.chdir(tmp_path / "studies")
    assert find_root("study.json") == find_root(Path("../study.json")) == tmp_path


def test_a_linked_study_belongs_to_the_folder_that_its_user_named(tmp_path: Path) -> None:
    """Studies are often links into a shared folder of samples; the model is beside the link."""
    for name in ("project", "samples"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mops.toml").touch()
    (tmp_path / "samples" / "study.json").touch()
    (tmp_path / "project" / "study.json").symlink_to(tmp_path / "samples" / "study.json")
    assert find_root(tmp_path / "project" / "study.json") == tmp_path / "project"


def test_a_registry_is_read_in_the_order_of_its_file() -> None:
    found = read_registry(REGISTERED)
    assert found is not None
    assert found.models == {"sir": "models.sir:SIR"}
    assert list(found.targets.items()) == [
        ("incidence", "targets.incidence:incidence_target"),
        ("attack_rate", "targets.attack_rate:attack_rate_target"),
    ]


def test_a_project_without_a_registry_has_none(tmp_path: Path) -> None:
    assert read_registry(tmp_path) is None
    (tmp_path / ".modelops-bundle").touch()
    assert read_registry(tmp_path) is None


def test_a_class_name_completes_a_bare_module(tmp_path: Path) -> None:
    registry(tmp_path, "models: {sir: {entrypoint: models.sir, class_name: SIR}}")
    assert read_registry(tmp_path) == Registry({"sir": "models.sir:SIR"}, {})


def test_sections_may_be_left_empty(tmp_path: Path) -> None:
    registry(tmp_path, "models:\ntargets: {}\nversion: 1\n")
    assert read_registry(tmp_path) == Registry({}, {})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the registry is not a mapping with 'models' and 'targets'"),
        ("- sir", "the registry is not a mapping with 'models' and 'targets'"),
        ("models: [sir]", "'models' in the registry is not a mapping of ids"),
        ("models: {sir: models.sir}", "'models.sir' in the registry has no entrypoint"),
        ("models: {sir: {path: models/sir.py}}", "'models.sir' in the registry has no entrypoint"),
        ("models: {sir: {entrypoint: 3}}", "'models.sir' in the registry has no entrypoint"),
        ("models: {sir: {entrypoint: 'a b:c'}}", "'models.sir' in the registry: 'a b' is not a module"),
        ("targets: {t: {entrypoint: targets.t}}", "'targets.t' in the registry: 'targets.t' names no code in it"),
    ],
)
def test_a_malformed_registry_says_which_entry_is_wrong(tmp_path: Path, text: str, what: str) -> None:
    path = registry(tmp_path, text)
    error = refused(tmp_path)
    assert error.what == what
    assert error.where == str(path)


def test_a_registry_that_is_not_yaml_says_where(tmp_path: Path) -> None:
    path = registry(tmp_path, "models:\n  sir: {entrypoint: [}\n")
    error = refused(tmp_path)
    assert error.what.startswith("the registry is not YAML: ")
    assert "\n" not in error.what
    assert error.where == f"{path}, line 2, column 22"


def test_a_registry_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / ".modelops-bundle" / "registry.yaml").mkdir(parents=True)
    assert refused(tmp_path).what == "the registry cannot be read: Is a directory"


def test_a_registry_that_is_not_text_says_where(tmp_path: Path) -> None:
    registry(tmp_path, "").write_bytes(b"models: \xff")
    error = refused(tmp_path)
    assert error.what == "the registry is not UTF-8 text"
    assert str(error.where).endswith("registry.yaml, byte 8")


ONE = Registry({"sir": "models.sir:SIR", "seir": "models.seir:SEIR"}, {"a": "targets.a:f", "b": "targets.b:f"})
TWO = Registry({"fast": "models.sir:Fast", "exact": "models.sir:Exact"}, {})


@pytest.mark.parametrize(
    ("fields", "registered", "model"),
    [
        ({"model": "models.sir:run"}, ONE, "models.sir:run"),
        ({"model": "models/sir.py:run"}, ONE, "models/sir.py:run"),
        ({"model": "models.sir"}, None, "models.sir"),
        ({"model": "models.sir"}, ONE, "models.sir:SIR"),
        ({"model": "seir"}, ONE, "models.seir:SEIR"),
        ({"model": "models.other"}, ONE, "models.other"),
        ({"model": "models.sir", "metadata": {"model_class": "Fast"}}, TWO, "models.sir:Fast"),
        ({"model": "models.sir", "metadata": {"model_class": "models.b:B"}}, None, "models.b:B"),
        ({"model": "models.sir", "metadata": {"model_class": ""}}, ONE, "models.sir:SIR"),
        ({"model": "models.sir:run", "metadata": {"model_class": "Fast"}}, TWO, "models.sir:run"),
        ({"model": "exact"}, TWO, "models.sir:Exact"),
    ],
)
def test_the_model_is_what_the_study_names_then_its_class_then_the_registrys(
    tmp_path: Path, fields: dict[str, Any], registered: Registry | None, model: str
) -> None:
    assert resolve(study(**fields), tmp_path, registered).model == model


def test_several_registered_models_in_a_module_are_listed(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(study(), tmp_path, TWO)
    assert caught.value.what == "the registry has several models in 'models.sir': models.sir:Fast, models.sir:Exact"
    assert caught.value.hint == 'name one as the study\'s \'model\', like "model": "models.sir:Fast"'


def test_one_model_registered_twice_is_one_candidate(tmp_path: Path) -> None:
    twice = Registry({"sir": "models.sir:SIR", "default": "models.sir:SIR"}, {})
    assert resolve(study(), tmp_path, twice).model == "models.sir:SIR"


@pytest.mark.parametrize("none", [None, []])
def test_without_targets_of_its_own_a_study_has_the_registered_ones(tmp_path: Path, none: object) -> None:
    assert resolve(study(targets=none), tmp_path, ONE).targets == ("targets.a:f", "targets.b:f")
    assert resolve(study(targets=none), tmp_path, None).targets == ()


def test_targets_of_the_study_stand_alone(tmp_path: Path) -> None:
    assert resolve(study(targets=["targets.b:f"]), tmp_path, ONE).targets == ("targets.b:f",)


def test_a_target_registered_twice_is_evaluated_once(tmp_path: Path) -> None:
    """Losses are unique by (param_id, target, name)."""
    twice = Registry({}, {"a": "targets.a:f", "again": "targets.a:f"})
    assert resolve(study(), tmp_path, twice).targets == ("targets.a:f",)


@pytest.mark.parametrize("outputs", [None, ("daily", "final")])
def test_a_model_spec_reads_back_from_json(outputs: tuple[str, ...] | None) -> None:
    spec = ModelSpec("models.sir:SIR", "baseline", ("targets.a:f",), outputs)
    assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
