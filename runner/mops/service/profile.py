"""The profile that ``mops connect`` saves: a cluster service, and how this person reaches it.

The chart writes :class:`ServiceConfig` as JSON into a ConfigMap (helm/mops/templates/clients). The profile is one file
in the user's configuration folder; with ``MODELOPS_PROFILE=none`` mops ignores it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from mops.errors import UsageError
from mops.k8s.chart import ChartModel, ServiceConfig, unreadable
from mops.system.user_folders import USER_FOLDERS

VARIABLE = "MODELOPS_PROFILE"
NONE = "none"


class Profile(ChartModel):
    """A cluster service, and how this person reaches it.

    Parameters
    ----------
    context, kubeconfig
        As for kubectl; None: the current one at each use.
    dedicated
        Whether this person's jobs run on dedicated Dask clusters by default.
    """

    format: Literal[1] = 1
    namespace: str
    context: str | None = None
    kubeconfig: str | None = None
    dedicated: bool = False
    service: ServiceConfig


def path() -> Path:
    """Return the profile's path: ``mops/profile.json`` in the user's configuration folder."""
    return USER_FOLDERS.user_config_path / "profile.json"


def load() -> Profile | None:
    """Return the profile; None: there is none, or MODELOPS_PROFILE is ``none``.

    Raises
    ------
    UsageError
        The file cannot be read, or MODELOPS_PROFILE has another value.
    """
    value = os.environ.get(VARIABLE, "").strip()
    if value == NONE:
        return None
    if value:
        raise UsageError(
            f"{value!r} is not a profile",
            where=VARIABLE,
            hint="unset it to use the connected service, or set it to 'none' to run on this machine",
        )
    file = path()
    try:
        return Profile.model_validate_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as bad:
        raise unreadable(bad, str(file), "run 'mops connect' again") from bad
    except OSError as refused:
        raise _refused(file, refused) from refused


def storage_of(profile: Profile) -> str:
    """Return the URL of the service's storage."""
    return profile.service.storage.rstrip("/")


def reach(profile: Profile) -> str:
    """Return the URL of the service's storage, and set the variables that give access to it, unless they are set."""
    for name, value in profile.service.storage_env.items():
        os.environ.setdefault(name, value)
    return storage_of(profile)


def save(profile: Profile) -> Path:
    """Write the profile atomically; return its path.

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    file = path()
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_text(profile.model_dump_json(by_alias=True, indent=1, exclude_none=True) + "\n")
        temporary.replace(file)
    except OSError as refused:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise _refused(file, refused) from refused
    return file


def remove() -> bool:
    """Remove the profile; False: there is none."""
    file = path()
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    except OSError as refused:
        raise _refused(file, refused) from refused
    return True


def _refused(file: Path, refused: OSError) -> UsageError:
    return UsageError(
        f"the profile cannot be read or written ({refused.strerror})",
        where=str(file),
        hint="correct its owner and mode, or set XDG_CONFIG_HOME to another folder",
    )
