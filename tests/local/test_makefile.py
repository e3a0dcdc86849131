"""Which Python `make setup` chooses, and what `make help` lists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone without `.venv`, on a machine that has no Python yet."""
    for name in ("Makefile", "requirements.lock", "requirements-demo.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for name in ("make", "sh", "test", "rm", "echo", "touch"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "bin" / name).symlink_to(found)
    return tmp_path


def add_python(clone: Path, version: str, *, works: bool = True) -> Path:
    """Add an interpreter; one that does not work is a Python without the venv module, or a stub of pyenv."""
    path = clone / "bin" / f"python{version}"
    path.write_text(f"#!/bin/sh\n{f'echo python{version}' if works else 'exit 1'}\n")
    path.chmod(0o755)
    return path


def made_by(clone: Path, *arguments: str) -> str:
    """Return the interpreter with which `make setup` would make the environment."""
    ran = subprocess.run(
        [clone / "bin" / "make", "--dry-run", "setup", *arguments],
        cwd=clone,
        env={"PATH": str(clone / "bin")},
        check=True,
        capture_output=True,
        text=True,
    )
    found = re.search(r"^(\S+) -m venv \.venv$", ran.stdout, re.MULTILINE)
    return found[1] if found else ""


def test_the_newest_python_that_works_makes_the_environment(clone: Path) -> None:
    add_python(clone, "3.11")
    assert made_by(clone) == "python3.11", "a bare Debian 12"
    add_python(clone, "3.13")
    assert made_by(clone) == "python3.13"
    add_python(clone, "3.14", works=False)
    assert made_by(clone) == "python3.13", "Python 3.14 has no venv module"


def test_a_python_without_locked_wheels_is_used_only_if_it_is_named(clone: Path) -> None:
    add_python(clone, "3.12")
    add_python(clone, "3.15")
    assert made_by(clone) == "python3.12"
    assert made_by(clone, "PYTHON=python3.15") == "python3.15"


def test_a_machine_without_a_usable_python_is_told_what_to_install(clone: Path) -> None:
    """The message names the package, because make and Python would name neither."""
    add_python(clone, "3.10")
    add_python(clone, "3.12", works=False)
    ran = subprocess.run(
        ["make", "setup"], cwd=clone, env={"PATH": str(clone / "bin")}, capture_output=True, text=True, check=False
    )
    assert ran.returncode
    assert "needs one of Python 3.14 3.13 3.12 3.11, with its venv module: apt-get install" in ran.stdout
    assert not (clone / ".venv").exists()


def test_make_without_a_target_lists_all_targets() -> None:
    """Without the variables of a make around the tests, which would print the folders that it enters."""
    own = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
    ran = subprocess.run(["make"], cwd=ROOT, env=own, check=True, capture_output=True, text=True)
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    listed = [re.fullmatch(r"make (\S+) +\S.*", line) for line in ran.stdout.splitlines()]
    assert sorted(line[1] for line in listed if line) == sorted(phony[1].split())
    assert len(listed) == len(phony[1].split())
