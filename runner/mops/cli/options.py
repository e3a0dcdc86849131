"""Options and arguments that several commands share, and the panels of their help."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.errors import UsageError
from mops.options import COMMON

STUDY = "Study file (.json)"
AROUND = "Near the best sets of a job"

StorageOption = Annotated[
    str | None,
    typer.Option("--storage", metavar="FOLDER|URL", help="Use this folder or URL for results", rich_help_panel=COMMON),
]
LocalOption = Annotated[
    bool,
    typer.Option("--local", help="Use this machine's storage, not the connected service's", rich_help_panel=COMMON),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON", rich_help_panel=COMMON)]
WeightOption = Annotated[
    list[str] | None,
    typer.Option("--weight", metavar="LOSS=W", help="Set the weight of a loss, leave out the others; repeatable"),
]
OneTargetOption = Annotated[
    str | None, typer.Option("--target", metavar="TARGET", help="Rank by the losses of this target only")
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name")]


def read_weights(given: list[str] | None) -> dict[str, float] | None:
    """Return the weights of losses from texts like ``peak=2``; None: no text.

    Raises
    ------
    UsageError
        A text is not a label and a number.
    """
    weights: dict[str, float] = {}
    for text in given or []:
        label, _, number = text.rpartition("=")
        try:
            weights[label] = float(number)
        except ValueError:
            label = ""
        if not label:
            raise UsageError(f"{text!r} is not a weight", where="--weight", hint="write it like --weight peak=2")
    return weights or None


ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="MODULE:FUNCTION", help="Set the model", rich_help_panel=STUDY)
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="MODULE:FUNCTION", help="Add a target; repeatable", rich_help_panel=STUDY),
]
