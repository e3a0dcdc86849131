"""``mops disconnect``."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli import terminal
from mops.service import profile as profiles


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
        profiles.remove(profile)
        terminal.say(f"profile {profile} is deleted")
    else:
        terminal.say("jobs run on this machine again" if profiles.disconnect() else "no service was connected")
    if warning := profiles.overridden():
        terminal.say(f"warning: {warning}")
