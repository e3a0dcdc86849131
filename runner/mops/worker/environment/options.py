"""Checks the variables and the interpreter of a job's simulations together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mops.errors import OptionsError, Problem
from mops.task import JobContext
from mops.worker.environment import interpreter, variables
from mops.worker.environment.variables import Variables

_INSTALLED_TWICE = Problem(
    "MODELOPS_JOB_INSTALL=always",
    "mops installs nothing into the interpreter that --python names; remove one of the two",
)


@dataclass(frozen=True)
class ChildEnvironment:
    """Checked variables and a checked interpreter.

    Parameters
    ----------
    env
        Variables with their values. Some are secrets.
    python
        The absolute path of the interpreter; None: the worker's own.
    """

    env: dict[str, str] = field(default_factory=dict, repr=False)
    python: str | None = None

    def of(self, context: JobContext) -> JobContext:
        """Return the context with this environment. mops installs nothing for an interpreter that the user names."""
        install_s = None if self.python else context.install_s
        return replace(context, env=self.env, python=self.python, install_s=install_s)


def child_environment(
    env: Variables | None,
    python: str | Path | None,
    *,
    where: str | None = None,
    install: str = "auto",
    environ: Mapping[str, str] | None = os.environ,
) -> ChildEnvironment:
    """Check the variables and the interpreter of simulations. The interpreter starts once.

    Parameters
    ----------
    env
        Variables for the model; None as a value: ``environ`` has the value.
    python
        The interpreter; None: the worker's own.
    where
        Names the job in errors.
    install
        MODELOPS_JOB_INSTALL.
    environ
        As for :func:`mops.worker.environment.variables.problems_of`.

    Raises
    ------
    OptionsError
        The variables or the interpreter have problems. The error lists all of them.
    """
    problems = variables.problems_of(env or {}, environ)
    hint = variables.HINT if problems else None
    values = variables.values_of(env or {}, environ) if not problems else {}
    path = interpreter.absolute(python) if python is not None else None
    if path is not None:
        problems += interpreter.problems_of(path, variables.environment(values, n_threads=1, python=path))
        problems += [_INSTALLED_TWICE] if install == "always" else []
    if problems:
        raise OptionsError(problems, where=where, hint=hint)
    return ChildEnvironment(values, path)
