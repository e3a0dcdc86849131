"""``mops dashboard``."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from mops.cli import connected_service, terminal
from mops.errors import MopsError


def dashboard(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of this machine; 0: any that is free.")] = 8787,
    open_: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> None:
    """Have Dask's pages of the connected service on this machine.

    Prints their address, and forwards the port until Ctrl-C, which ends it with exit code 0. A scheduler that is
    replaced is found again: reload the page.
    """
    with connected_service.connected().dashboard(port, _Once().say) as url:
        terminal.data_text(f"{url}\n")
        terminal.say("Dask's pages are there until Ctrl-C")
        if open_:
            typer.launch(url)
        _until_stopped()


def _until_stopped() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        terminal.say("stopped")


class _Once:
    """Says a fault when it is another one: a page asks ten times a second."""

    def __init__(self) -> None:
        self._last = ""

    def say(self, fault: MopsError) -> None:
        """Say a fault."""
        if fault.what != self._last:
            terminal.say(f"warning: {fault.what}")
        self._last = fault.what
