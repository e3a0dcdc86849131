"""``mops settings``."""

from __future__ import annotations

from dataclasses import asdict

from mops.cli import terminal
from mops.cli.jobs_submit import JsonOption
from mops.settings import Settings


def settings(as_json: JsonOption = False) -> None:
    """List every setting: its value, where the value comes from, and what it means."""
    lines = Settings.from_environment().described()
    if as_json:
        terminal.data_json([asdict(line) for line in lines])
        return
    width = max(len(line.name) for line in lines)
    for line in lines:
        terminal.data(f"{line.name:<{width}}  {line.value!s:<12} {line.source:<12} {line.meaning}")
