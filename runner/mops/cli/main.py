"""The command ``mops``: which verbs there are, and how an error becomes an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import mops
from mops.cli import (
    cluster_status,
    connect,
    dashboard,
    doctor,
    jobs_cancel,
    jobs_clean,
    jobs_delete,
    jobs_list,
    jobs_logs,
    jobs_results,
    jobs_resume,
    jobs_retry,
    jobs_run,
    jobs_status,
    jobs_submit,
    jobs_verify,
    jobs_watch,
    settings,
    study_check,
    study_sample,
    terminal,
)
from mops.errors import MopsError

app = typer.Typer(
    help="Run simulation studies: bounded memory, durable as they go, resumed where they were killed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
jobs = typer.Typer(help="Run studies and read what they gave.", no_args_is_help=True, rich_markup_mode=None)
study = typer.Typer(help="Look at a study before it runs.", no_args_is_help=True, rich_markup_mode=None)
cluster = typer.Typer(help="Look at the connected cluster service.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(jobs, name="jobs")
app.add_typer(study, name="study")
app.add_typer(cluster, name="cluster")

jobs.command("submit")(jobs_submit.submit)
jobs.command("list")(jobs_list.list_)
jobs.command("status")(jobs_status.status)
jobs.command("logs")(jobs_logs.logs)
jobs.command("watch")(jobs_watch.watch)
jobs.command("results")(jobs_results.results)
jobs.command("resume")(jobs_resume.resume)
jobs.command("cancel")(jobs_cancel.cancel)
jobs.command("retry")(jobs_retry.retry)
jobs.command("run", hidden=True)(jobs_run.run)
jobs.command("verify")(jobs_verify.verify)
jobs.command("clean")(jobs_clean.clean)
jobs.command("delete")(jobs_delete.delete_)
study.command("check")(study_check.check)
study.command("sample")(study_sample.sample)
cluster.command("status")(cluster_status.status)
app.command("connect")(connect.connect)
app.command("dashboard")(dashboard.dashboard)
app.command("settings")(settings.settings)
app.command("doctor")(doctor.doctor)


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
