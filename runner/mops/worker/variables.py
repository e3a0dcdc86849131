"""The variables of a child process: those of its worker, then those that ``--env`` names, then those of mops.

The job stores ``--env NAME=VALUE``. ``--env NAME`` takes the value from the runner's environment at each start of the
job, and mops never stores, logs or shows that value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from mops.child.leftovers import TEMPORARY_FOLDERS
from mops.errors import OptionsError, Problem

Variables = Mapping[str, str | None]  # None as a value: the runner's environment has the value

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
_RESERVED = {
    **dict.fromkeys(
        _THREAD_LIMITS, "mops sets it for each simulation; set MODELOPS_JOB_SIM_THREADS in the environment instead"
    ),
    _HASH_SEED: "mops sets it to 0, so that Python sets have the same order in each simulation",
    **dict.fromkeys(
        TEMPORARY_FOLDERS,
        "mops sets it for each process; set TMPDIR in the environment of the command, or of the workers, instead",
    ),
}
# Where a Python finds its libraries: the worker's values are wrong for another interpreter.
_OF_ONE_PYTHON = ("PYTHONHOME", "PYTHONPATH")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOR_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CONNECTION_STRING")
_SHOWN, _SHOWN_OF_LONG = 16, 4  # characters of an invalid name
HINT = "write --env NAME=VALUE to store a value with the job, or --env NAME to read it at each start"


def environment(env: Mapping[str, str], *, n_threads: int, python: str | None) -> dict[str, str]:
    """Return the environment of a child process; ``python``: its interpreter, None: this process's own."""
    dropped = _OF_ONE_PYTHON if python else ()
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**inherited, **env, **dict.fromkeys(_THREAD_LIMITS, str(n_threads)), _HASH_SEED: "0"}


def read_variables(given: Iterable[str]) -> dict[str, str | None]:
    """Return the variables that ``NAME`` and ``NAME=VALUE`` give, or raise an OptionsError with every problem."""
    found: dict[str, str | None] = {}
    problems: list[Problem] = []
    for text in given:
        name, equals, value = text.partition("=")
        if name in found:
            problems.append(_problem(name, "the variable appears twice; remove one"))
        found[name] = value if equals else None
    if problems:
        raise OptionsError([*problems, *problems_of(found)], hint=HINT)
    return found


def problems_of(variables: Variables, environ: Mapping[str, str] | None = os.environ) -> list[Problem]:
    """Return every reason why the model cannot get these variables.

    ``environ`` has the values of names alone; None: another machine has them, and mops checks only the names.
    """
    wrong = ((name, _wrong(name, value, environ)) for name, value in variables.items())
    return [_problem(name, message) for name, message in wrong if message]


def values_of(variables: Variables, environ: Mapping[str, str] | None = os.environ) -> dict[str, str]:
    """Return the variables that have a value here; :func:`problems_of` must have found no problem."""
    if environ is None:
        return {name: value for name, value in variables.items() if value is not None}
    return {name: environ[name] if value is None else value for name, value in variables.items()}


def _problem(name: object, message: str) -> Problem:
    shown = str(name)
    if not _NAME.fullmatch(shown) and len(shown) > _SHOWN:  # it may be a secret, from --env "$TOKEN"
        shown = f"{shown[:_SHOWN_OF_LONG]}..."
    return Problem(f"--env {shown}".rstrip(), message)


def _wrong(name: object, value: object, environ: Mapping[str, str] | None) -> str | None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "not the name of a variable: use letters, digits and underscores, and do not start with a digit"
    if name in _RESERVED:
        return _RESERVED[name]
    if name.startswith("MODELOPS_"):
        return "a setting of mops, not of the model; set it in the environment of the command instead"
    if value is None:
        is_there = environ is None or name in environ
        return None if is_there else "not set in this environment; set it, or write NAME=VALUE"
    if any(word in name.upper() for word in _FOR_SECRETS):
        return f"the name looks like a secret, and jobs do not store secrets; write --env {name}, and set it here"
    if not isinstance(value, str):
        return f"the value is a {type(value).__name__}; write a string"
    is_text = "\0" not in value and value == value.encode(errors="ignore").decode()
    return None if is_text else "the value is not UTF-8 text without null characters"
