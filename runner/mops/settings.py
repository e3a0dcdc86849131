"""Reads and checks every ``MODELOPS_*`` variable of the environment at once.

mops refuses unknown ``MODELOPS_JOB_*`` variables. Other ``MODELOPS_*`` variables belong to other tools.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, field_validator

import mops
from mops.errors import Problem, SettingsError, StudyError, check_type, message_of, nearest
from mops.units import bytes_text

PREFIX = "MODELOPS_JOB_"
_BYTES = (ByteSize, ByteSize | None)
_POOL = r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"  # a part of the name of a Kubernetes Deployment
# Settings that affect more than a job, so their variables lack the prefix.
_PLACES = {
    "storage": "MODELOPS_STORAGE",
    "scheduler": "MODELOPS_SCHEDULER",
    "metrics_port": "MODELOPS_METRICS_PORT",
}

NO_LIMIT = "none"

# The settings that depend on the model and not on the machine. A job keeps them, and a study may set them.
# ``max_failures`` is not one of them: who resumes a job that it has ended wants to run the rest.
LIMITS = (
    "sim_timeout",
    "sim_memory",
    "sim_threads",
    "retries",
    "import_timeout",
    "tasks_per_child",
    "child_growth",
)


@dataclass(frozen=True)
class SettingLine:
    """A setting in a list: its variable, its value with a unit, its source and its meaning."""

    name: str
    value: Any
    unit: str
    source: str
    meaning: str

    @property
    def text(self) -> str:
        """The value for people."""
        return _value_text(self.value, is_bytes=self.unit == "bytes")


def _value_text(value: Any, *, is_bytes: bool) -> str:
    if value is None:
        return "unset"
    if is_bytes:
        return bytes_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


class Settings(BaseModel):
    """How jobs run, in seconds and bytes unless a description says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        None,
        description="parameter sets in flight, which bounds memory; auto: by measurement; unset: at least 200",
    )
    checkpoint_seconds: float = Field(
        30.0, ge=0, allow_inf_nan=False, description="seconds of finished work at risk if the runner is killed; 0: none"
    )
    checkpoint_bytes: ByteSize = Field(
        ByteSize(64 << 20), ge=1 << 20, description="bytes of finished work at risk if the runner is killed"
    )
    sim_timeout: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="seconds that a simulation or target may take; unset: no limit"
    )
    sim_memory: ByteSize | None = Field(
        None, ge=32 << 20, description="bytes that a simulation may use; unset: the share of its slot"
    )
    tasks_per_child: int = Field(0, ge=0, description="simulations before mops replaces a child process; 0: no limit")
    child_growth: ByteSize = Field(
        ByteSize(300 << 20), ge=0, description="bytes a child process may grow before mops replaces it; 0: no limit"
    )
    start: Literal["auto", "fork", "spawn"] = Field(
        "auto",
        description="fork child processes from a template, or spawn; auto: fork if safe",
    )
    sim_threads: int = Field(1, ge=1, description="threads that a simulation may use; reduces the slots")
    retries: int = Field(
        1, ge=0, description="retries of a simulation whose process died; over its memory limit at most 1"
    )
    import_timeout: float = Field(
        300.0, gt=0, allow_inf_nan=False, description="seconds that the import of the model may take in one process"
    )
    max_failures: str | None = Field(
        None,
        pattern=r"^(\d+|\d+(\.\d+)?%)$",
        description="failed simulations, or share (5%), that a job may have; unset: no limit",
    )
    priority: Literal["low", "normal", "high"] = Field(
        "normal",
        description="share of a cluster: high has 4 times that of normal, low a quarter",
    )
    pool: str | None = Field(
        None,
        pattern=_POOL,
        description="pool of a cluster's workers that runs the job: those with the Dask resource pool-NAME; unset: all",
    )
    memory_pool: str | None = Field(
        None,
        pattern=_POOL,
        description="pool that runs simulations again that need a worker to themselves; unset: that of the job",
    )
    task_seconds: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="combine short parameter sets into tasks of about this many seconds"
    )
    persist: Literal["runner", "worker", "auto"] = Field(
        "auto",
        description="who stores large results: the runner or the workers; auto: workers, on a cluster only if needed",
    )
    slots: int | None = Field(None, ge=1, description="parallel simulations on this machine; unset: CPUs / SIM_THREADS")
    install: Literal["auto", "never", "always"] = Field(
        "auto",
        description="install the project's dependencies; auto: only on a cluster",
    )
    install_timeout: float = Field(
        600.0, gt=0, allow_inf_nan=False, description="seconds that an installation may take on a worker"
    )
    scheduler: str | None = Field(None, description="address of a Dask scheduler (tcp://host:8786); unset: none")
    cluster_timeout: float = Field(
        300.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds to wait for a lost scheduler or a first worker; unset in a service's pod: without end",
    )
    storage: str | None = Field(None, description="folder or URL of results; unset: mops-storage in the project")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of the runner's Prometheus metrics; 0: any free; unset: none"
    )

    @field_validator("batch_size", mode="before")
    @classmethod
    def _as_written(cls, given: Any) -> Any:
        return given.strip().lower() if isinstance(given, str) else given

    @field_validator("sim_timeout", "sim_memory", mode="before")
    @classmethod
    def _no_limit(cls, given: Any) -> Any:
        """Take ``none`` as no limit: an unset variable leaves the limit of the study or the job in place."""
        return None if isinstance(given, str) and given.strip().lower() == NO_LIMIT else given

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, **instead: str | None) -> Settings:
        """Read and check the environment; ``instead`` has fields that override it. SettingsError lists all problems."""
        given = {name: value for name, value in environ.items() if value.strip()}
        problems = []
        for name in sorted(given.keys() - _FIELD_OF.keys()):
            if name.startswith(PREFIX):
                # Without the prefix, which would make any two names similar.
                near = nearest(name.removeprefix(PREFIX), cls.model_fields, 0.75)
                advice = f"did you mean {_variable(near)}?" if near else "this version does not have this setting"
                problems.append(Problem(name, f"unknown setting; {advice}"))
        values = {field: given[name] for name, field in _FIELD_OF.items() if name in given}
        values |= {field: value for field, value in instead.items() if value is not None}
        try:
            settings = cls.model_validate(values)
        except ValidationError as bad:
            problems += {error["loc"][0]: _problem(error) for error in bad.errors()}.values()
        if problems:
            hint = "correct or unset these variables; then list all settings: mops settings"
            raise SettingsError("the environment's settings are not valid", problems, hint=hint)
        return settings

    @classmethod
    def given(cls, settings: Settings | None) -> Settings:
        """Return the settings of a Python caller; None: those of the environment. UsageError: it is something else."""
        if settings is None:
            return cls.from_environment()
        hint = "write settings=mops.settings.Settings(slots=2)"
        check_type(settings, cls, "settings", "mops.settings.Settings", hint)
        return settings

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that were given, as JSON values by field."""
        return {
            name: value for name, value in self.to_json().items() if name in LIMITS and name in self.model_fields_set
        }

    def over(self, limits: Mapping[str, Any]) -> Settings:
        """Return these settings with other limits in place of those that were not given."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        # Limits of a newer version of mops are left out.
        try:
            return type(self).model_validate({name: limits[name] for name in LIMITS if name in limits} | given)
        except ValidationError as bad:
            problems = [_problem(error) for error in bad.errors()]
            hint = "set these variables"
            raise SettingsError("limits that the job keeps are not valid", problems, hint=hint) from bad

    def batch_size_or(self, measured: int) -> int:
        """Return the batch size; if it is not set, or ``auto``, the measured size."""
        return self.batch_size if isinstance(self.batch_size, int) else measured

    def failures_allowed(self, n_simulations: int) -> float:
        """Return how many of these simulations may fail before the job ends."""
        if self.max_failures is None:
            return math.inf
        number, percent, _ = self.max_failures.partition("%")
        return float(number) * n_simulations / 100 if percent else int(number)

    def described(self) -> list[SettingLine]:
        """List the settings: variable, value, source, meaning."""
        return [
            SettingLine(
                name,
                value := getattr(self, field),
                "bytes" if isinstance(value, ByteSize) else "",
                "environment" if field in self.model_fields_set else "default",
                str(type(self).model_fields[field].description),
            )
            for name, field in _FIELD_OF.items()
        ]

    def changes_since(self, before: Mapping[str, Any]) -> list[str]:
        """Return a line for each setting that differs from an earlier result of :meth:`to_json`."""
        now = self.to_json()
        return [
            f"{_variable(field)}: {_shown(field, before.get(field))} before, {_shown(field, now[field])} now"
            for field in now
            if now[field] != before.get(field)
        ]

    def to_environment(self) -> dict[str, str]:
        """Return the variables that give these settings in :meth:`from_environment`."""
        given = {field: getattr(self, field) for field in self.model_fields_set}
        texts = {field: str(value) for field, value in given.items() if value is not None}
        texts |= {field: NO_LIMIT for field, value in given.items() if value is None and field in LIMITS}
        return {_variable(field): text for field, text in texts.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, which ``Settings.model_validate`` reads."""
        return self.model_dump(mode="json")


def limits_of_study(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the limits of a study, as ``Settings.limits``. StudyError lists all names and values that are wrong."""
    # ``given``: Values by the names of the variables in lower case, without ``MODELOPS_JOB_`` and ``SIM_``.
    fields = {field.removeprefix("sim_"): field for field in LIMITS}
    problems = []
    for name in sorted(given.keys() - fields.keys()):
        near = nearest(name.replace("-", "_").removeprefix("sim_"), fields, 0.75)
        advice = f"did you mean {near!r}?" if near else f"the limits are {', '.join(fields)}"
        problems.append(Problem(f"$.limits.{name}", f"unknown limit; {advice}"))
    # As text, or true would count as 1.
    values = {
        fields[name]: json.dumps(value) if isinstance(value, int) else value
        for name, value in given.items()
        if name in fields
    }
    limits: dict[str, Any] = {}
    try:
        limits = Settings.model_validate(values).limits
    except ValidationError as bad:
        for error in bad.errors():
            name = str(error["loc"][0]).removeprefix("sim_")
            problems.append(replace(_problem(error), path=f"$.limits.{name}"))
    if problems:
        raise StudyError("the study is not valid", problems, where=where)
    return limits


def limit_texts(limits: Mapping[str, Any]) -> list[str]:
    """Return each limit for people: ``SIM_TIMEOUT 60 s``."""
    return [f"{_variable(name).removeprefix(PREFIX)} {_limit_text(name, value)}" for name, value in limits.items()]


def _limit_text(field: str, value: Any) -> str:
    if value is None:
        return NO_LIMIT
    return f"{_shown(field, value)}{' s' if field == 'sim_timeout' else ''}"


def _variable(field: str) -> str:
    return _PLACES.get(field, PREFIX + field.upper())


def _shown(field: str, value: Any) -> str:
    return _value_text(value, is_bytes=Settings.model_fields[field].annotation in _BYTES)


def _problem(error: Any) -> Problem:
    field, given = error["loc"][0], error["input"]
    if field == "batch_size":
        right = "a number of parameter sets, like 200, or auto"
    elif field == "max_failures":
        right = "a number of simulations, like 100, or a share of them, like 5%"
    elif field in ("pool", "memory_pool"):
        right = "small letters, digits and '-', at most 32, like gpu"
    else:
        right = _right_value(field, error["type"], error.get("ctx", {})) or message_of(error)
    return Problem(_variable(str(field)), f"{given!r} is not valid: write {right}{_near(str(given), error)}")


def _near(given: str, error: Any) -> str:
    """Return which of a few fixed values may be meant; empty: none is near, or any value of a type is possible."""
    known = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
    near = nearest(given.strip(), known)
    return f"; did you mean {near}?" if near else ""


def _right_value(field: str, fault: str, limits: Mapping[str, Any]) -> str:
    """Return which values a field may have, from pydantic's type of the fault and its limits; empty: unknown."""
    match fault:
        case "literal_error":
            return str(limits["expected"]).replace("'", "")
        case "greater_than":
            return f"a number above {limits['gt']:g}"
        case "greater_than_equal":
            return f"{_shown(field, limits['ge'])} or more"
        case "less_than_equal":
            return f"{_shown(field, limits['le'])} or less"
        case "finite_number":
            return "a finite number"
        case "float_parsing" | "float_type":
            return "a number"
        case "int_parsing" | "int_from_float" | "int_type":
            return "an integer"
        case "byte_size" | "byte_size_unit":
            return "bytes, or a number and a unit, like 64MiB"
    return ""


_FIELD_OF = {_variable(field): field for field in Settings.model_fields}  # by variable

sys.modules[__name__].__class__ = mops.CallableModule  # mops.settings() lists the settings
