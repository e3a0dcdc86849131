"""The command ``mops``: which verbs there are, and how an error becomes an exit code."""

from __future__ import annotations

import pkgutil
import sys
from collections import UserDict
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import mops
from mops.cli import terminal
from mops.cli.interrupt import interruptible
from mops.errors import MopsError

VERBS: Mapping[str, Mapping[str, str]] = {
    "": {
        "connect": "mops.cli.service.connect:connect",
        "dashboard": "mops.cli.service.dashboard:dashboard",
        "settings": "mops.cli.settings:settings",
        "doctor": "mops.cli.service.doctor:doctor",
    },
    "jobs": {
        "submit": "mops.cli.jobs.submit:submit",
        "list": "mops.cli.jobs.list:list_",
        "status": "mops.cli.jobs.status:status",
        "logs": "mops.cli.jobs.logs:logs",
        "watch": "mops.cli.jobs.watch:watch",
        "results": "mops.cli.jobs.results:results",
        "resume": "mops.cli.jobs.resume:resume",
        "cancel": "mops.cli.jobs.cancel:cancel",
        "retry": "mops.cli.jobs.retry:retry",
        "run": "mops.cli.jobs.run:run",
        "verify": "mops.cli.jobs.verify:verify",
        "clean": "mops.cli.jobs.clean:clean",
        "delete": "mops.cli.jobs.delete:delete_",
    },
    "study": {"check": "mops.cli.study.check:check", "sample": "mops.cli.study.sample:sample"},
    "cluster": {"status": "mops.cli.service.status:status"},
}
"""Where the verbs of each group are."""

_NOT_FOR_PEOPLE = frozenset({"run"})  # it is for Kubernetes, and for what is detached


class _Verbs(UserDict[str, Any]):
    """The commands of a group by name; a verb is imported when it is looked up, because all of them take a second."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, str):
            found = self[name] = _command(name, found)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command; Mapping's own would take a KeyError of an import for a verb that there is not."""
        if name not in self:
            return default
        return self[name]


def _command(name: str, where: str) -> TyperCommand:
    with interruptible():
        verb = pkgutil.resolve_name(where)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name, hidden=name in _NOT_FOR_PEOPLE)(verb)
    command = get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


class _Group(TyperGroup):
    """A group with its own of ``VERBS``."""

    def __init__(self, **given: Any):
        super().__init__(**given)
        self.commands = _Verbs({**VERBS[self.name or ""], **self.commands})


app = typer.Typer(
    cls=_Group,
    help="Run simulation studies: bounded memory, durable as they go, resumed where they were killed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group, help_ in {
    "jobs": "Run studies and read what they gave.",
    "study": "Look at a study before it runs.",
    "cluster": "Look at the connected cluster service.",
}.items():
    app.add_typer(typer.Typer(cls=_Group, help=help_, no_args_is_help=True, rich_markup_mode=None), name=group)


def _version(asked: bool) -> None:
    if asked:
        terminal.data(f"mops {mops.__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version_asked: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True, help="Say more: -v INFO, -vv DEBUG.")] = 0,
) -> None:
    """Set up what every verb needs."""
    terminal.set_up_logging(verbose)


def main() -> None:
    """Run the command line. Errors of mops are three lines; anything else is a bug and keeps its traceback."""
    try:
        app()
    except MopsError as error:
        terminal.error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        terminal.say("stopped")
        sys.exit(130)
