"""Finds faults of accessibility with axe-core from npm, installed once into a cache outside the checkout."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

VERSION = "4.10.3"


class NoAxeError(Exception):
    """axe-core cannot be installed here."""


def script() -> Path:
    """Return the script of axe-core, after installing it if necessary."""
    npm = shutil.which("npm")
    if npm is None:
        raise NoAxeError("axe-core needs npm")
    home = Path.home() / ".cache" / "mops-tests" / f"axe-core-{VERSION}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not (home / "installed").exists():
            command = [npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(home)]
            done = subprocess.run([*command, f"axe-core@{VERSION}"], capture_output=True, text=True, timeout=240)
            if done.returncode:
                raise NoAxeError(f"npm cannot install axe-core: {done.stderr[-500:]}")
            (home / "installed").touch()
    return home / "node_modules" / "axe-core" / "axe.min.js"


def faults(page: Page) -> list[str]:
    """Return the serious and critical faults of a page, each with its elements."""
    page.evaluate(script().read_text())  # as an evaluation, because a page's policy may refuse script elements
    found = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:4]]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
