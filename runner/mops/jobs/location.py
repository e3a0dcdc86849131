"""Decides where commands and Python calls work: on the connected service, or on this machine.

They work on the service that ``mops connect`` has saved, unless ``--local`` (in Python ``local=True``) or
``MODELOPS_SCHEDULER`` is given. The storage is ``--storage``, else ``MODELOPS_STORAGE``, else the service's, else
``mops-storage`` in the project.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mops.errors import absolute, check_type
from mops.project.project import find_root
from mops.service import profile as profiles
from mops.service.profile import Profile
from mops.settings import SettingLine, Settings
from mops.storage.files import Files, canonical_url

if TYPE_CHECKING:
    from mops.service.service import Service

DEFAULT_STORAGE = "mops-storage"


@dataclass(frozen=True)
class Location:
    """Where a command works, and with which settings: decided once for a command, and passed on."""

    settings: Settings  # of the environment or of the caller
    profile: Profile | None  # the connected service, if the command works there; None: this machine
    local_by: str  # `--local` or `MODELOPS_SCHEDULER`, if it keeps the command here although a service is connected
    storage: str | None  # folder or URL, as the user gave it; None: `mops-storage` in the project
    storage_source: Literal["command line", "environment", "service", "default"]  # where `storage` comes from
    service: Service | None = None  # of the profile, if `with_service` has asked it

    @property
    def here(self) -> Location:
        """The location of a command with ``--local``."""
        is_given = self.storage_source in ("command line", "environment")
        storage, source = (self.storage, self.storage_source) if is_given else (None, "default")
        return replace(self, profile=None, service=None, storage=storage, storage_source=source)

    def with_service(self) -> Location:
        """Return this location with the service as its chart describes it now.

        ServiceError: the service is out of reach, or no longer exists.
        """
        if self.profile is None or self.service is not None:
            return self
        from mops.service.service import Service  # noqa: PLC0415 - 0.013 s

        service = Service.current(self.profile)
        storage = profiles.storage_of(service.profile) if self.storage_source == "service" else self.storage
        return replace(self, profile=service.profile, service=service, storage=storage)

    def url(self, root: Path | None = None) -> str:
        """Return the URL of the storage, which need not exist; ``root`` None: around the working directory."""
        if self.storage:
            return canonical_url(self.storage)
        return canonical_url(str((root or find_root(absolute() / "study.json")) / DEFAULT_STORAGE))

    def open(self, root: Path | None = None) -> Files:
        """Open the storage. If it is the service's, set the variables that give access to it."""
        url = self.url(root)
        if self.profile is not None and url == profiles.storage_of(self.profile):
            profiles.reach(self.profile)
        return Files.open(url)

    def reached_from_pods(self, url: str) -> bool:
        """Tell whether runners of the service reach a storage: the service's, or a URL that is not in memory."""
        if self.profile is None:
            return False
        return url == profiles.storage_of(self.profile) or ("://" in url and not url.startswith("memory:"))


def locate(
    storage: str | Path | None = None,  # that the caller names
    *,
    local: bool = False,
    settings: Settings | None = None,  # None: from the environment
) -> Location:
    """Return where a command works."""
    # A saved profile that cannot be read is an error also with `local`, because the commands that mops prints depend on
    # it.
    settings = Settings.given(settings)
    profile = profiles.load()
    by_scheduler = settings.scheduler is not None
    local_by = ("--local" if local else "MODELOPS_SCHEDULER" if by_scheduler else "") if profile else ""
    if local or by_scheduler:
        profile = None
    if storage:
        text = path_text(storage, "storage", "pass a folder or a URL")
        return Location(settings, profile, local_by, text, "command line")
    if settings.storage:
        return Location(settings, profile, local_by, settings.storage, "environment")
    if profile is not None:
        return Location(settings, profile, local_by, profiles.storage_of(profile), "service")
    return Location(settings, None, local_by, None, "default")


def service_with(files: Files, *, local: bool) -> Service | None:
    """Return the connected service if its runners reach this storage; None: there is none."""
    location = locate(local=local)
    if location.profile is None or not location.reached_from_pods(files.url):
        return None
    return replace(service_of(location.profile), results=files.url)


def service_of(profile: Profile) -> Service:
    """Connect to the service of a profile."""
    from mops.service.service import Service  # noqa: PLC0415 - 0.013 s

    return Service.of(profile)


def path_text(
    path: str | os.PathLike[str],
    argument: str,  # its name
    hint: str,
) -> str:
    """Return a path or a URL of a Python caller as text; raise UsageError if it is something else."""
    check_type(path, (str, os.PathLike), argument, "a path", hint)
    return os.fspath(path)


def described(location: Location) -> list[SettingLine]:
    """List the settings as ``Settings.described``, with the values that a connected service sets."""
    lines = {line.name: line for line in location.settings.described()}
    storage, scheduler = "MODELOPS_STORAGE", "MODELOPS_SCHEDULER"
    lines[storage] = replace(lines[storage], value=location.url(), source=location.storage_source)
    value, source = None, location.local_by or "default"
    if location.profile is not None:
        lines[scheduler] = replace(lines[scheduler], value=location.profile.service.scheduler, source="service")
        value = f"{location.profile.service.release} in namespace {location.profile.namespace}"
        source = str(profiles.path())
    return [SettingLine("service", value, "", source, "the service that commands use"), *lines.values()]
