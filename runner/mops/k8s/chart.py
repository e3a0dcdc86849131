"""What a service's Helm chart says to clients and runners."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mops.errors import NewerFormat, UsageError

FORMAT = 1

Object = dict[str, Any]
"""A Kubernetes object, as Kubernetes writes it in JSON."""


class ChartModel(BaseModel):
    """What a chart or a client has written as JSON; what a newer one says besides is for newer clients."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class RunnerPod(ChartModel):
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


class Dashboard(ChartModel):
    """Where Dask's pages are served."""

    service: str
    port: int


class Dedicated(ChartModel):
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


class Workers(ChartModel):
    """The shared workers: their pods, and what a pod of a dedicated cluster is made of."""

    selector: dict[str, str]
    pod_template: Annotated[Object, Field(alias="podTemplate")] = {}


class _Format(ChartModel):
    """What every chart writes, of whatever format."""

    format: int
    version: str


class ServiceConfig(ChartModel):
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
    def parse(cls, text: str, where: str) -> ServiceConfig:
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
            raise unreadable(bad, where, hint) from bad


def unreadable(bad: ValidationError, where: str, hint: str) -> UsageError:
    """Return the error for JSON that does not describe a service, with each fault."""
    faults = (f"{'.'.join(map(str, error['loc'])) or '$'}: {error['msg']}" for error in bad.errors())
    return UsageError(f"this describes no service of mops ({'; '.join(faults)})", where=where, hint=hint)


CONFIG_KEY = "client.json"
