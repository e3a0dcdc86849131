"""``mops connect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mops.cli import terminal
from mops.service import profile as profiles
from mops.service.connect import connect as find_service
from mops.service.service import another_version


def connect(
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="The service's; else that of the kubectl context.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="The kubectl context; else the current one.")] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="The kubeconfig; else KUBECONFIG, else ~/.kube/config.")
    ] = None,
    release: Annotated[str | None, typer.Option(help="The chart's release, if it is not called mops.")] = None,
    dedicated: Annotated[
        bool, typer.Option("--dedicated", help="Run jobs on Dask clusters of their own, unless submit says --shared.")
    ] = False,
    off: Annotated[bool, typer.Option("--off", help="Forget the service: jobs run on this machine again.")] = False,
) -> None:
    """Connect to a cluster service: from now on jobs run there.

    Looks for the service in your kubectl context, checks that you may use it, and saves what it found.
    'mops jobs submit --local' still runs a job on this machine, 'mops connect --off' all of them.
    """
    if off:
        removed = profiles.remove()
        terminal.say("jobs run on this machine again" if removed else "there was no service connected")
        return
    where = str(kubeconfig.absolute()) if kubeconfig else None
    profile = find_service(namespace, context, where, release, dedicated=dedicated)
    saved = profiles.save(profile)
    service = profile.service
    terminal.data_fields(
        [
            ("service", f"{service.release} in namespace {profile.namespace}, mops {service.version}"),
            ("storage", service.storage),
            ("scheduler", "each job's own" if dedicated else service.scheduler),
            ("image", service.runner.image),
            ("saved in", str(saved)),
        ]
    )
    if warning := another_version(service):
        terminal.say(f"warning: {warning}")
