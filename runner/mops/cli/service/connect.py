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
    off: Annotated[bool, typer.Option("--off", help="Disconnect: run jobs on this machine again")] = False,
) -> None:
    """Connect to a cluster service, so that jobs run there.

    The command finds the service in your kubectl context, checks your permissions, and saves a profile. To run one job
    on this machine, use 'mops jobs submit --local'.

    Example:

        mops connect --namespace studies
    """
    if off:
        removed = profiles.remove()
        terminal.say("jobs run on this machine again" if removed else "no service was connected")
        return
    where = str(kubeconfig.absolute()) if kubeconfig else None
    profile = find_service(namespace, context, where, release, dedicated=dedicated)
    saved = profiles.save(profile)
    service = profile.service
    terminal.data_fields(
        [
            ("service", f"{service.release} in namespace {profile.namespace}, mops {service.version}"),
            ("storage", service.storage),
            ("scheduler", "dedicated for each job" if dedicated else service.scheduler),
            ("image", service.runner.image),
            ("saved in", str(saved)),
        ]
    )
    if warning := another_version(service):
        terminal.say(f"warning: {warning}")
