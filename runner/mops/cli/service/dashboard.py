"""``mops dashboard``."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from mops.cli import connected_service, terminal
from mops.errors import MopsError


def dashboard(
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Use this port of this machine; 0: any free port")
    ] = 8787,
    open_: Annotated[bool, typer.Option("--open", help="Open the dashboard in a browser")] = False,
) -> None:
    """Forward the Dask dashboard of the connected service.

    The command prints the URL to open in a browser, and ends with Ctrl-C. If the scheduler restarts, reload the page.

    Example:

        mops dashboard --open
    """
    with connected_service.connected().dashboard(port, _Warnings().say) as url:
        terminal.data_text(f"{url}\n")
        terminal.say(f"the dashboard is available until Ctrl-C{'' if open_ else '; open the URL in a browser'}")
        if open_:
            typer.launch(url)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            terminal.say("stopped")


class _Warnings:
    """Prints a fault if it differs from the last one: a page asks ten times a second."""

    def __init__(self) -> None:
        self._last = ""

    def say(self, fault: MopsError) -> None:
        """Print a fault, unless it is the last one again."""
        if fault.what != self._last:
            terminal.say(f"warning: {fault.what}")
        self._last = fault.what
