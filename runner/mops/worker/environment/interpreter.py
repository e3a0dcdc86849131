"""The interpreter of the children: the worker's own, or one that ``--python`` names, which needs no mops.

What a child needs of it is Python, numpy and pyarrow; the oldest versions are those with which the tests of children
were run (docs/decisions.md).
"""

from __future__ import annotations

import difflib
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

from mops.errors import ModelError, Problem, path_fault, path_refused, printable_path

NEEDED = {"python": Version("3.11"), "numpy": Version("1.23"), "pyarrow": Version("18.0")}
START = str(Path(__file__).parents[2] / "child" / "start.py")
_ANSWER_SECONDS = 120.0  # the first import from a network folder may take this long
_MARK = "mops-interpreter:"
# Any Python reads this, 2.7 too: what it cannot do, it is to tell. The folder that it runs in holds nothing to import.
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
    """Return how a child is started; a module of mops and its arguments follow.

    Parameters
    ----------
    python
        The interpreter; None: this process's own.
    """
    return [python or sys.executable, "-P", START]


def cannot_start(python: str, error: OSError, *, installed: bool = False) -> ModelError:
    """Return what to say where a job's interpreter was found and cannot be started now.

    Parameters
    ----------
    installed
        Whether it is that of an environment that mops has made.
    """
    named = "--python names a path that is there on every machine that runs simulations"
    made = "somebody has removed what mops had made there; mops jobs resume makes it anew"
    return ModelError(
        f"the interpreter of the simulations cannot be started: {error.strerror}",
        where=python,
        hint=made if installed else named,
    )


def absolute(python: str | Path) -> str:
    """Return the path that is kept with a job: absolute, links kept (a virtual environment's Python is one)."""
    try:
        return str(Path(python).expanduser().absolute())
    except RuntimeError as bad:
        raise path_refused(python, "the interpreter", bad) from bad


def problems_of(python: str, environment: Mapping[str, str]) -> list[Problem]:
    """Start an interpreter, and return every reason why it cannot run simulations.

    Parameters
    ----------
    python
        Its absolute path.
    environment
        The variables that children get.
    """
    try:
        wrong = list(_wrong(python, environment))
    except OSError as bad:
        wrong = [f"it cannot be used: {path_fault(bad)}"]
    return [Problem(f"--python {printable_path(python)}", message) for message in wrong]


def _wrong(python: str, environment: Mapping[str, str]) -> Iterator[str]:
    path = Path(python)
    if path.is_dir():
        yield "it is a folder; name the interpreter in it" + _near(path)
    elif not path.exists():
        yield "there is no such file" + _elsewhere(path)
    elif not os.access(path, os.X_OK):
        yield "it may not be executed; name an interpreter, like .venv/bin/python"
    else:
        answer = _ask(python, environment)
        yield from [answer] if isinstance(answer, str) else _lacking(python, answer)


def _near(folder: Path) -> str:
    inside = folder / "bin" / "python"
    return f": {inside}" if inside.exists() else ", like .venv/bin/python"


def _elsewhere(path: Path) -> str:
    """Advise on a path that leads nowhere: a command's name, or a near one in the same folder."""
    if path.parent == Path.cwd() and (found := shutil.which(path.name)):
        return f"; did you mean {found}?"
    there = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, there, 1)
    return f"; did you mean {path.parent / near[0]}?" if near else "; name an interpreter, like .venv/bin/python"


def _ask(python: str, environment: Mapping[str, str]) -> dict[str, Any] | str:
    """Return what the interpreter answers, or what is wrong with it."""
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
        return f"it did not answer within {_ANSWER_SECONDS:g} s; does it wait for something?"
    _, marked, answer = ran.stdout.decode(errors="replace").rpartition(_MARK)
    if marked:
        return dict(json.loads(answer))
    said = (ran.stderr or ran.stdout).decode(errors="replace").strip().rpartition("\n")[2]
    return f"it is no Python: asked for its version, it ended with exit code {ran.returncode} and said {said[:120]!r}"


def _lacking(python: str, answer: dict[str, Any]) -> Iterator[str]:
    """Say what an interpreter lacks that answered."""
    if _is_older(answer["python"], NEEDED["python"]):
        version, needed = answer["python"], NEEDED["python"]
        yield f"it is Python {version}; simulations need {needed} or newer: make an environment with a newer one"
        return
    wrong = _wrong_libraries(answer)
    if wrong:
        yield f"{wrong}; install what simulations need: {python} -m pip install {libraries()}"


def libraries() -> str:
    """Return what simulations need besides Python, as pip's arguments."""
    return " ".join(f"'{name}>={NEEDED[name]}'" for name in ("pyarrow", "numpy"))


def unfit(python: str, environment: Mapping[str, str]) -> str:
    """Start the interpreter of an environment that mops has made; return what it lacks, or nothing.

    Parameters
    ----------
    python
        Its absolute path.
    environment
        The variables that children get.
    """
    answer = _ask(python, environment)
    return answer if isinstance(answer, str) else _wrong_libraries(answer)


def _wrong_libraries(answer: dict[str, Any]) -> str:
    return "; ".join(text for name in ("numpy", "pyarrow") if (text := _wrong_library(name, answer[name])))


def _wrong_library(name: str, found: str | list[str]) -> str | None:
    if isinstance(found, list):
        kind, message = found
        absent = kind in ("ModuleNotFoundError", "ImportError") and message == f"No module named {name!r}"
        return f"it has no {name}" if absent else f"its {name} cannot be imported ({kind}: {message[:200]})"
    if _is_older(found, NEEDED[name]):
        return f"its {name} is {found}, and simulations need {NEEDED[name]} or newer"
    return None


def _is_older(found: str, needed: Version) -> bool:
    """Tell whether a version is older than another; a preview of a release counts as that release."""
    try:
        return Version(found).release < needed.release
    except InvalidVersion:
        return True
