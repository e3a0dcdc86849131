"""Where commands and Python calls work: on the connected service, or on this machine. One rule for all of them.

The service, if ``mops connect`` has saved one, unless ``--local`` (in Python ``local=True``) or ``MODELOPS_SCHEDULER``
says otherwise. The storage is ``--storage``, else ``MODELOPS_STORAGE``, else the service's, else the folder
``mops-storage`` in the project around the working directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mops.errors import UsageError
from mops.project.project import find_root
from mops.service import profile as profiles
from mops.service.profile import Profile
from mops.settings import SettingLine, Settings
from mops.storage.files import Files, canonical_url

DEFAULT_STORAGE = "mops-storage"


@dataclass(frozen=True)
class Location:
    """Where a command works.

    Parameters
    ----------
    profile
        The connected service, if the command works there; None: it works on this machine.
    passed_by
        What keeps the command on this machine although a service is connected: ``--local`` or
        ``MODELOPS_SCHEDULER``; empty: nothing does.
    storage
        Folder or URL of the results, as it was given; None: ``mops-storage`` in the project.
    storage_source
        Where ``storage`` comes from.
    """

    profile: Profile | None
    passed_by: str
    storage: str | None
    storage_source: Literal["command line", "environment", "service", "default"]

    def url(self, root: Path | None = None) -> str:
        """Return the URL of the storage, without a look at it.

        Parameters
        ----------
        root
            The project root; None: that around the working directory.
        """
        default = (root or find_root(Path.cwd() / "study.json")) / DEFAULT_STORAGE
        return canonical_url(self.storage or str(default))

    def open(self, root: Path | None = None) -> Files:
        """Open the storage, with the variables set by which the service's is reached if it is the service's.

        Raises
        ------
        UsageError
            As for :meth:`mops.storage.files.Files.open`.
        """
        url = self.url(root)
        if self.profile is not None and url == profiles.storage_of(self.profile):
            profiles.reach(self.profile)
        return Files.open(url)

    def seen_from_pods(self, url: str) -> bool:
        """Tell whether runners of the service reach this storage: its own, or one that is neither folder nor memory."""
        if self.profile is None:
            return False
        return url == profiles.storage_of(self.profile) or ("://" in url and not url.startswith("memory:"))


def locate(
    storage: str | Path | None = None,
    *,
    local: bool = False,
    profile: Profile | None = None,
    settings: Settings | None = None,
) -> Location:
    """Return where a command works.

    Parameters
    ----------
    storage
        Folder or URL that the caller names; None: none.
    local
        Work on this machine even when connected to a service.
    profile
        The service that the caller has chosen; None: the rule chooses.
    settings
        The job's settings; None: from the environment.

    Raises
    ------
    UsageError
        ``storage`` is neither a folder nor a URL. Or the saved profile cannot be read; with ``local`` too, because the
        commands that mops prints depend on the profile.
    SettingsError
        The environment's settings are not valid.
    """
    settings = settings or Settings.from_environment()
    saved = profile or profiles.load()
    by_scheduler = profile is None and settings.scheduler is not None
    passed_by = "--local" if local else "MODELOPS_SCHEDULER" if by_scheduler else ""
    here = Location(None, passed_by if saved else "", None, "default")
    found = here if passed_by or saved is None else replace(here, profile=saved)
    if storage:
        return replace(
            found, storage=path_text(storage, "storage", "pass a folder or a URL"), storage_source="command line"
        )
    if settings.storage:
        return replace(found, storage=settings.storage, storage_source="environment")
    if found.profile is not None:
        return replace(found, storage=profiles.storage_of(found.profile), storage_source="service")
    return found


def path_text(path: str | os.PathLike[str], argument: str, hint: str) -> str:
    """Return a path or a URL of a Python caller as text.

    Parameters
    ----------
    argument
        The argument's name.

    Raises
    ------
    UsageError
        It is something else.
    """
    if isinstance(path, (str, os.PathLike)):
        return os.fspath(path)
    raise UsageError(f"{argument} is a {type(path).__name__}, not a path", where=argument, hint=hint)


def described(settings: Settings, location: Location) -> list[SettingLine]:
    """List the settings as :meth:`~mops.settings.Settings.described`, and what a connected service makes of them."""
    lines = {line.name: line for line in settings.described()}
    storage, scheduler = "MODELOPS_STORAGE", "MODELOPS_SCHEDULER"
    lines[storage] = replace(lines[storage], value=location.url(), source=location.storage_source)
    if location.profile is not None:
        lines[scheduler] = replace(lines[scheduler], value=location.profile.service.scheduler, source="service")
    return [_profile_line(location), *lines.values()]


def _profile_line(location: Location) -> SettingLine:
    asked = os.environ.get(profiles.VARIABLE, "").strip()
    meaning = "the service on which commands work; unset: this machine; none: this machine, whatever is connected"
    if location.profile is not None:
        value = f"{location.profile.service.release} in namespace {location.profile.namespace}"
        return SettingLine(profiles.VARIABLE, value, "", str(profiles.path()), meaning)
    source = "environment" if asked else location.passed_by or "default"
    return SettingLine(profiles.VARIABLE, asked or None, "", source, meaning)
