"""Runs real commands in real processes on a project, as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mops.service.profile import DEFAULT, Profile, save, use
from programs import Ran
from warm import WarmProcess, warm, warm_for

Process = subprocess.Popen[str] | WarmProcess
MOPS = Path(sys.executable).with_name("mops")
MODEL = """
import time

def run(params, seed):
    print("a model prints")
    time.sleep(params.get("sleep", 0))
    if params["x"] < 0:
        raise ValueError("x is negative")
    return {"daily": {"day": [0, 1], "y": [params["x"], params["x"] + 1.5]}, "summary": {"total": [seed]}}

def two_candidates(params, seed):
    return 1

NOT_A_FUNCTION = 3

def no_arguments():
    return {}

def score(params, replicates):
    return {"rmse": params["x"] * len(replicates)}
"""


@dataclass
class CommandLab:
    """A project folder, a storage, and the command."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def storage(self) -> Path:
        return self.root / "storage"

    @property
    def study(self) -> Path:
        return self.project / "study.json"

    def write(self, name: str, text: str) -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def write_study(self, **fields: Any) -> Path:
        study = {"model": "model:run", "parameter_sets": [{"x": 1}, {"x": 2}], "n_replicates": 2} | fields
        return self.write("study.json", json.dumps({key: value for key, value in study.items() if value is not ...}))

    def start(self, *arguments: object, cwd: Path | None = None, **variables: str) -> Process:
        """Start a command with pipes. ``PYTHON*`` variables need a fresh interpreter: Python reads them at start."""
        if any(name.startswith("PYTHON") for name in variables):
            return self.start_cold(*arguments, cwd=cwd, **variables)
        words = [*map(str, arguments)]
        return warm_for(words).start_with_pipes(words, self.environment | variables, cwd or self.root)

    def start_cold(self, *arguments: object, cwd: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        """Start a command as a shell does."""
        return subprocess.Popen(
            [MOPS, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd or self.root,
            env=self.environment | variables,
        )

    def run(self, *arguments: object, cwd: Path | None = None, **variables: str) -> Ran:
        """Run a command to its end."""
        if any(name.startswith("PYTHON") for name in variables):
            return self.run_cold(*arguments, cwd=cwd, **variables)
        words = [*map(str, arguments)]
        return Ran(*warm_for(words).run(words, self.environment | variables, cwd or self.root, timeout_s=60))

    def run_cold(self, *arguments: object, cwd: Path | None = None, **variables: str) -> Ran:
        """Run a command as a shell does."""
        with self.start_cold(*arguments, cwd=cwd, **variables) as process:
            try:
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
        return Ran(process.returncode, out, err)

    def at_a_terminal(self, *arguments: str, answer: str = "") -> tuple[int, str]:
        """Run a command on a pseudo-terminal, and answer its question; return its exit code and all its output."""
        ours, theirs = os.openpty()
        environment = self.environment | {"COLUMNS": "80", "TERM": "xterm"}
        with os.fdopen(theirs, "r+b", buffering=0) as file:
            process = warm().start([*arguments], environment, self.root, out=file, err=file, terminal=file)
        shown = b""
        with suppress(OSError):  # Linux raises EIO when the last writer has closed
            while piece := os.read(ours, 4096):
                shown += piece
                if b"[y/N] " in shown and answer:
                    os.write(ours, answer.encode())
                    answer = ""
        code = process.wait(60)
        os.close(ours)
        return code, shown.decode()

    def submit(self, *arguments: object, **variables: str) -> Ran:
        return self.run("jobs", "submit", self.study, *arguments, **variables)

    def connect(self, profile: Profile) -> None:
        """Save a profile in the folder that the commands read."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", self.environment["XDG_CONFIG_HOME"])
            save(profile)
            use(DEFAULT)

    def stored(self) -> list[str]:
        """Return every file in the storage."""
        return sorted(path.relative_to(self.storage).as_posix() for path in self.storage.rglob("*") if path.is_file())


def make_lab(root: Path, cache: Path) -> CommandLab:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MODELOPS_", "AZURE_", "MOPS_"))}
    # A fixed width, so that assertions do not depend on the terminal of the test run.
    folders = {
        "XDG_CACHE_HOME": str(cache),
        "XDG_STATE_HOME": str(root / "state"),
        "XDG_CONFIG_HOME": str(root / "config"),  # the developer may be connected to a service
    }
    lab = CommandLab(root, clean | folders | {"MODELOPS_STORAGE": str(root / "storage"), "COLUMNS": "100"})
    lab.write("mops.toml", "")
    lab.write("model.py", MODEL)
    lab.write_study()
    return lab
