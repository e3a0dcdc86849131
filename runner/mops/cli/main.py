"""The command ``mops``: its verbs, and how an error becomes an exit code."""

from __future__ import annotations

import pkgutil
import re
import sys
from collections import UserDict
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import mops
from mops.cli import terminal
from mops.cli.options import AROUND, OLD, STUDY, with_options
from mops.cli.process import end_without_reader, interruptible
from mops.errors import MopsError, UsageError, nearest
from mops.options import ADVANCED, COMMON, SERVICE

ELSEWHERE: Mapping[str, str] = {
    "--replicates": "set 'n_replicates' in the study; for a job that has run: mops jobs extend JOB --replicates N",
    "--sets": "set 'parameter_sets' in the study; for a job that has run: mops jobs extend JOB --sets FILE",
    "--target": "set 'targets' in the study; for a job that has run: mops jobs extend JOB --target MODULE:NAME",
}
"""Options that people may expect of ``submit``, and where to find them."""

_NOT_IN_LIST = re.compile(r"'(.*)' is not one of ('.*')\.")


class Verb(NamedTuple):
    """A verb of the command line."""

    where: str  # its function
    summary: str  # the first sentence of its help, for the group's help, which imports no verb
    hidden: bool = False  # from the group's help: Kubernetes and detached processes run it
    only_prints: bool = False  # data: it ends when no reader is left, and other commands end their work first


VERBS: Mapping[str, Mapping[str, Verb]] = {
    "": {
        "init": Verb("mops.cli.init:init", "Make a new study from a template."),
        "run": Verb("mops.cli.submit:submit", "Run a study on this machine or on the connected service."),
        "connect": Verb("mops.cli.service:connect", "Connect to a cluster service, so that jobs run there."),
        "disconnect": Verb("mops.cli.service:disconnect", "Run jobs on this machine again."),
        "dashboard": Verb("mops.cli.service:dashboard", "Forward the Dask dashboard of the connected service."),
        "ui": Verb("mops.cli.ui:ui", "Show the jobs of a storage in a browser."),
        "settings": Verb(
            "mops.cli.service:settings", "List every setting, its value, its source and its meaning.", only_prints=True
        ),
        "doctor": Verb(
            "mops.cli.doctor:doctor", "Check memory limits and the storage, here or on the cluster.", only_prints=True
        ),
    },
    "jobs": {
        "submit": Verb("mops.cli.submit:submit", "Run a study on this machine or on the connected service."),
        "list": Verb("mops.cli.status:list_", "List the jobs of a storage, newest first.", only_prints=True),
        "status": Verb("mops.cli.status:status", "Show the state of a job.", only_prints=True),
        "logs": Verb("mops.cli.status:logs", "Print the log of a job, with the output of its model.", only_prints=True),
        "watch": Verb("mops.cli.status:watch", "Follow a job until it ends.", only_prints=True),
        "results": Verb(
            "mops.cli.results:results", "List the committed results of a job, or export them.", only_prints=True
        ),
        "report": Verb("mops.cli.results:report", "Write a report of a job with figures, as one HTML file."),
        "failures": Verb(
            "mops.cli.results:failures",
            "Show the causes of a job's failures, the most frequent first.",
            only_prints=True,
        ),
        "resume": Verb("mops.cli.submit:resume", "Continue a job that was stopped or killed."),
        "cancel": Verb("mops.cli.status:cancel", "Stop a job."),
        "retry": Verb("mops.cli.submit:retry", "Run the parameter sets with failures again, in a new job."),
        "extend": Verb("mops.cli.submit:extend", "Add replicates, sets or targets, in a new job."),
        "rescore": Verb("mops.cli.submit:rescore", "Evaluate targets again on stored simulations."),
        "compare": Verb(
            "mops.cli.results:compare", "Count what differs between the results of two jobs.", only_prints=True
        ),
        "run": Verb("mops.cli.submit:run", "Run a job that exists.", hidden=True),
        "verify": Verb(
            "mops.cli.tidy:verify", "Check a job's log, and its parts by size and SHA-256.", only_prints=True
        ),
        "compact": Verb("mops.cli.tidy:compact", "Merge small parts of complete jobs into larger ones."),
        "clean": Verb("mops.cli.tidy:clean", "Remove files that are not results; or delete old jobs."),
        "delete": Verb("mops.cli.tidy:delete_", "Delete jobs with their results."),
    },
    "study": {
        "check": Verb("mops.cli.study:check", "Check a study and its model, and print what submit would run."),
        "run": Verb("mops.cli.study:run", "Run one simulation in the foreground, as a job would run it."),
        "sample": Verb("mops.cli.sample:sample", "Draw parameter sets from a space, and write them to a file."),
        "calibrate": Verb("mops.cli.calibrate:calibrate", "Fit parameters to data in rounds of jobs."),
    },
    "calibrations": {
        "list": Verb(
            "mops.cli.tidy:list_calibrations", "List the calibrations of a storage, newest first.", only_prints=True
        ),
        "delete": Verb("mops.cli.tidy:delete_calibrations", "Delete calibrations with the jobs of their rounds."),
    },
    "cluster": {
        "status": Verb(
            "mops.cli.service:cluster_status",
            "Show the workers, memory and versions of the connected service.",
            only_prints=True,
        )
    },
}
"""The verbs of each group."""


class _Verbs(UserDict[str, Any]):
    """The commands of a group by name. A lookup imports the verb.

    bench/tricks.py, mops jobs status: -46 % of CPU time, -18 % of memory.
    """

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, Verb):
            found = self[name] = _command(name, found)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command. Mapping.get would hide a KeyError of the verb's import."""
        if name not in self:
            return default
        return self[name]


def _command(name: str, verb: Verb) -> TyperCommand:
    with interruptible():
        function = pkgutil.resolve_name(verb.where)
    if verb.only_prints:
        end_without_reader()
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name, cls=_Command, hidden=verb.hidden)(with_options(function))
    command = get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


class _Command(TyperCommand):
    """A command whose plain help has a section for each panel of options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments. For an option that is elsewhere, say where."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as wrong:
            wrong.message = _with_nearest(wrong.message)
            raise
        except Exception as unknown:
            hint = ELSEWHERE.get(getattr(unknown, "option_name", ""))
            if hint is None or self.name not in ("submit", "run"):
                raise
            what = f"{ctx.command_path} has no option {unknown.option_name}"  # type: ignore[attr-defined]
            raise UsageError(what, where="the command line", hint=hint) from unknown

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the command's options, and then the panels of shared options."""
        sections: dict[str, list[tuple[str, str]]] = {
            title: [] for title in ("Arguments", "Options", STUDY, AROUND, OLD, COMMON, SERVICE, ADVANCED)
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


def _with_nearest(message: str) -> str:
    """Return Typer's message of a wrong value without the name of a Python exception, and with the nearest value."""
    text = message.removeprefix("Value error, ")
    if (found := _NOT_IN_LIST.fullmatch(text)) is None:
        return text
    near = nearest(found[1], re.findall(r"'([^']*)'", found[2]))
    return f"{text.removesuffix('.')}; did you mean {near!r}?" if near else text


class _Group(TyperGroup):
    """A group with its verbs of ``VERBS``."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self._groups = self.commands
        self.commands = _Verbs({**VERBS[self.name or ""], **self._groups})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the summaries of the verbs and the groups, and import no verb."""
        verbs = VERBS[self.name or ""].items()
        summaries = {name: TyperCommand(name, help=verb.summary, hidden=verb.hidden) for name, verb in verbs}
        TyperGroup(commands={**summaries, **self._groups}).format_commands(ctx, formatter)


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
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group, (summary, example) in {
    "jobs": ("Run studies and read their results.", "mops jobs submit study.json --name waves"),
    "study": ("Prepare a study before it runs.", "mops study check study.json"),
    "calibrations": ("List and delete calibrations.", "mops calibrations list"),
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
        try:
            app()
        finally:
            sys.stdout.flush()
    except MopsError as error:
        terminal.error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        terminal.say("stopped")
        sys.exit(130)
