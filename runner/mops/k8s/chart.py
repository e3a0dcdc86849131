"""The description of a service that its Helm chart writes for clients."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mops.errors import OtherFormat, UsageError, message_of

FORMAT = 1

ASK_FOR_RIGHTS = "ask the cluster's operator to add you to clients.subjects of the chart's values"
ASK_TO_MANAGE = "ask the cluster's operator to add you to clients.managers of the chart's values"

Object = dict[str, Any]  # a Kubernetes object, as Kubernetes writes it in JSON


class ChartModel(BaseModel):
    """JSON that a chart or a client wrote; unknown fields are for newer clients, and ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class RunnerPod(ChartModel):
    """The settings of a runner's Job and pod, with Kubernetes' names."""

    image: str
    image_pull_policy: Annotated[str | None, Field(alias="imagePullPolicy")] = None
    image_pull_secrets: Annotated[list[Object], Field(alias="imagePullSecrets")] = []
    # gives access to the storage, unless ``env_from`` does
    service_account: Annotated[str, Field(alias="serviceAccount")]
    # of the account, with which a runner asks Kubernetes why pods ended
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
    extra_pod_spec: Annotated[Object, Field(alias="extraPodSpec")] = {}  # fields that mops does not set
    queue: str | None = None  # of Kueue; None: Kubernetes starts the Job at once
    backoff_limit: Annotated[int, Field(alias="backoffLimit", ge=0)] = 6
    deadline_s: Annotated[int | None, Field(alias="activeDeadlineSeconds", gt=0)] = None
    keep_s: Annotated[int | None, Field(alias="ttlSecondsAfterFinished", ge=0)] = None
    grace_s: Annotated[int, Field(alias="terminationGracePeriodSeconds", gt=0)] = 60  # from SIGTERM to SIGKILL


class Dashboard(ChartModel):
    """The Service and port of Dask's dashboard."""

    service: str
    port: int


class Dedicated(ChartModel):
    """Dedicated Dask clusters: whether jobs may have them, and their defaults."""

    enabled: bool = False
    workers: Annotated[int, Field(ge=1)] = 2
    runner_queue: Annotated[str, Field(alias="runnerQueue")] = ""  # of Kueue; empty: the queue of the job


class Workers(ChartModel):
    """The shared workers: labels of their pods, and the template for pods of dedicated clusters."""

    selector: dict[str, str]
    pod_template: Annotated[Object, Field(alias="podTemplate")] = {}


class Autoscaler(ChartModel):
    """How many workers the autoscaler may start."""

    least: Annotated[int, Field(alias="minWorkers")]
    most: Annotated[int, Field(alias="maxWorkers")]


class _Format(ChartModel):
    """The fields that every format has."""

    format: int
    version: str


class ServiceConfig(ChartModel):
    """The description of a cluster service."""

    format: int
    version: str  # of mops in the service's image
    release: str
    storage: str
    # variables (no secrets) that give access to the storage
    storage_env: Annotated[dict[str, str], Field(alias="storageEnv")] = {}
    scheduler: str  # its address inside the cluster
    # the Secret with the certificate for Dask's connections; None: they are not encrypted
    tls_secret: Annotated[str | None, Field(alias="tlsSecret")] = None
    dashboard: Dashboard
    network_policy: Annotated[bool, Field(alias="networkPolicy")] = False  # whether the chart restricts who may connect
    runner: RunnerPod
    worker: Workers
    autoscaler: Autoscaler | None = None  # None: the operator sets the number of workers
    # the pools of workers, and for each the one for simulations that ran out of memory; empty: all workers are alike
    pools: dict[str, str] = {}
    dedicated: Dedicated = Dedicated()
    scheduler_pod_template: Annotated[Object, Field(alias="schedulerPodTemplate")] = {}

    @classmethod
    def of(cls, config_map: Object, server: str) -> ServiceConfig:
        """Read the description in the chart's ConfigMap; errors as :meth:`parse`."""
        where = f"{server}: ConfigMap {config_map['metadata']['name']}"
        return cls.parse(config_map.get("data", {}).get("client.json", ""), where)

    @classmethod
    def parse(cls, text: str, where: str) -> ServiceConfig:
        """Read the description. OtherFormat: a newer chart wrote the text; UsageError: no chart of mops wrote it."""
        hint = "run 'helm upgrade' with the chart helm/mops"
        try:
            head = _Format.model_validate_json(text)  # first, because a newer format may lack fields of this one
            if head.format > FORMAT:
                what = f"the service's chart is from mops {head.version}, and this client is older"
                raise OtherFormat(what, where=where, hint=f"install mops-runner {head.version}")
            return cls.model_validate_json(text)
        except ValidationError as bad:
            raise unreadable(bad, where, hint) from bad


def unreadable(bad: ValidationError, where: str, hint: str) -> UsageError:
    """Return the error for JSON that does not describe a service; it lists each problem."""
    faults = (f"{'.'.join(map(str, error['loc'])) or '$'}: {message_of(error)}" for error in bad.errors())
    return UsageError(f"this does not describe a mops service ({'; '.join(faults)})", where=where, hint=hint)
