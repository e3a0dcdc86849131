"""Where jobs run: ``mops connect``, ``disconnect``, ``profiles``, ``dashboard`` and ``settings``."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mops.cli import terminal
from mops.cli.options import JsonOption, LocalOption
from mops.errors import MopsError, UsageError
from mops.jobs.location import described, locate, service_of
from mops.service import profile as saved
from mops.service.connect import Wanted
from mops.service.connect import connect as connect_service
from mops.service.service import another_version

if TYPE_CHECKING:
    from mops.service.service import Service


def connected() -> Service:
    """Return the connected service.

    Raises
    ------
    UsageError
        No service is connected.
    ServiceError
        The service is out of reach.
    """
    profile = saved.load()
    if profile is None:
        raise UsageError(
            "no cluster service is connected",
            where=str(saved.path()),
            hint="connect to a service: mops connect --namespace NAME",
        )
    return service_of(profile)


def connect(
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n", "--namespace", metavar="NAMESPACE", help="Use this namespace; default: that of the kubectl context"
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(metavar="CONTEXT", help="Use this kubectl context")] = None,
    kubeconfig: Annotated[Path | None, typer.Option(metavar="FILE", help="Use this kubeconfig file")] = None,
    release: Annotated[
        str | None, typer.Option(metavar="RELEASE", help="Use this release of the chart; default: mops")
    ] = None,
    dedicated: Annotated[
        bool, typer.Option("--dedicated", help="Run jobs on dedicated Dask clusters by default")
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Save this profile, or use it if it exists; default: default"),
    ] = None,
) -> None:
    """Connect to a cluster service, so that jobs run there.

    The command finds the service in your kubectl context, checks your permissions, and saves a profile. With the
    --profile of a saved profile and nothing else, it connects to that service again. To run one job on this machine,
    use 'mops jobs submit --local'.

    Example:

        mops connect --namespace studies --profile prod
    """
    where = str(kubeconfig.absolute()) if kubeconfig else None
    found, file = connect_service(profile, Wanted(namespace, context, where, release, dedicated))
    service = found.service
    terminal.data_fields(
        [
            ("service", f"{service.release} in namespace {found.namespace}, mops {service.version}"),
            ("storage", service.storage),
            ("scheduler", "dedicated for each job" if found.dedicated else service.scheduler),
            ("image", service.runner.image),
            ("saved in", str(file)),
        ]
    )
    for warning in filter(None, (another_version(service), saved.overridden())):
        terminal.say(f"warning: {warning}")


def disconnect(
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Delete the profile of this name; default: keep all profiles")
    ] = None,
) -> None:
    """Run jobs on this machine again.

    The profiles of services stay: 'mops connect --profile NAME' connects again. Jobs on a service continue.

    Example:

        mops disconnect
    """
    if profile is not None:
        saved.remove(profile)
        terminal.say(f"profile {profile} is deleted")
    else:
        terminal.say("jobs run on this machine again" if saved.disconnect() else "no service was connected")
    if warning := saved.overridden():
        terminal.say(f"warning: {warning}")


def profiles(as_json: JsonOption = False) -> None:
    """List the profiles of cluster services.

    Example:

        mops profiles
    """
    current = saved.current()
    found = [_described(name, name == current) for name in saved.names()]
    if as_json:
        terminal.data_json(found)
    elif found:
        columns = ("", "profile", "service", "namespace", "context", "storage")
        terminal.data_table(columns, [("*" if one["current"] else "", *_shown(one)) for one in found])
    else:
        terminal.say("no profile is saved; connect to a service: mops connect --namespace NAME")
    for one in found:
        if one["error"]:
            terminal.say(f"warning: {one['error']}")


def _described(name: str, is_current: bool) -> dict[str, object]:
    profile, error = None, None  # no profile and no error: deleted since
    try:
        profile = saved.load(name)
    except UsageError as bad:
        error = str(bad)
    return {
        "profile": name,
        "current": is_current,
        "service": profile and profile.service.release,
        "namespace": profile and profile.namespace,
        "context": profile and profile.context,
        "storage": profile and profile.service.storage,
        "error": error,
    }


def _shown(one: dict[str, object]) -> tuple[str, ...]:
    return tuple(str(one[name] or "-") for name in ("profile", "service", "namespace", "context", "storage"))


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
    with connected().dashboard(port, _Warnings().say) as url:
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


def settings(local: LocalOption = False, as_json: JsonOption = False) -> None:
    """List every setting, its value, its source and its meaning.

    The first line is the service that commands use.

    Example:

        mops settings
    """
    lines = described(locate(local=local))
    if as_json:
        terminal.data_json([asdict(line) for line in lines])
        return
    rows = [(line.name, line.text, line.source, line.meaning) for line in lines]
    terminal.data_table(("variable", "value", "from", "meaning"), rows)
