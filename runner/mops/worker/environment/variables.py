"""The variables of a child's environment: its worker's, on top what ``--env`` names, and on top of that mops's own.

``--env NAME=VALUE`` is kept with the job. ``--env NAME`` takes the value from the runner's environment each time that
the job runs; such a value is never stored, logged or said. Which interpreter gets them is
:mod:`mops.worker.environment.interpreter`'s.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from mops.errors import OptionsError, Problem

Variables = Mapping[str, str | None]
"""What ``--env`` names: a value, or None: from the runner's environment."""

_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "MOPS_CHILD_THREADS",
)
_HASH_SEED = "PYTHONHASHSEED"
# They tell a Python where its libraries are: those of the worker's are not for another interpreter.
_OF_ONE_PYTHON = ("PYTHONHOME", "PYTHONPATH")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOR_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CONNECTION_STRING")
_SHOWN, _SHOWN_OF_LONG = 16, 4  # characters of what is no name
HINT = "--env NAME=VALUE is kept with the job; --env NAME takes the value from the environment each time that it runs"


def environment(env: Mapping[str, str], *, n_threads: int, python: str | None) -> dict[str, str]:
    """Return what a child's environment is to be.

    Parameters
    ----------
    env
        Variables for the model.
    n_threads
        Threads that a simulation may use.
    python
        The child's interpreter; None: this process's own.
    """
    dropped = _OF_ONE_PYTHON if python else ()
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**inherited, **env, **dict.fromkeys(_THREAD_LIMITS, str(n_threads)), _HASH_SEED: "0"}


def read_variables(given: Iterable[str]) -> dict[str, str | None]:
    """Return what ``NAME`` and ``NAME=VALUE`` say.

    Raises
    ------
    OptionsError
        Every problem of all of them.
    """
    found: dict[str, str | None] = {}
    problems: list[Problem] = []
    for text in given:
        name, equals, value = text.partition("=")
        if name in found:
            problems.append(_problem(name, "it is given twice; keep one"))
        found[name] = value if equals else None
    if problems:
        raise OptionsError([*problems, *problems_of(found)], hint=HINT)
    return found


def problems_of(variables: Variables, environ: Mapping[str, str] | None = os.environ) -> list[Problem]:
    """Return every reason why the model cannot be given these variables.

    Parameters
    ----------
    variables
        What ``--env`` names.
    environ
        Where a name alone takes its value from; None: from the environment of another machine, so that only the name
        is checked.
    """
    wrong = ((name, _wrong(name, value, environ)) for name, value in variables.items())
    return [_problem(name, message) for name, message in wrong if message]


def values_of(variables: Variables, environ: Mapping[str, str] | None = os.environ) -> dict[str, str]:
    """Return the value of each variable that has one here; :func:`problems_of` has found no problem."""
    if environ is None:
        return {name: value for name, value in variables.items() if value is not None}
    return {name: environ[name] if value is None else value for name, value in variables.items()}


def _problem(name: object, message: str) -> Problem:
    shown = str(name)
    if not _NAME.fullmatch(shown) and len(shown) > _SHOWN:  # perhaps a secret's value, from --env "$TOKEN"
        shown = f"{shown[:_SHOWN_OF_LONG]}..."
    return Problem(f"--env {shown}".rstrip(), message)


def _wrong(name: object, value: object, environ: Mapping[str, str] | None) -> str | None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "no name of a variable: it has letters, digits and underscores, and begins with no digit"
    if reserved := _reserved(name):
        return reserved
    if value is None:
        is_there = environ is None or name in environ
        return None if is_there else "it is not set in this environment; set it, or write NAME=VALUE"
    if any(word in name.upper() for word in _FOR_SECRETS):
        return f"values of such names are secrets and are not kept with a job; write --env {name}, and set it here"
    if not isinstance(value, str):
        return f"its value is a {type(value).__name__}; write it as a string"
    return None if _is_text(value) else "its value is not text: it has bytes that are not UTF-8, or a null character"


def _reserved(name: str) -> str | None:
    if name in _THREAD_LIMITS:
        return "mops sets it for each simulation, from MODELOPS_JOB_SIM_THREADS; set that in the environment instead"
    if name == _HASH_SEED:
        return "mops sets it to 0 for each simulation, so that sets have the same order in each"
    if name.startswith("MODELOPS_"):
        return "it is a setting of mops, not of the model; set it in the environment of the command instead"
    return None


def _is_text(value: str) -> bool:
    return "\0" not in value and value == value.encode(errors="ignore").decode()
