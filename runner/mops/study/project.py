"""The user's project: its root, its registry, and which code a study means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mops.errors import ModelError
from mops.study.entry import EntryPoint
from mops.study.schema import Study

MARKERS = ("mops.toml", "pyproject.toml", ".modelops-bundle", ".git")
REGISTRY = ".modelops-bundle/registry.yaml"


@dataclass(frozen=True)
class ModelSpec:
    """Which code runs: ``model`` is an entry point; a bare module is looked at by the child that imports it."""

    model: str
    scenario: str
    targets: tuple[str, ...]
    outputs: tuple[str, ...] | None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        outputs = None if self.outputs is None else list(self.outputs)
        return {"model": self.model, "scenario": self.scenario, "targets": list(self.targets), "outputs": outputs}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ModelSpec:
        """Return what :meth:`to_json` wrote; KeyError or TypeError if it is not that."""
        outputs = fields["outputs"]
        return cls(
            fields["model"],
            fields["scenario"],
            tuple(fields["targets"]),
            None if outputs is None else tuple(outputs),
        )


@dataclass(frozen=True)
class Registry:
    """What a project registers: entry points of models and targets, by id, in the file's order."""

    models: dict[str, str]
    targets: dict[str, str]


def find_root(study_path: str | Path) -> Path:
    """Return the nearest folder at or above the study with a marker of a project, else the study's folder."""
    folder = Path(study_path).resolve().parent
    for candidate in (folder, *folder.parents):
        if any((candidate / marker).exists() for marker in MARKERS):
            return candidate
    return folder


def read_registry(root: Path) -> Registry | None:
    """Return the project's registry; None if it has none.

    Raises
    ------
    ModelError
        It is not one: what is wrong, and what would be right.
    """
    path = root / REGISTRY
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (yaml.YAMLError, UnicodeDecodeError) as bad:
        raise ModelError(f"the registry is not YAML: {bad}", where=str(path)) from bad
    if not isinstance(fields, dict):
        raise ModelError("the registry is not a mapping with 'models' and 'targets'", where=str(path))
    return Registry(_entries(fields, "models", path), _entries(fields, "targets", path))


def _entries(fields: Mapping[str, Any], key: str, path: Path) -> dict[str, str]:
    entries = fields.get(key) or {}
    if not isinstance(entries, dict):
        raise ModelError(f"{key!r} in the registry is not a mapping of id to entry", where=str(path))
    for name, entry in entries.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("entrypoint"), str):
            raise ModelError(
                f"{key}.{name} has no entrypoint", where=str(path), hint="write entrypoint: 'package.module:name'"
            )
        EntryPoint.parse(entry["entrypoint"])
    return {str(name): entry["entrypoint"] for name, entry in entries.items()}


def resolve(study: Study, root: Path, registry: Registry | None) -> ModelSpec:
    """Say which code a study means.

    Raises
    ------
    ModelError
        The registry has several models that it could mean; they are listed.
    """
    registry = registry or Registry({}, {})
    return ModelSpec(
        model=_model(study, registry, root),
        scenario=study.scenario,
        targets=study.targets or tuple(registry.targets.values()),
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
    of_module = sorted({entry for entry in registry.models.values() if entry.partition(":")[0] == study.model})
    if len(of_module) > 1:
        raise ModelError(
            f"the registry has several models in {study.model!r}: {', '.join(of_module)}",
            where=str(root / REGISTRY),
            hint="name one as the study's 'model'",
        )
    return of_module[0] if of_module else study.model
