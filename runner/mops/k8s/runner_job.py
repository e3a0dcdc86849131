"""Builds the manifest of a runner's batch/v1 Job. Pure.

docs/internals/kubernetes.md explains the exit codes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mops.k8s import names
from mops.k8s.chart import Object, RunnerPod

CONTAINER = "runner"
FATAL = (1, 2)  # exit codes of failures that a restart would repeat

# Exit codes that count towards ``backoffLimit``: the storage or the cluster is out of reach, or SIGKILL, which a runner
# that is out of memory gets.
COUNTED = (4, 137)

DEDICATED_FOLDER = "/etc/mops/own-cluster"  # the files that describe the dedicated Dask cluster to create

# The folder with the token of a pod's service account and the name of its namespace, as for every pod.
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"

# The shortest life that Kubernetes accepts; kubelet replaces the token before its end. By default, an API server
# accepts the token of automountServiceAccountToken for a year.
_TOKEN_SECONDS = 600

_OBJECTS = "mops/dask-objects"
# The files, and the field of the pod that each shows.
DEDICATED_FILES = {
    "objects.json": f"metadata.annotations['{_OBJECTS}']",
    "job-name": f"metadata.labels['{names.POD_OF_JOB}']",
    "job-uid": f"metadata.labels['{names.UID_OF_JOB}']",
}


@dataclass(frozen=True)
class Request:
    """One start of a job's runner."""

    job: str
    number: int  # of the Job; the first is 1
    release: str
    # of the release's ConfigMap, with which Kubernetes removes the Job: no runner outlives its service
    service_uid: str
    namespace: str
    storage: str
    scheduler: str
    # of the container besides the chart's: ``MODELOPS_JOB_*`` from the user's environment
    environment: Mapping[str, str] = field(default_factory=dict)
    # The person's request (storage.joblog.records.RunRequest, as text). All pods of this Job carry the same request, so
    # a restarted pod recognizes the claim of its Job, and no pod undoes later changes to the job.
    asked: str = ""
    owner: str = ""  # who has submitted the job, as Kubernetes knows the person; empty: not a person of this service
    study: str = ""  # its name
    # the objects of the job's cluster, the DaskCluster first; empty: it uses the shared cluster
    dedicated: Sequence[Object] = ()
    workers: Mapping[str, str] = field(default_factory=dict)  # labels of the pods of the Dask workers


def _exits(codes: tuple[int, ...]) -> Object:
    return {"containerName": CONTAINER, "operator": "In", "values": list(codes)}


# The meaning of the end of a pod; Kubernetes applies the first rule that fits.
_FAILURE_RULES = [
    # An evicted, drained or preempted pod is not the job's fault, whatever its exit code.
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailJob", "onExitCodes": _exits(FATAL)},
    {"action": "Count", "onExitCodes": _exits(COUNTED)},
]

# The pod's fields as files, because the uid of the Job exists only when the Job does.
_DEDICATED_VOLUME = {
    "name": "own-cluster",
    "downwardAPI": {
        "items": [{"path": name, "fieldRef": {"fieldPath": path}} for name, path in DEDICATED_FILES.items()]
    },
}

# In place of automountServiceAccountToken, which sets no life.
_TOKEN_VOLUME = {
    "name": "token",
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_SECONDS}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]
    },
}


def ends_job(code: int) -> bool:
    """Tell whether a Job is over when its pod ends with an exit code."""
    return code == 0 or code in FATAL


def runner_job(pod: RunnerPod, request: Request) -> Object:
    """Return the manifest of a runner's Job."""
    labels = {
        names.NAME: "mops",
        names.INSTANCE: request.release,
        names.COMPONENT: names.RUNNER,
        names.JOB: request.job,
        **names.for_people(request.owner, request.study),
    }
    release = names.client_name(request.release)
    service = {"apiVersion": "v1", "kind": "ConfigMap", "name": release, "uid": request.service_uid}
    queue = {names.QUEUE: pod.queue} if pod.queue else {}
    owner = {names.OWNER: request.owner} if request.owner else {}
    cluster_name = {names.DEDICATED_CLUSTER: request.dedicated[0]["metadata"]["name"]} if request.dedicated else {}
    cluster_objects = {_OBJECTS: json.dumps(list(request.dedicated))} if request.dedicated else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.runner_name(request.job, request.number),
            "namespace": request.namespace,
            "labels": {**labels, **queue},
            "annotations": {names.STORAGE: request.storage, **owner, **cluster_name},
            "ownerReferences": [service],
        },
        "spec": _non_empty(
            backoffLimit=pod.backoff_limit,
            # The only value that the API server accepts with a failure policy. A pod on a lost node is not replaced.
            podReplacementPolicy="Failed",
            podFailurePolicy={"rules": _FAILURE_RULES},
            activeDeadlineSeconds=pod.deadline_s,
            ttlSecondsAfterFinished=pod.keep_s,
            template={
                "metadata": _non_empty(
                    labels={**pod.labels, **labels}, annotations={**pod.annotations, **cluster_objects}
                ),
                "spec": _pod_spec(pod, request),
            },
        ),
    }


def _pod_spec(pod: RunnerPod, request: Request) -> Object:
    return pod.extra_pod_spec | _non_empty(
        restartPolicy="Never",  # a failure policy requires it
        serviceAccountName=pod.service_account,
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        terminationGracePeriodSeconds=pod.grace_s,
        priorityClassName=pod.priority_class,
        imagePullSecrets=pod.image_pull_secrets,
        nodeSelector=pod.node_selector,
        tolerations=pod.tolerations,
        affinity=pod.affinity,
        securityContext=pod.pod_security,
        containers=[_container(pod, request)],
        volumes=[
            *pod.volumes,
            *([_TOKEN_VOLUME] if pod.mount_token else []),
            *([_DEDICATED_VOLUME] if request.dedicated else []),
        ],
    )


def _container(pod: RunnerPod, request: Request) -> Object:
    asked = ["--asked", request.asked] if request.asked else []
    dedicated = ["--dedicated", DEDICATED_FOLDER] if request.dedicated else []
    folders = {"token": ACCOUNT_FOLDER} if pod.mount_token else {}
    folders |= {"own-cluster": DEDICATED_FOLDER} if request.dedicated else {}
    mounts = [{"name": name, "mountPath": folder, "readOnly": True} for name, folder in folders.items()]
    workers = ["--workers", names.selector(request.workers)] if request.workers else []
    return _non_empty(
        name=CONTAINER,
        image=pod.image,
        imagePullPolicy=pod.image_pull_policy,
        args=["mops", "jobs", "run", request.job, "--pod", "--grace", str(pod.grace_s), *asked, *dedicated, *workers],
        env=_environment(pod, request),
        envFrom=pod.env_from,
        resources=pod.resources,
        ports=pod.ports,
        securityContext=pod.security,
        volumeMounts=[*pod.volume_mounts, *mounts],
        # A runner's last lines say why it ended: `kubectl describe` and `mops jobs status` show them.
        terminationMessagePolicy="FallbackToLogsOnError",
    )


def _environment(pod: RunnerPod, request: Request) -> list[Object]:
    """Return the container's variables; the user's settings override the chart's."""
    places = {"MODELOPS_STORAGE": request.storage, "MODELOPS_SCHEDULER": request.scheduler}
    for port in pod.ports:
        if port["name"] == "metrics":
            places["MODELOPS_METRICS_PORT"] = str(port["containerPort"])
    ours = places | dict(request.environment)
    return [
        *(variable for variable in pod.env if variable["name"] not in ours),
        *({"name": name, "value": value} for name, value in sorted(ours.items())),
    ]


def variable_of(job: Object, name: str) -> str:
    """Return a variable of the container of a runner's Job; empty: it has none of this name."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return next((one.get("value", "") for one in container.get("env", ()) if one["name"] == name), "")


def _non_empty(**fields: Any) -> Object:
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}
