"""The profiles that ``mops connect`` saves: cluster services, and how this person reaches them.

The chart writes ServiceConfig as JSON into a ConfigMap (helm/mops/templates/clients). Each profile is one file in the
user's configuration folder, and another file has the name of the current one.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from mops.errors import UsageError
from mops.k8s.chart import ChartModel, ServiceConfig, unreadable
from mops.system.user_folders import USER_FOLDERS

DEFAULT = "default"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Profile(ChartModel):
    """A cluster service, and how this person reaches it."""

    format: Literal[1] = 1
    namespace: str
    context: str | None = None  # as for kubectl; None: the current one at each use
    kubeconfig: str | None = None  # the same
    dedicated: bool = False  # whether this person's jobs run on dedicated Dask clusters by default
    service: ServiceConfig


def path(name: str | None = None) -> Path:
    """Return the path of a profile, or of the current one: ``mops/profiles/NAME.json`` in the user's folder."""
    return USER_FOLDERS.user_config_path / "profiles" / f"{name or current() or DEFAULT}.json"


def check_name(name: str) -> None:
    """Raise UsageError if a name is not valid as the name of a profile's file."""
    if not _NAME.fullmatch(name):
        hint = "use letters, digits, '-', '_' and '.', at most 63"
        raise UsageError(f"a profile cannot have the name {name!r}", where="--profile", hint=hint)


def current() -> str | None:
    """Return the name of the profile that commands use; None: they work on this machine."""
    file = USER_FOLDERS.user_config_path / "current-profile"
    try:
        return file.read_text().strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as refused:
        raise _refused(file, refused) from refused


def load(name: str | None = None) -> Profile | None:
    """Return a profile, or the current one; None: no service is connected, or no profile has this name."""
    wanted = name or current()
    if wanted is None:
        return None
    file = path(wanted)
    try:
        return Profile.model_validate_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as bad:
        raise unreadable(bad, str(file), f"replace it: mops connect --profile {wanted} --namespace NAME") from bad
    except OSError as refused:
        raise _refused(file, refused) from refused


def names() -> list[str]:
    """Return the names of the saved profiles."""
    return sorted(file.stem for file in (USER_FOLDERS.user_config_path / "profiles").glob("*.json"))


def storage_of(profile: Profile) -> str:
    """Return the URL of the service's storage."""
    return profile.service.storage.rstrip("/")


def reach(profile: Profile) -> str:
    """Return the URL of the service's storage, and set the variables that give access to it, unless they are set."""
    for name, value in profile.service.storage_env.items():
        os.environ.setdefault(name, value)
    return storage_of(profile)


def save(profile: Profile, name: str | None = None) -> Path:
    """Write a profile atomically, as the current one if it has no name; return its path."""
    file = path(name)
    _write(file, profile.model_dump_json(by_alias=True, indent=1, exclude_none=True) + "\n")
    return file


def use(name: str) -> None:
    """Let commands use this profile from now on."""
    _write(USER_FOLDERS.user_config_path / "current-profile", f"{name}\n")


def _write(file: Path, text: str) -> None:
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        USER_FOLDERS.user_config_path.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.parent.mkdir(exist_ok=True)
        temporary.write_text(text)
        temporary.replace(file)
    except OSError as refused:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise _refused(file, refused) from refused


def disconnect() -> bool:
    """Let commands work on this machine, and keep all profiles; False: no service was connected."""
    file = USER_FOLDERS.user_config_path / "current-profile"
    try:
        file.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as refused:
        raise _refused(file, refused) from refused
    return True


def _refused(file: Path, refused: OSError | UnicodeDecodeError) -> UsageError:
    why = refused.strerror if isinstance(refused, OSError) else "it is not text"
    hint = "correct its owner and mode, or set XDG_CONFIG_HOME to another folder"
    return UsageError(f"the profile cannot be read or written ({why})", where=str(file), hint=hint)
