"""The user's project: its root, its registry, and which code a study means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from mops.errors import ModelError
from mops.study.entry_point import EntryPoint

if TYPE_CHECKING:
    from mops.study.study_file import Study

MARKERS = ("mops.toml", "pyproject.toml", ".modelops-bundle", ".git")
REGISTRY = ".modelops-bundle/registry.yaml"
_ENTRY_FORM = "write an id and its code, like sir: {entrypoint: 'package.module:name'}"


@dataclass(frozen=True)
class ModelSpec:
    """The code that a job runs. ``model`` is an entry point; a child process resolves a bare module."""

    model: str
    scenario: str
    targets: tuple[str, ...]
    outputs: tuple[str, ...] | None
    import_folders: tuple[str, ...] = (".",)  # relative to the project root


@dataclass(frozen=True)
class Registry:
    """A project's registry: entry points of models and targets, by id, in the file's order."""

    models: dict[str, str]
    targets: dict[str, str]

    @property
    def entry_points(self) -> frozenset[str]:
        """All of them."""
        return frozenset((*self.models.values(), *self.targets.values()))


def find_root(study_path: str | Path) -> Path:
    """Return the nearest folder at or above the study's that has a project marker; else the study's own folder."""
    folder = Path(os.path.realpath(Path(study_path).parent))
    for candidate in (folder, *folder.parents):
        for marker in MARKERS:
            with suppress(OSError):  # mops may have no permission to read a folder above
                if (candidate / marker).exists():
                    return candidate
    return folder


def read_registry(root: Path) -> Registry:
    """Return the project's registry; empty: the project has none. ModelError: the file is not valid."""
    path = root / REGISTRY
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return Registry({}, {})
    except OSError as bad:
        raise ModelError(f"the registry cannot be read: {bad.strerror}", where=str(path)) from bad
    except UnicodeDecodeError as bad:
        raise ModelError("the registry is not UTF-8 text", where=f"{path}, byte {bad.start}") from bad
    except yaml.YAMLError as bad:
        what, where = "the registry is not YAML", str(path)
        if isinstance(bad, yaml.MarkedYAMLError) and (mark := bad.problem_mark):
            what += f": {bad.problem}"
            where += f", line {mark.line + 1}, column {mark.column + 1}"
        raise ModelError(what, where=where) from bad
    if not isinstance(fields, dict):
        raise ModelError("the registry is not a mapping with 'models' and 'targets'", where=str(path))
    return Registry(_entries(fields, "models", path), _entries(fields, "targets", path))


def _entries(fields: Mapping[str, Any], key: str, path: Path) -> dict[str, str]:
    entries = fields.get(key) or {}
    if not isinstance(entries, dict):
        raise ModelError(f"'{key}' in the registry is not a mapping of ids", where=str(path), hint=_ENTRY_FORM)
    return {str(name): _entry_point(entry, f"{key}.{name}", path) for name, entry in entries.items()}


def _entry_point(entry: object, name: str, path: Path) -> str:
    """Return the code of a registry entry. ``class_name`` completes a bare module."""
    text = entry.get("entrypoint") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(text, str):
        raise ModelError(f"'{name}' in the registry has no entrypoint", where=str(path), hint=_ENTRY_FORM)
    class_name = entry.get("class_name")
    if ":" not in text and isinstance(class_name, str):
        text = f"{text}:{class_name}"
    try:
        named = EntryPoint.parse(text).name
    except ModelError as bad:
        raise ModelError(f"'{name}' in the registry: {bad.what}", where=str(path), hint=_ENTRY_FORM) from bad
    if named is None:
        raise ModelError(f"'{name}' in the registry: {text!r} names only a module", where=str(path), hint=_ENTRY_FORM)
    return text


def resolve(study: Study, root: Path, registry: Registry) -> ModelSpec:
    """Return the code that a study names. ModelError: the study could mean several models of the registry."""
    return ModelSpec(
        model=_model(study, registry, root),
        scenario=study.scenario,
        # With two ids for the same code, mops would score every parameter set twice under one name.
        targets=study.targets or tuple(dict.fromkeys(registry.targets.values())),
        outputs=study.outputs,
    )


def _model(study: Study, registry: Registry, root: Path) -> str:
    if ":" in study.model:
        return study.model
    named = study.metadata.get("model_class")
    if isinstance(named, str) and named:
        return named if ":" in named else f"{study.model}:{named}"
    if study.model in registry.models:
        return registry.models[study.model]
    in_module = list(dict.fromkeys(text for text in registry.models.values() if text.partition(":")[0] == study.model))
    if len(in_module) > 1:
        raise ModelError(
            f"the registry has several models in {study.model!r}: {', '.join(in_module)}",
            where=str(root / REGISTRY),
            hint=f'name one as the study\'s \'model\', like "model": "{in_module[0]}"',
        )
    return in_module[0] if in_module else study.model
