"""Checks what a calibration is to fit, and begins it or finds the calibration of the same name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mops.calibration.calibration import Calibration
from mops.calibration.optimiser import check_optimiser
from mops.calibration.options import CalibrateOptions, Plan
from mops.errors import JobError, UsageError, absolute
from mops.jobs.launch import Launch, ModelParts
from mops.jobs.location import path_text
from mops.jobs.prepare import PreparedStudy, changed_inputs, checked_name, job_name, listed_files, prepare
from mops.jobs.trial import check_model
from mops.project.project import find_root
from mops.storage.calibration_records import CalibrationRecord, CalibrationRecords
from mops.storage.job_records import job_exists, load_job
from mops.study.json_file import read_json, read_text
from mops.study.sampling.draw import sets_at, varying
from mops.study.sampling.space import Space, parse_space
from mops.study.study_file import KEY_OF_OPTION

_NAME_LIMIT = 52  # the names of the rounds' jobs must not be too long


@dataclass(frozen=True)
class Begun:
    """A calibration that exists."""

    calibration: Calibration  # without its rounds
    changed_data: list[str]  # the files other than code that have changed since the last round
    study: dict[str, Any]  # without its sets
    prepared: PreparedStudy  # the study with one set, and the files: all rounds that this call starts run these
    launch: Launch  # where the rounds run, and with which options

    def require_data(self, *, trust: bool) -> None:
        """Raise JobError if data files have changed since the earlier rounds, unless the user trusts them."""
        records, changed = self.calibration.records, self.changed_data
        if changed and not trust:
            raise JobError(
                f"files have changed since the earlier rounds of calibration {records.name!r}: {listed_files(changed)}",
                where=f"{records.files.url}/{records.folder}",
                hint="use another --name; or add --trust-data if the losses of all rounds still compare",
            )


def begin(
    space: str | Path | Mapping[str, Any],
    study: str | Path | Mapping[str, Any] | None,
    plan: Plan,
    launch: Launch,
    options: CalibrateOptions,  # have the model, if the study does not
    *,
    name: str | None,
    project: str | Path | None,
) -> Begun:
    """Check all input, and store what a new calibration fits once its model is imported."""
    raw, parsed = _space(space)
    check_optimiser(plan.method, parsed, "the space")
    fields, where = _study(study, options)
    if study is None and "model" not in fields:
        hint = "name a study: --study study.json; or a model and targets: --model and --target MODULE:FUNCTION"
        raise UsageError("the calibration has no model", where="the options", hint=hint)
    fields.pop("parameter_sets", None)
    root = Path(project) if project is not None else find_root(where or absolute() / "study.json")
    one_set = sets_at(parsed, np.full((1, len(varying(parsed))), 0.5)).to_pylist()
    prepared = prepare(fields | {"parameter_sets": one_set}, root, launch.location.storage)
    if not prepared.spec.targets:
        is_given = study is not None
        raise UsageError(
            "the study has no target" if is_given else "the calibration has no target",
            where=str(where) if where else "the study given to mops" if is_given else "the options",
            hint="add a target: --target MODULE:FUNCTION"
            + ("" if is_given else ", or name a study: --study study.json"),
        )
    new = CalibrationRecord(
        calibration=_checked_name(name, prepared),
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),  # a part of its identity
        method=plan.method.value,
        seed=plan.seed,
        space=raw,
        spec=prepared.spec,
        n_replicates=len(prepared.study.groups.group(0).seeds),
    )
    records = CalibrationRecords(launch.location.open(root), new.calibration)
    old = records.calibration()
    changed_data: list[str] = []
    if old is not None:
        changed_code, changed_data = _changed(records, old, prepared, space)
        _refuse_other(records, old, new, changed_code)
    else:
        # Before the first record, so that the same name can begin again after a mistake in the model.
        check_model(prepared, launch.settings, launch.child, other_packages=launch.service is not None)
        records.begin(new)
    launch = replace(launch, location=replace(launch.location, storage=records.files.url))
    return Begun(Calibration(records, old or new, parsed, plan.scoring), changed_data, fields, prepared, launch)


def _space(space: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Space]:
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


def _study(
    study: str | Path | Mapping[str, Any] | None, options: CalibrateOptions
) -> tuple[dict[str, Any], Path | None]:
    """Return the study without its sets, and the path of its file; None: it has none."""
    near = None
    found: Any = {}
    if isinstance(study, Mapping):
        found = dict(study)
    elif study is not None:
        near = Path(path_text(study, "study", "pass the path of a study file, or a dict"))
        found = read_json(read_text(near, "study"), where=str(near))
        if not isinstance(found, dict):
            raise UsageError("the study is not a JSON object", where=str(near), hint="see docs/reference/study.md")
    given = {name: value for name in ModelParts.__annotations__ if (value := options.get(name)) is not None}
    found |= {KEY_OF_OPTION.get(name, name): value for name, value in given.items()}
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


def _changed(
    records: CalibrationRecords, old: CalibrationRecord, prepared: PreparedStudy, space: object
) -> tuple[list[str], list[str]]:
    """Return the code and the other files of the project that have changed since the last round."""
    files, rounds, opened = records.files, records.rounds(), records.open_job()
    job = load_job(files, opened) if opened is not None and job_exists(files, opened) else None
    if job is not None and job.round_of == old.identity:
        bundle = job.bundle
    elif not rounds:
        return [], []
    elif not (bundle := rounds[-1].bundle):
        raise JobError(
            f"the record of round {len(rounds)} does not name the code that it ran",
            where=records.name,
            hint="begin another calibration: --name NAME",
        )
    code, data = changed_inputs(files, bundle, prepared)
    # The space is compared by itself, and this process may print into a file of the project.
    own = [*([space] if isinstance(space, str | Path) else []), "/dev/stdout", "/dev/stderr"]
    not_inputs = {os.path.realpath(path) for path in own}
    return code, [name for name in data if os.path.realpath(prepared.root / name) not in not_inputs]


def _refuse_other(
    records: CalibrationRecords, old: CalibrationRecord, new: CalibrationRecord, changed_code: list[str]
) -> None:
    names = {"method": "the method", "seed": "the seed", "space": "the space", "n_replicates": "the replicates"}
    before, now = asdict(old), asdict(new)
    different = [
        *(text for key, text in names.items() if before[key] != now[key]),
        *(["the model, scenario, outputs or targets"] if old.spec != new.spec else []),
        *changed_code,
    ]
    if different:
        raise JobError(
            f"calibration {new.calibration!r} exists and fits something else; what differs: {listed_files(different)}",
            where=f"{records.files.url}/{records.folder}",
            hint="give the new calibration another name; name files that the model does not use in .mopsignore",
        )
