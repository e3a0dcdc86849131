"""``mops ui``."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated

import typer

from mops.cli import terminal
from mops.cli.options import HERE, Place
from mops.errors import UsageError
from mops.options import Option

_LIBRARIES = ("jinja2", "starlette", "uvicorn")


def ui(
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Use this port of this machine; 0: any free port")
    ] = 8750,
    read_only: Annotated[bool, Option("Show jobs, and change nothing")] = False,
    behind_login: Annotated[bool, Option("Serve other machines too, without a token; needs --read-only")] = False,
    no_open: Annotated[bool, Option("Print the URL, and open no browser")] = False,
    place: Place = HERE,
) -> None:
    """Show the jobs of a storage in a browser.

    The page lists jobs and follows them while they run. You can cancel, resume and retry a job there. The command ends
    with Ctrl-C; the jobs continue. Only a browser that has the printed URL can use the page. With --behind-login, every
    machine that reaches this one can read it: use it only behind a proxy that asks who its users are.

    Example:

        mops ui --read-only
    """
    if behind_login and not read_only:
        what = "without a token, everyone who reaches the page could change jobs"
        raise UsageError(what, where="--behind-login", hint="add --read-only")
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        what = f"the web page needs {', '.join(missing)}, which this environment lacks"
        raise UsageError(what, where="mops ui", hint="install the libraries: pip install 'mops-runner[ui]'")
    from mops.ui.server import WebPage  # noqa: PLC0415 - an optional extra

    files = place.locate().open()
    page = WebPage(files, port, local=place.local, read_only=read_only, behind_login=behind_login)
    terminal.data_text(f"{page.url}\n")
    terminal.say(f"the page is available until Ctrl-C{'; open the URL in a browser' if no_open else ''}")
    if not (no_open or behind_login):
        typer.launch(page.url)
    try:
        page.serve()
    except KeyboardInterrupt:
        terminal.say("stopped; the jobs continue")
    if not page.has_ended():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # Python would wait for a read that hangs
