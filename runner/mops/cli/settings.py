"""``mops settings``."""

from __future__ import annotations

from dataclasses import asdict

from mops.cli import terminal
from mops.cli.options import JsonOption, LocalOption
from mops.jobs.location import described, locate
from mops.settings import Settings


def settings(local: LocalOption = False, as_json: JsonOption = False) -> None:
    """List every setting, its value, its source and its meaning.

    The first line is the service that commands use.

    Example:

        mops settings
    """
    lines = described(Settings.from_environment(), locate(local=local))
    if as_json:
        terminal.data_json([asdict(line) for line in lines])
        return
    rows = [(line.name, line.text, line.source, line.meaning) for line in lines]
    terminal.data_table(("variable", "value", "from", "meaning"), rows)
