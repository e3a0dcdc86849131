"""What ``mops connect`` saved: which cluster service is meant, and what its chart says a client needs.

The chart writes :class:`Service` as JSON into a ConfigMap (helm/mops/templates/clients); :class:`Profile` adds how this
person reaches it. One file in the user's configuration folder; ``MODELOPS_PROFILE=none`` passes it by.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mops.errors import NewerFormat, UsageError

FORMAT = 1
VARIABLE = "MODELOPS_PROFILE"
NONE = "none"

Object = dict[str, Any]


class _Part(BaseModel):
    # What a newer chart says besides is for newer clients.
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class RunnerPod(_Part):
    """What a runner's Job is made with, in the words of Kubernetes.

    Parameters
    ----------
    service_account
        Its right to the storage comes with it, or with ``env_from``.
    mount_token
        Whether it has the account's token: with it, a runner reads why pods ended.
    queue
        A Kueue queue; None: Kubernetes starts the Job at once.
    grace_s
        Seconds from SIGTERM to SIGKILL.
    """

    image: str
    image_pull_policy: Annotated[str | None, Field(alias="imagePullPolicy")] = None
    image_pull_secrets: Annotated[list[Object], Field(alias="imagePullSecrets")] = []
    service_account: Annotated[str, Field(alias="serviceAccount")]
    mount_token: Annotated[bool, Field(alias="automountServiceAccountToken")] = False
    pod_security: Annotated[Object, Field(alias="podSecurityContext")] = {}
    security: Annotated[Object, Field(alias="securityContext")] = {}
    ports: list[Object] = []
    resources: Object = {}
    env: list[Object] = []
    env_from: Annotated[list[Object], Field(alias="envFrom")] = []
    volumes: list[Object] = []
    volume_mounts: Annotated[list[Object], Field(alias="volumeMounts")] = []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: Annotated[dict[str, str], Field(alias="nodeSelector")] = {}
    tolerations: list[Object] = []
    affinity: Object = {}
    priority_class: Annotated[str | None, Field(alias="priorityClassName")] = None
    queue: str | None = None
    backoff_limit: Annotated[int, Field(alias="backoffLimit", ge=0)] = 6
    deadline_s: Annotated[int | None, Field(alias="activeDeadlineSeconds", gt=0)] = None
    keep_s: Annotated[int | None, Field(alias="ttlSecondsAfterFinished", ge=0)] = None
    grace_s: Annotated[int, Field(alias="terminationGracePeriodSeconds", gt=0)] = 60


class Dashboard(_Part):
    """Where Dask's pages are served."""

    service: str
    port: int


class Dedicated(_Part):
    """Whether jobs may have Dask clusters of their own, and how many workers those have unless somebody says so.

    Parameters
    ----------
    network_policy, egress
        Whether the chart says by network policies who may come to pods, and where they may go.
    """

    enabled: bool = False
    workers: Annotated[int, Field(ge=1)] = 2
    network_policy: Annotated[bool, Field(alias="networkPolicy")] = False
    egress: bool = False


class Workers(_Part):
    """The shared workers: their pods, and what a pod of a dedicated cluster is made of."""

    selector: dict[str, str]
    pod_template: Annotated[Object, Field(alias="podTemplate")] = {}


class _Format(_Part):
    """What every chart writes, of whatever format."""

    format: int
    version: str


class Service(_Part):
    """What the chart says of a cluster service.

    Parameters
    ----------
    version
        Of mops in its image.
    storage, storage_env
        URL of its results, and variables (no secrets) with which it is reached.
    scheduler
        Address of its Dask scheduler, inside the cluster.
    """

    format: int
    version: str
    release: str
    storage: str
    storage_env: Annotated[dict[str, str], Field(alias="storageEnv")] = {}
    scheduler: str
    dashboard: Dashboard
    runner: RunnerPod
    worker: Workers
    dedicated: Dedicated = Dedicated()
    scheduler_pod_template: Annotated[Object, Field(alias="schedulerPodTemplate")] = {}

    @classmethod
    def parse(cls, text: str, where: str) -> Service:
        """Read what the chart wrote.

        Parameters
        ----------
        where
            Names its place in errors.

        Raises
        ------
        NewerFormat
            A newer chart wrote it.
        UsageError
            It is not what a chart of mops writes.
        """
        hint = "is it of the chart helm/mops? helm upgrade writes it anew"
        try:
            of = _Format.model_validate_json(text)  # first: a newer one may lack what this one needs
            if of.format > FORMAT:
                raise NewerFormat(
                    f"the service's chart is of mops {of.version}, which says more than this client understands",
                    where=where,
                    hint=f"install mops-runner {of.version}",
                )
            return cls.model_validate_json(text)
        except ValidationError as bad:
            raise _unreadable(bad, where, hint) from bad


class Profile(_Part):
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
    service: Service


def _unreadable(bad: ValidationError, where: str, hint: str) -> UsageError:
    faults = (f"{'.'.join(map(str, error['loc'])) or '$'}: {error['msg']}" for error in bad.errors())
    return UsageError(f"this describes no service of mops ({'; '.join(faults)})", where=where, hint=hint)


def path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the profile lies: ``mops/profile.json`` in the user's configuration folder."""
    base = Path(environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # the XDG specification has relative ones ignored
        base = Path(environ.get("HOME") or Path.home()) / ".config"
    return base / "mops" / "profile.json"


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
        raise _unreadable(bad, str(place), "run 'mops connect' again, or remove the file") from bad
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
