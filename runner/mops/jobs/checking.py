"""``mops.check()``: whether a study would run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from mops.jobs.launch import StudyParts
from mops.jobs.prepare import prepare
from mops.jobs.submit import study_of_call
from mops.jobs.trial import Trial, check_model, raise_failure, try_model
from mops.settings import Settings
from mops.worker.environment import Variables, child_environment


@dataclass(frozen=True)
class CheckedStudy:
    """A study that would run.

    Parameters
    ----------
    model, scenario, outputs, targets
        As in study.json; ``outputs`` None: all.
    project
        The folder with the model.
    n_parameter_sets, n_simulations
        What submit would run.
    warnings
        What you may not have meant.
    trial
        What the first simulation showed; None: it did not run.
    """

    model: str
    scenario: str
    outputs: tuple[str, ...] | None
    targets: tuple[str, ...]
    project: str
    n_parameter_sets: int
    n_simulations: int
    warnings: tuple[str, ...]
    trial: Trial | None

    @property
    def reproducible(self) -> bool | None:
        """Whether the simulation and the targets gave the same results again; None: they did not run twice."""
        if self.trial is None or self.trial.warm_seconds is None:
            return None
        return self.trial.varying is None and not self.trial.varying_losses


def check(
    study: str | Path | Mapping[str, Any] | None = None,
    *,
    project: str | Path | None = None,
    env: Variables | None = None,
    python: str | Path | None = None,
    run: bool = True,
    settings: Settings | None = None,
    **parts: Unpack[StudyParts],
) -> CheckedStudy:
    """Check a study and its model, and store nothing, as ``mops study check`` does.

    mops runs the first simulation three times, a second replicate once, and each target twice.

    Parameters
    ----------
    study, project, env, python, settings
        As for :func:`mops.submit`.
    run
        Run a simulation; False: only import the model.
    **parts
        ``model``, ``targets``, ``sets``, ``replicates``, ``scenario`` and ``outputs``, as for :func:`mops.submit`.

    Returns
    -------
    CheckedStudy
        What submit would run, whether the model is reproducible, how long a simulation takes, and how large its outputs
        are.

    Raises
    ------
    UsageError
        The study, the project or the model is wrong.
    TrialFailed
        The simulation or a target failed.

    Examples
    --------
    >>> checked = mops.check(model=sir.simulate, sets=sets)
    >>> checked.reproducible, checked.trial.warm_seconds
    """
    settings = settings or Settings.from_environment()
    child = child_environment(dict(env or {}), None if python is None else str(python), install=settings.install)
    prepared = prepare(study_of_call(study, parts, "mops.check"), project, settings.storage)
    trial = try_model(prepared, settings, child) if run else None
    if trial is None:
        check_model(prepared, settings, child)
    else:
        raise_failure(trial)
    spec = prepared.spec
    return CheckedStudy(
        model=spec.model,
        scenario=spec.scenario,
        outputs=spec.outputs,
        targets=spec.targets,
        project=str(prepared.root),
        n_parameter_sets=len(prepared.study.groups),
        n_simulations=prepared.study.n_simulations,
        warnings=tuple(prepared.study.warnings),
        trial=trial,
    )
