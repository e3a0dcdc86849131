"""Finds faults of accessibility with axe-core from npm, installed once into a cache outside the checkout."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from programs import installed_from_npm

if TYPE_CHECKING:
    from playwright.sync_api import Page

VERSION = "4.10.3"


class NoAxeError(Exception):
    """axe-core cannot be installed here."""


def script() -> Path:
    """Return the script of axe-core, after installing it if necessary."""
    if shutil.which("npm") is None:
        raise NoAxeError("axe-core needs npm")
    try:
        return installed_from_npm("axe-core", VERSION) / "axe.min.js"
    except OSError as refused:
        raise NoAxeError(str(refused)) from refused


def faults(page: Page) -> list[str]:
    """Return the serious and critical faults of a page, each with its elements."""
    page.evaluate(script().read_text())  # as an evaluation, because a page's policy may refuse script elements
    found = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:4]]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
