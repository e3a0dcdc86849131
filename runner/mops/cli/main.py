"""The command ``mops``: its verbs, and how an error becomes an exit code."""

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
from mops.cli.options import ADVANCED, COMMON, SERVICE, STUDY
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
"""The function of each verb, by group."""

_HIDDEN = frozenset({"run"})  # Kubernetes and detached processes run it


class _Verbs(UserDict[str, Any]):
    """The commands of a group by name. A lookup imports the verb.

    bench/tricks.py, mops jobs status: -46 % of CPU time, -18 % of memory.
    """

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, str):
            found = self[name] = _command(name, found)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command. Mapping.get would hide a KeyError of the verb's import."""
        if name not in self:
            return default
        return self[name]


def _command(name: str, where: str) -> TyperCommand:
    with interruptible():
        verb = pkgutil.resolve_name(where)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name, cls=_Command, hidden=name in _HIDDEN)(verb)
    command = get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


class _Command(TyperCommand):
    """A command whose plain help has a section for each panel of options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the command's options, and then the panels of shared options."""
        sections: dict[str, list[tuple[str, str]]] = {
            title: [] for title in ("Arguments", "Options", STUDY, COMMON, SERVICE, ADVANCED)
        }
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections[getattr(parameter, "rich_help_panel", None) or title].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class _Group(TyperGroup):
    """A group with its verbs of ``VERBS``."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self.commands = _Verbs({**VERBS[self.name or ""], **self.commands})


app = typer.Typer(
    cls=_Group,
    help="""Run simulation studies with bounded memory and durable results.

    Example:

        mops study check study.json

        mops jobs submit study.json --name waves

        mops jobs results waves
    """,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group, (summary, example) in {
    "jobs": ("Run studies and read their results.", "mops jobs submit study.json --name waves"),
    "study": ("Prepare a study before it runs.", "mops study check study.json"),
    "cluster": ("Show the connected cluster service.", "mops cluster status"),
}.items():
    text = f"{summary}\n\nExample:\n\n    {example}"
    app.add_typer(typer.Typer(cls=_Group, help=text, no_args_is_help=True, rich_markup_mode=None), name=group)


def _version(wanted: bool) -> None:
    if wanted:
        terminal.data(f"mops {mops.__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version_wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "-v", "--verbose", count=True, show_default=False, help="Print more log lines: -v INFO, -vv DEBUG"
        ),
    ] = 0,
) -> None:
    """Set up logging."""
    terminal.set_up_logging(verbose)


def main() -> None:
    """Run the command line. Errors of mops print three lines; any other exception is a bug and keeps its traceback."""
    try:
        app()
    except MopsError as error:
        terminal.error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        terminal.say("stopped")
        sys.exit(130)
