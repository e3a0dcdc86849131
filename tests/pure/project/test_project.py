"""The project of a study, its registry, and the code that a study names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cases import case_folder
from mops.errors import ModelError
from mops.project.bundle_cache import in_project
from mops.project.project import MARKERS, REGISTRY, Registry, find_root, read_registry, resolve
from mops.study.entry_point import EntryPoint
from mops.study.study_file import Study, parse_study

REGISTERED = Path(__file__).parents[2] / "models" / "registered"
ENTRY_FORM = "write an id and its code, like sir: {entrypoint: 'package.module:name'}"
EMPTY = Registry({}, {})


def study(**keys: Any) -> Study:
    return parse_study({"model": "models.sir", "parameter_sets": [{"beta": 0.3}], **keys}, where="study.json")


def write_registry(root: Path, text: str | bytes) -> Path:
    path = root / REGISTRY
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# --- the root ---------------------------------------------------------------------------------------------------------


def test_the_root_is_the_nearest_folder_with_a_marker(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """In a worktree ``.git`` is a file."""
    for marker in MARKERS:
        for is_folder in [False, True]:
            with subtests.test(str((marker, is_folder))):
                folder = tmp_path / str(sum(1 for _ in tmp_path.iterdir()))
                folder.mkdir()
                inner = folder / "outer" / "project"
                (inner / "studies" / "2024").mkdir(parents=True)
                (folder / "outer" / "pyproject.toml").touch()
                if is_folder:
                    (inner / marker).mkdir()
                else:
                    (inner / marker).touch()
                assert find_root(inner / "studies" / "2024" / "study.json") == inner
                assert find_root(inner / "study.json") == inner
                assert find_root(folder / "outer" / "study.json") == folder / "outer"


def test_without_a_marker_the_root_is_the_studys_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if any((above / marker).exists() for above in tmp_path.parents for marker in MARKERS):
        pytest.skip("a folder above the temporary one is a project")
    (tmp_path / "studies").mkdir()
    assert find_root(tmp_path / "studies" / "study.json") == tmp_path / "studies"
    monkeypatch.chdir(tmp_path / "studies")
    assert find_root("study.json") == tmp_path / "studies"
    assert find_root("../study.json") == tmp_path


def test_a_study_that_is_a_link_belongs_to_the_project_of_the_link(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "mops.toml").touch()
    (tmp_path / "shared.json").write_text("{}")
    (tmp_path / "project" / "study.json").symlink_to(tmp_path / "shared.json")
    assert find_root(tmp_path / "project" / "study.json") == tmp_path / "project"


# --- the registry -----------------------------------------------------------------------------------------------------


def test_a_registry_is_read_in_its_order() -> None:
    assert read_registry(REGISTERED) == Registry(
        models={"sir": "models.sir:SIR"},
        targets={
            "incidence": "targets.incidence:incidence_target",
            "attack_rate": "targets.attack_rate:attack_rate_target",
        },
    )


def test_a_project_may_have_no_registry(tmp_path: Path) -> None:
    assert read_registry(tmp_path) == EMPTY
    (tmp_path / ".modelops-bundle").touch()
    assert read_registry(tmp_path) == EMPTY


def test_a_registry_may_be_empty(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text in ["{}", "models:\ntargets:\n", "models: {}\ntargets: {}\nversion: 1\n"]:
        with case_folder(subtests, tmp_path, text) as folder:
            write_registry(folder, text)
            assert read_registry(folder) == EMPTY


def test_a_class_name_completes_a_bare_module(tmp_path: Path) -> None:
    write_registry(tmp_path, "models: {sir: {entrypoint: models.sir, class_name: SIR}}")
    assert read_registry(tmp_path).models == {"sir": "models.sir:SIR"}


def test_an_invalid_registry_is_refused_with_the_place(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, what, at, hint in [
        (
            "models: [a\nx: }",
            "the registry is not YAML: expected ',' or ']', but got ':'",
            ", line 2, column 2",
            None,
        ),
        (b"models: \xff", "the registry is not UTF-8 text", ", byte 8", None),
        ("a\x00b", "the registry is not YAML", "", None),
        ("", "the registry is not a mapping with 'models' and 'targets'", "", None),
        ("- a", "the registry is not a mapping with 'models' and 'targets'", "", None),
        ("models: [a]", "'models' in the registry is not a mapping of ids", "", ENTRY_FORM),
        ("targets: a", "'targets' in the registry is not a mapping of ids", "", ENTRY_FORM),
        ("models: {sir: a.b:C}", "'models.sir' in the registry has no entrypoint", "", ENTRY_FORM),
        ("models: {sir: {path: a.py}}", "'models.sir' in the registry has no entrypoint", "", ENTRY_FORM),
        ("models: {sir: {entrypoint: 3}}", "'models.sir' in the registry has no entrypoint", "", ENTRY_FORM),
        (
            "targets: {t: {entrypoint: 'a b:c'}}",
            "'targets.t' in the registry: 'a b' is not a module",
            "",
            ENTRY_FORM,
        ),
        (
            "targets: {t: {entrypoint: a.b}}",
            "'targets.t' in the registry: 'a.b' names only a module",
            "",
            ENTRY_FORM,
        ),
    ]:
        with case_folder(subtests, tmp_path, (text, what, at, hint)) as folder:
            path = write_registry(folder, text)
            with pytest.raises(ModelError) as raised:
                read_registry(folder)
            assert raised.value.what == what
            assert raised.value.where == f"{path}{at}"
            assert raised.value.hint == hint


def test_an_unreadable_registry_is_refused(tmp_path: Path) -> None:
    (tmp_path / REGISTRY).mkdir(parents=True)
    with pytest.raises(ModelError, match="the registry cannot be read: Is a directory"):
        read_registry(tmp_path)


# --- which code -------------------------------------------------------------------------------------------------------

ONE = Registry({"sir": "models.sir:SIR"}, {"a": "targets.a:loss", "b": "targets.b:loss"})
TWO = Registry({"sir": "models.sir:SIR", "seir": "models.sir:SEIR", "other": "models.other:M"}, {})


def test_the_model_comes_from_the_study_or_the_registry(subtests: pytest.Subtests) -> None:
    for model, model_class, registry, expected in [
        ("models.sir:run", None, EMPTY, "models.sir:run"),
        ("models.sir:Frozen", "SIR", ONE, "models.sir:Frozen"),
        ("models/sir.py:SIR", None, ONE, "models/sir.py:SIR"),
        ("models.sir", None, EMPTY, "models.sir"),
        ("models.sir", "Frozen", ONE, "models.sir:Frozen"),
        ("models.sir", "models.other:M", ONE, "models.other:M"),
        ("models.sir", "models/other.py:M", EMPTY, "models/other.py:M"),
        ("models.sir", "", ONE, "models.sir:SIR"),
        ("models.sir", None, ONE, "models.sir:SIR"),
        ("models/sir.py", "SIR", EMPTY, "models/sir.py:SIR"),
        ("models.other", None, TWO, "models.other:M"),
        ("models.unregistered", None, TWO, "models.unregistered"),
        ("sir", None, TWO, "models.sir:SIR"),
        ("models.sir", "SEIR", TWO, "models.sir:SEIR"),
        ("models.sir", None, Registry({"a": "models.sir:SIR", "b": "models.sir:SIR"}, {}), "models.sir:SIR"),
    ]:
        with subtests.test(str((model, model_class, registry, expected))):
            metadata = {"model_class": model_class} if model_class is not None else {}
            spec = resolve(study(model=model, metadata=metadata), Path("/project"), registry)
            assert spec.model == expected
            EntryPoint.parse(spec.model)


def test_an_ambiguous_model_is_refused_with_the_candidates() -> None:
    with pytest.raises(ModelError) as raised:
        resolve(study(), Path("/project"), TWO)
    assert raised.value.what == "the registry has several models in 'models.sir': models.sir:SIR, models.sir:SEIR"
    assert raised.value.where == f"/project/{REGISTRY}"
    assert raised.value.hint == 'name one as the study\'s \'model\', like "model": "models.sir:SIR"'


def test_targets_come_from_the_study_or_else_from_the_registry(subtests: pytest.Subtests) -> None:
    for targets, registry, expected in [
        (None, EMPTY, ()),
        ([], EMPTY, ()),
        (None, ONE, ("targets.a:loss", "targets.b:loss")),
        ([], ONE, ("targets.a:loss", "targets.b:loss")),
        (["targets.c:f"], ONE, ("targets.c:f",)),
        (None, Registry({}, {"a": "t:f", "b": "t:f"}), ("t:f",)),
    ]:
        with subtests.test(str((targets, registry, expected))):
            assert resolve(study(targets=targets), Path("/project"), registry).targets == expected


def test_the_registered_project_resolves() -> None:
    spec = resolve(study(), REGISTERED, read_registry(REGISTERED))
    assert spec.model == "models.sir:SIR"
    assert spec.targets == ("targets.incidence:incidence_target", "targets.attack_rate:attack_rate_target")


@pytest.mark.parametrize("outputs", [None, ["incidence", "final"]])
def test_a_spec_has_the_scenario_and_the_outputs_of_its_study(outputs: list[str] | None) -> None:
    spec = resolve(study(scenario="lockdown", outputs=outputs), Path("/project"), ONE)
    assert spec.scenario == "lockdown"
    assert spec.outputs == (None if outputs is None else tuple(outputs))


DIGEST = "ab" * 32


def test_files_of_a_bundle_are_named_from_the_project_root(subtests: pytest.Subtests) -> None:
    for text, shown in [
        (f'File "/home/ada/.cache/mops/bundles/{DIGEST}/inner/a.py", line 3', 'File "inner/a.py", line 3'),
        (f"no file /c/{DIGEST}/a.csv and /d/{DIGEST}/b.csv", "no file a.csv and b.csv"),
        (f"a bundle {DIGEST} and /usr/lib/python3.11/a.py", f"a bundle {DIGEST} and /usr/lib/python3.11/a.py"),
    ]:
        with subtests.test(str((text, shown))):
            assert in_project(text, DIGEST) == shown
