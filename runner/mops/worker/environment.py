"""The environment of child processes: the worker's interpreter and variables, or those that the options name.

The variables are those of the worker, then those that ``--env`` names, then those of mops. The job stores
``--env NAME=VALUE``. ``--env NAME`` takes the value from the runner's environment at each start of the job, and mops
never stores, logs or shows that value.

The interpreter is the worker's, or that of ``--python``, which does not need mops. A child process needs Python, numpy
and pyarrow. The tests of child processes ran with the oldest versions that mops accepts (docs/internals/decisions.md).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from mops.child.leftovers import TEMPORARY_FOLDERS
from mops.errors import (
    ModelError,
    OptionsError,
    Problem,
    UsageError,
    absolute,
    path_fault,
    path_refused,
    printable_path,
)
from mops.task import JobContext

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
_HINT = "write --env NAME=VALUE to store a value with the job, or --env NAME to read it at each start"

START = str(Path(__file__).parents[1] / "child" / "start.py")
_PYTHON = Version("3.11")
_LIBRARIES = {"numpy": Version("1.23"), "pyarrow": Version("18.0")}
_PROBE_SECONDS = 120.0  # the first import from a network folder may take this long
_MARK = "mops-interpreter:"
# Every Python can run this, also 2.7, and then says what it lacks. It runs in an empty folder.
_PROBE = """
import json, sys
found = {"python": "%d.%d.%d" % sys.version_info[:3]}
for name in ("numpy", "pyarrow"):
    try:
        found[name] = __import__(name).__version__
    except BaseException as error:
        found[name] = [type(error).__name__, str(error)]
print("\\n%s%s" % ("MARK", json.dumps(found)))
""".replace("MARK", _MARK)


@dataclass(frozen=True)
class ChildEnvironment:
    """Checked variables and a checked interpreter."""

    env: dict[str, str] = field(default_factory=dict, repr=False)  # some values are secrets
    python: str | None = None  # the absolute path; None: the worker's own

    def of(self, context: JobContext) -> JobContext:
        """Return the context with this environment. mops installs nothing for an interpreter that the user names."""
        install_s = None if self.python else context.install_s
        return replace(context, env=self.env, python=self.python, install_s=install_s)


def given_variables(env: Variables | None) -> dict[str, str | None]:
    """Return the variables of a Python caller; None: there are none. UsageError: they are no mapping."""
    try:
        return dict(env or {})
    except (TypeError, ValueError) as bad:
        raise UsageError("env is no mapping", where="env", hint='write env={"NAME": "VALUE"}') from bad


def child_environment(
    env: Variables | None,
    python: str | Path | None,  # None: the worker's own
    *,
    where: str | None = None,  # names the job in errors
    install: str = "auto",  # MODELOPS_JOB_INSTALL
    environ: Mapping[str, str] | None = os.environ,  # has the values of names alone; None: another machine has them
) -> ChildEnvironment:
    """Check the variables and the interpreter of simulations. The interpreter starts once.

    Raises
    ------
    OptionsError
        The variables or the interpreter have problems. The error lists all of them.
    """
    env = env or {}
    problems = _variable_problems(env, environ)
    hint = _HINT if problems else None
    values: dict[str, str] = {}
    for name, value in env.items() if not problems else ():
        if value is not None:
            values[name] = value
        elif environ is not None:
            values[name] = environ[name]
    path = None
    if python is not None:
        try:  # links stay: the Python of a virtual environment is a link
            path = str(absolute(Path(python).expanduser()))
        except RuntimeError as bad:
            raise path_refused(python, "the interpreter", bad) from bad
        if wrong := _interpreter_problem(path, environment(values, n_threads=1, python=path)):
            problems.append(Problem(f"--python {printable_path(path)}", wrong))
        if install == "always":
            twice = "mops installs nothing into the interpreter that --python names; remove one of the two"
            problems.append(Problem("MODELOPS_JOB_INSTALL=always", twice))
    if problems:
        raise OptionsError(problems, where=where, hint=hint)
    return ChildEnvironment(values, path)


def environment(env: Mapping[str, str], *, n_threads: int, python: str | None) -> dict[str, str]:
    """Return the variables of a child process; ``python``: its interpreter, None: this process's own."""
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
            problems.append(_variable_problem(name, "the variable appears twice; remove one"))
        found[name] = value if equals else None
    if problems:
        raise OptionsError([*problems, *_variable_problems(found, os.environ)], hint=_HINT)
    return found


def _variable_problems(variables: Variables, environ: Mapping[str, str] | None) -> list[Problem]:
    """Return every reason why the model cannot get these variables."""
    wrong = ((name, _wrong_variable(name, value, environ)) for name, value in variables.items())
    return [_variable_problem(name, message) for name, message in wrong if message]


def _variable_problem(name: object, message: str) -> Problem:
    shown = str(name)
    if not _NAME.fullmatch(shown) and len(shown) > _SHOWN:  # it may be a secret, from --env "$TOKEN"
        shown = f"{shown[:_SHOWN_OF_LONG]}..."
    return Problem(f"--env {shown}".rstrip(), message)


def _wrong_variable(name: object, value: object, environ: Mapping[str, str] | None) -> str | None:
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


def command(python: str | None) -> list[str]:
    """Return the start of a child's command line; a module of mops and its arguments follow."""
    return [python or sys.executable, "-P", START]


def cannot_start(python: str, error: OSError, *, installed: bool = False) -> ModelError:
    """Return the error for an interpreter that cannot start; ``installed``: mops has made its environment."""
    named = "give --python a path that exists on every machine that runs simulations"
    made = "the environment that mops made was removed; mops jobs resume makes a new one"
    return ModelError(
        f"the interpreter of the simulations cannot be started: {error.strerror}",
        where=python,
        hint=made if installed else named,
    )


def _interpreter_problem(python: str, variables: Mapping[str, str]) -> str:
    """Start an interpreter, and return why it cannot run simulations; empty: it can."""
    path = Path(python)
    try:
        if path.is_dir():
            return "it is a folder; name the interpreter in it, like .venv/bin/python"
        if not path.exists():
            return "this file does not exist; name an interpreter, like .venv/bin/python"
        if not os.access(path, os.X_OK):
            return "it is not executable; name an interpreter, like .venv/bin/python"
    except OSError as bad:
        return f"it cannot be used: {path_fault(bad)}"
    answer = _probe(python, variables)
    if isinstance(answer, str):
        return answer
    if _is_older(answer["python"], _PYTHON):
        version = answer["python"]
        return f"it is Python {version}; simulations need {_PYTHON} or newer: make an environment with a newer one"
    if wrong := _wrong_libraries(answer):
        return f"{wrong}; install what simulations need: {python} -m pip install {libraries()}"
    return ""


def unfit(python: str, variables: Mapping[str, str]) -> str:
    """Start the interpreter of an environment that mops has made; return what it lacks, or an empty text."""
    answer = _probe(python, variables)
    return answer if isinstance(answer, str) else _wrong_libraries(answer)


def libraries() -> str:
    """Return the libraries that simulations need, as arguments of pip."""
    return " ".join(f"'{name}>={_LIBRARIES[name]}'" for name in ("pyarrow", "numpy"))


def _probe(python: str, variables: Mapping[str, str]) -> dict[str, Any] | str:
    """Return the interpreter's versions, or a text that says why it gives none."""
    try:
        with tempfile.TemporaryDirectory(prefix="mops-") as empty:
            ran = subprocess.run(  # noqa: S603 - the user's interpreter, no shell
                [python, "-c", _PROBE],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=empty,
                env=dict(variables),
                timeout=_PROBE_SECONDS,
                check=False,
            )
    except OSError as error:
        return f"it cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"it did not answer within {_PROBE_SECONDS:g} s"
    _, marked, answer = ran.stdout.decode(errors="replace").rpartition(_MARK)
    if marked:
        return dict(json.loads(answer))
    said = (ran.stderr or ran.stdout).decode(errors="replace").strip().rpartition("\n")[2]
    return f"it is not a Python interpreter: it exited with code {ran.returncode} and printed {said[:60]!r}"


def _wrong_libraries(answer: dict[str, Any]) -> str:
    wrong = []
    for name, needed in _LIBRARIES.items():
        found: str | list[str] = answer[name]
        if isinstance(found, list):
            kind, message = found
            is_absent = kind in ("ModuleNotFoundError", "ImportError") and message == f"No module named {name!r}"
            imported = f"its {name} cannot be imported ({kind}: {message[:200]})"
            wrong.append(f"it has no {name}" if is_absent else imported)
        elif _is_older(found, needed):
            wrong.append(f"its {name} is {found}, and simulations need {needed} or newer")
    return "; ".join(wrong)


def _is_older(found: str, needed: Version) -> bool:
    """Tell whether a version is older than another; a preview of a release counts as that release."""
    try:
        return Version(found).release < needed.release
    except InvalidVersion:
        return True
