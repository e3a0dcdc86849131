"""``mops init``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from mops.cli import terminal
from mops.options import Option
from mops.project.new_study import STUDY, Template, write_study


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the new study")] = Path(),
    template: Annotated[Template, Option("Write a model of this kind")] = Template.FUNCTION,
) -> None:
    """Make a new study from a template.

    The study has a model, a target and a study file, and runs at once. The templates starsim and mesa need the library
    of that name. The template subprocess runs a program in any language. The command replaces no file.

    Example:

        mops init walk --template class

    Exit codes: 0 the files are written, 2 wrong input, or a file exists.
    """
    new = write_study(folder, template)
    for name in new.files:
        terminal.data(str(folder / name))
    if new.missing:
        terminal.say(f"the model needs a library that is not installed: pip install {shlex.join(new.missing)}")
    terminal.say("next:")
    go = [f"cd {shlex.quote(str(folder))}"] if not folder.samefile(Path()) else []
    for command in (
        *go,
        f"mops study check {STUDY}",
        f"mops run {STUDY} --name first",
        "mops jobs results first --best 3",
    ):
        terminal.say(f"  {command}")
