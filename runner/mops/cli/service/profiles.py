"""``mops profiles``."""

from __future__ import annotations

from mops.cli import terminal
from mops.cli.options import JsonOption
from mops.errors import UsageError
from mops.service import profile as saved


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
