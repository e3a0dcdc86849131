"""``mops connect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mops.cli import terminal
from mops.service import profile as profiles
from mops.service.connect import Wanted
from mops.service.connect import connect as connect_service
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
    found, saved = connect_service(profile, Wanted(namespace, context, where, release, dedicated))
    service = found.service
    terminal.data_fields(
        [
            ("service", f"{service.release} in namespace {found.namespace}, mops {service.version}"),
            ("storage", service.storage),
            ("scheduler", "dedicated for each job" if found.dedicated else service.scheduler),
            ("image", service.runner.image),
            ("saved in", str(saved)),
        ]
    )
    for warning in filter(None, (another_version(service), profiles.overridden())):
        terminal.say(f"warning: {warning}")
