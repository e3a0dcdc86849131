"""``mops jobs compare``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mops.cli import terminal
from mops.cli.options import JsonOption, LocalOption, StorageOption
from mops.jobs.compare import Comparison
from mops.jobs.compare import compare as compare_jobs
from mops.jobs.job import open_job


def compare(
    first: Annotated[str, typer.Argument(metavar="JOB", help="The name of a job")],
    second: Annotated[str, typer.Argument(metavar="OTHER", help="The name of the other job")],
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Count what differs between the results of two jobs.

    It compares parameter sets, seeds, rows and losses. Simulations with the same parameters and seed belong together.
    Exit code 0: the results are equal; 1: they differ.

    Example:

        mops jobs compare waves waves-mended
    """
    found = compare_jobs(open_job(first, storage, local=local), open_job(second, storage, local=local))
    if as_json:
        terminal.data_json([asdict(one) for one in found])
    else:
        _show(found, first, second)
    if not all(one.is_equal for one in found):
        raise typer.Exit(1)


def _show(found: list[Comparison], first: str, second: str) -> None:
    rows = [(one.what, *map("{:,}".format, (one.same, one.different, one.only_a, one.only_b))) for one in found]
    numbers = ("equal", "different", f"only {first}", f"only {second}")
    terminal.data_table(("", *numbers), rows, right=numbers)
    for one in found:
        for example in one.examples:
            terminal.say(f"{one.what}: {example}")
