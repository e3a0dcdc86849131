"""The environment, a free port, programs that tests need, and the result of a program that a test runs."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


def environment() -> dict[str, str]:
    """Return the variables of this process without those of mops and of its tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MODELOPS_", "MOPS_"))}


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def installed_once(name: str, install: Callable[[Path], None]) -> Path:
    """Return a folder outside the checkout in which ``install`` has put a program, once for all processes of tests."""
    home = Path.home() / ".cache" / "mops-tests" / name
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "installed").exists():
            install(home)
            (home / "installed").touch()
    return home


def installed_from_npm(name: str, version: str) -> Path:
    """Return the folder of a package of npm, after installing it if necessary. OSError: npm cannot install it."""

    def install(home: Path) -> None:
        command = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(home)]
        done = subprocess.run([*command, f"{name}@{version}"], capture_output=True, text=True, timeout=240)
        if done.returncode:
            raise OSError(f"npm cannot install {name}: {done.stderr[-500:]}")

    return installed_once(f"{name}-{version}", install) / "node_modules" / name


def cluster_program(name: str) -> str:
    """Return a program that k8s/testcluster/build makes, or that of the PATH. Without it, skip the test, or fail."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = Path(os.environ.get("MOPS_TESTCLUSTER_BIN") or cache / "mops-testcluster" / "bin", name)
    found = shutil.which(name) or (str(built) if os.access(built, os.X_OK) else None)
    if found is None and os.environ.get("MOPS_REQUIRE_K8S") == "1":
        pytest.fail(f"{name} is neither in the PATH nor {built}: k8s/testcluster/build makes it")
    if found is None:
        pytest.skip(f"{name} is missing: run k8s/testcluster/build")
    return found


@dataclass
class Ran:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def name(self) -> str:
        """The name of the job: stdout, as a script reads it."""
        return self.out.strip()
