"""What ``mops connect`` saved: which cluster service is meant, and what its chart says a client needs.

The chart writes :class:`ServiceConfig` as JSON into a ConfigMap (helm/mops/templates/clients); :class:`Profile` adds
how this person reaches it. One file in the user's configuration folder; ``MODELOPS_PROFILE=none`` passes it by.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from mops.errors import UsageError
from mops.k8s.chart import ChartModel, ServiceConfig, unreadable
from mops.system.user_folders import user_folder

VARIABLE = "MODELOPS_PROFILE"
NONE = "none"


class Profile(ChartModel):
    """A cluster service, and how this person reaches it.

    Parameters
    ----------
    context, kubeconfig
        Of kubectl; None: whatever is current when it is used.
    dedicated
        Whether this person's jobs have Dask clusters of their own unless they say otherwise.
    """

    format: Literal[1] = 1
    namespace: str
    context: str | None = None
    kubeconfig: str | None = None
    dedicated: bool = False
    service: ServiceConfig


def path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the profile lies: ``mops/profile.json`` in the user's configuration folder."""
    return user_folder("XDG_CONFIG_HOME", environ) / "profile.json"


def load(environ: Mapping[str, str] = os.environ) -> Profile | None:
    """Return the profile; None: there is none, or the environment passes it by.

    Raises
    ------
    UsageError
        It cannot be read, or the environment asks for what there is not.
    """
    asked = environ.get(VARIABLE, "").strip()
    if asked == NONE:
        return None
    if asked:
        raise UsageError(
            f"{asked!r} is no profile",
            where=VARIABLE,
            hint="leave it unset to use what 'mops connect' saved, or write 'none' to run on this machine",
        )
    place = path(environ)
    try:
        return Profile.model_validate_json(place.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as bad:
        raise unreadable(bad, str(place), "run 'mops connect' again, or remove the file") from bad
    except OSError as refused:
        raise _refused(place, refused) from refused


def storage_of(profile: Profile) -> str:
    """Return the URL of the service's storage."""
    return profile.service.storage.rstrip("/")


def reach(profile: Profile, environ: MutableMapping[str, str] = os.environ) -> str:
    """Return the URL of the service's storage, with the variables set that say how it is reached, unless they are."""
    for name, value in profile.service.storage_env.items():
        environ.setdefault(name, value)
    return storage_of(profile)


def save(profile: Profile, environ: Mapping[str, str] = os.environ) -> Path:
    """Write the profile, whole or not at all; return where it lies.

    Raises
    ------
    UsageError
        It cannot be written.
    """
    place = path(environ)
    temporary = place.with_suffix(f".{os.getpid()}")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_text(profile.model_dump_json(by_alias=True, indent=1, exclude_none=True) + "\n")
        temporary.replace(place)
    except OSError as refused:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise _refused(place, refused) from refused
    return place


def remove(environ: Mapping[str, str] = os.environ) -> bool:
    """Remove the profile; False: there is none."""
    place = path(environ)
    try:
        place.unlink()
    except FileNotFoundError:
        return False
    except OSError as refused:
        raise _refused(place, refused) from refused
    return True


def _refused(place: Path, refused: OSError) -> UsageError:
    return UsageError(
        f"the profile cannot be read or written ({refused.strerror})",
        where=str(place),
        hint="look at its owner and mode, or name another folder by XDG_CONFIG_HOME",
    )
