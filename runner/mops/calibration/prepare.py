"""Checks what a calibration is to fit, and begins it or finds the calibration of the same name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mops.calibration.options import CalibrateOptions, Plan
from mops.errors import JobError, UsageError
from mops.jobs.location import locate, path_text
from mops.jobs.prepare import PreparedStudy, checked_name, job_name, prepare
from mops.jobs.trial.trial import check_model
from mops.project.bundle import code_checksums
from mops.project.project import find_root
from mops.settings import Settings
from mops.storage.calibration_records import CalibrationRecord, CalibrationRecords
from mops.study.json_file import read_json, read_text
from mops.study.sampling.draw import sets_at, varying
from mops.study.sampling.space import Space, parse_space
from mops.worker.environment.options import child_environment

_NAME_LIMIT = 52
"""So that the names of the rounds' jobs are not too long."""

_FILES_SHOWN = 5
_STUDY_KEYS = {"model": "model", "targets": "targets", "replicates": "n_replicates", "scenario": "scenario"}


@dataclass(frozen=True)
class Place:
    """Where a call of calibrate finds its study, and where it stores results.

    Parameters
    ----------
    name, project, storage
        As for :func:`mops.calibration.calibrate.calibrate`.
    """

    name: str | None
    project: str | Path | None
    storage: str | Path | None


@dataclass(frozen=True)
class Begun:
    """A calibration that exists.

    Parameters
    ----------
    study
        The study without its sets.
    root
        The root of the project.
    """

    records: CalibrationRecords
    space: Space
    study: dict[str, Any]
    root: Path


def begin(
    space: str | Path | Mapping[str, Any],
    study: str | Path | Mapping[str, Any] | None,
    place: Place,
    plan: Plan,
    options: CalibrateOptions,
) -> Begun:
    """Check all input, and store what a new calibration fits once its model is imported.

    Raises
    ------
    UsageError, StudyError, ModelError
        The input is wrong.
    JobError
        The calibration of this name fits something else.
    """
    settings = options.get("settings") or Settings.from_environment()
    location = locate(place.storage, local=options.get("local") or False, settings=settings)
    if location.profile is not None:
        raise UsageError(
            "a calibration runs on this machine, and commands use the connected service",
            where=f"service {location.profile.service.release}",
            hint="add --local, or in Python local=True",
        )
    raw, parsed = _space(space)
    fields, near = _study(study, options)
    root = Path(place.project) if place.project is not None else find_root(near)
    one_set = sets_at(parsed, np.full((1, len(varying(parsed))), 0.5)).to_pylist()
    prepared = prepare(fields | {"parameter_sets": one_set}, root, location.storage)
    if not prepared.spec.targets:
        raise UsageError("the study has no target", where=str(near), hint="add a target: --target MODULE:FUNCTION")
    new = CalibrationRecord(
        calibration=_checked_name(place.name, prepared),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        method=plan.method.value,
        seed=plan.seed,
        space=raw,
        spec=prepared.spec,
        n_replicates=len(prepared.study.groups.group(0).seeds),
        code=code_checksums(prepared.bundle),
    )
    records = CalibrationRecords(location.open(root), new.calibration)
    old = records.calibration()
    if old is not None:
        _refuse_other(records, old, new)
    else:
        child = child_environment(dict(options.get("env") or {}), options.get("python"), install=settings.install)
        check_model(prepared, settings, child)  # after a mistake in the model, the same name can begin again
        records.begin(new)
    return Begun(records, parsed, fields, root)


def _space(space: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Space]:
    """Return a space as JSON, and parsed."""
    found: object
    if isinstance(space, Mapping):
        where, found = "the space given to mops", dict(space)
    else:
        where = path_text(space, "space", "pass the path of a space file, or a dict")
        found = read_json(read_text(Path(where), "space"), where=where, what="space")
    parsed = parse_space(found, where=where)
    if not varying(parsed):
        raise UsageError("nothing varies in the space", where=where, hint="give ranges, or lists of values")
    return json.loads(json.dumps(found)), parsed


def _study(study: str | Path | Mapping[str, Any] | None, options: CalibrateOptions) -> tuple[dict[str, Any], Path]:
    """Return the study without its sets, and the path of its file, near which the project is."""
    near = Path.cwd() / "study.json"
    found: Any = {}
    if isinstance(study, Mapping):
        found = dict(study)
    elif study is not None:
        near = Path(path_text(study, "study", "pass the path of a study file, or a dict"))
        found = read_json(read_text(near, "study"), where=str(near))
        if not isinstance(found, dict):
            raise UsageError("the study is not a JSON object", where=str(near), hint="see docs/reference/study.md")
    given = {key: options.get(name) for name, key in (_STUDY_KEYS | {"outputs": "outputs"}).items()}
    found |= {key: value for key, value in given.items() if value is not None}
    found.pop("parameter_sets", None)
    return found, near


def _checked_name(name: str | None, prepared: PreparedStudy) -> str:
    if name is None:
        return job_name(prepared, datetime.now(UTC))
    if len(checked_name(name)) > _NAME_LIMIT:
        raise UsageError(
            f"{name!r} is too long for the name of a calibration",
            where="the calibration's name",
            hint=f"use at most {_NAME_LIMIT} characters",
        )
    return name


def _refuse_other(records: CalibrationRecords, old: CalibrationRecord, new: CalibrationRecord) -> None:
    """Raise if two calibrations of one name do not fit the same."""
    names = {"method": "the method", "seed": "the seed", "space": "the space", "n_replicates": "the replicates"}
    before, now = asdict(old), asdict(new)
    code = sorted(name for name in old.code.keys() | new.code.keys() if old.code.get(name) != new.code.get(name))
    different = [
        *(text for key, text in names.items() if before[key] != now[key]),
        *(["the model, scenario, outputs or targets"] if old.spec != new.spec else []),
        *(f"the file {name}" for name in code[:_FILES_SHOWN]),
    ]
    if different:
        raise JobError(
            f"calibration {new.calibration!r} exists and fits something else; what differs: {', '.join(different)}",
            where=f"{records.files.url}/{records.folder}",
            hint="give the new calibration another name",
        )
