"""The interpreter of the child processes: the worker's, or that of ``--python``, which does not need mops.

A child process needs Python, numpy and pyarrow. The tests of child processes ran with the oldest versions that mops
accepts (docs/internals/decisions.md).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from mops.errors import ModelError, Problem, nearest, path_fault, path_refused, printable_path

NEEDED = {"python": Version("3.11"), "numpy": Version("1.23"), "pyarrow": Version("18.0")}
START = str(Path(__file__).parents[1] / "child" / "start.py")
_ANSWER_SECONDS = 120.0  # the first import from a network folder may take this long
_MARK = "mops-interpreter:"
_LIKE = ", like .venv/bin/python"
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


def absolute(python: str | Path) -> str:
    """Return the absolute path to store with a job. Links stay: the Python of a virtual environment is a link."""
    try:
        return str(Path(python).expanduser().absolute())
    except RuntimeError as bad:
        raise path_refused(python, "the interpreter", bad) from bad


def problems_of(python: str, environment: Mapping[str, str]) -> list[Problem]:
    """Start an interpreter, and return every reason why it cannot run simulations."""
    try:
        wrong = list(_wrong(python, environment))
    except OSError as bad:
        wrong = [f"it cannot be used: {path_fault(bad)}"]
    return [Problem(f"--python {printable_path(python)}", message) for message in wrong]


def _wrong(python: str, environment: Mapping[str, str]) -> Iterator[str]:
    path = Path(python)
    if path.is_dir():
        inside = path / "bin" / "python"
        yield f"it is a folder; name the interpreter in it{f': {inside}' if inside.exists() else _LIKE}"
    elif not path.exists():
        yield "this file does not exist" + _elsewhere(path)
    elif not os.access(path, os.X_OK):
        yield f"it is not executable; name an interpreter{_LIKE}"
    else:
        answer = _ask(python, environment)
        if isinstance(answer, str):
            yield answer
        elif _is_older(answer["python"], NEEDED["python"]):
            version, needed = answer["python"], NEEDED["python"]
            yield f"it is Python {version}; simulations need {needed} or newer: make an environment with a newer one"
        elif wrong := _wrong_libraries(answer):
            yield f"{wrong}; install what simulations need: {python} -m pip install {libraries()}"


def _elsewhere(path: Path) -> str:
    """Return advice for a path that does not exist: a command of this name, or a similar name in the same folder."""
    if path.parent == Path.cwd() and (found := shutil.which(path.name)):
        return f"; did you mean {found}?"
    there = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, there)
    return f"; did you mean {path.parent / near}?" if near else f"; name an interpreter{_LIKE}"


def _ask(python: str, environment: Mapping[str, str]) -> dict[str, Any] | str:
    """Return the interpreter's versions, or a text that says why it gives none."""
    try:
        with tempfile.TemporaryDirectory(prefix="mops-") as empty:
            ran = subprocess.run(  # noqa: S603 - the user's interpreter, no shell
                [python, "-c", _PROBE],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=empty,
                env=dict(environment),
                timeout=_ANSWER_SECONDS,
                check=False,
            )
    except OSError as error:
        return f"it cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"it did not answer within {_ANSWER_SECONDS:g} s"
    _, marked, answer = ran.stdout.decode(errors="replace").rpartition(_MARK)
    if marked:
        return dict(json.loads(answer))
    said = (ran.stderr or ran.stdout).decode(errors="replace").strip().rpartition("\n")[2]
    return f"it is not a Python interpreter: it exited with code {ran.returncode} and printed {said[:60]!r}"


def libraries() -> str:
    """Return the libraries that simulations need, as arguments of pip."""
    return " ".join(f"'{name}>={NEEDED[name]}'" for name in ("pyarrow", "numpy"))


def unfit(python: str, environment: Mapping[str, str]) -> str:
    """Start the interpreter of an environment that mops has made; return what it lacks, or an empty text."""
    answer = _ask(python, environment)
    return answer if isinstance(answer, str) else _wrong_libraries(answer)


def _wrong_libraries(answer: dict[str, Any]) -> str:
    wrong = []
    for name in ("numpy", "pyarrow"):
        found: str | list[str] = answer[name]
        if isinstance(found, list):
            kind, message = found
            is_absent = kind in ("ModuleNotFoundError", "ImportError") and message == f"No module named {name!r}"
            imported = f"its {name} cannot be imported ({kind}: {message[:200]})"
            wrong.append(f"it has no {name}" if is_absent else imported)
        elif _is_older(found, NEEDED[name]):
            wrong.append(f"its {name} is {found}, and simulations need {NEEDED[name]} or newer")
    return "; ".join(wrong)


def _is_older(found: str, needed: Version) -> bool:
    """Tell whether a version is older than another; a preview of a release counts as that release."""
    try:
        return Version(found).release < needed.release
    except InvalidVersion:
        return True
