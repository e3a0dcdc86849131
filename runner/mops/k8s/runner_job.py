"""A runner's batch/v1 Job, as a manifest. Pure; docs/internals/kubernetes.md has its exit codes, with reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mops.k8s import names
from mops.k8s.chart import Object, RunnerPod

CONTAINER = "runner"
FATAL = (1, 2)
"""Exit codes after which the same would come again."""

COUNTED = (4, 137)
"""Storage or cluster out of reach, and SIGKILL, which is also how memory ends a runner."""

DEDICATED_FOLDER = "/etc/mops/own-cluster"
"""Where a runner reads which dedicated Dask cluster to make: the files of :data:`DEDICATED_FILES`."""

_OBJECTS = "mops/dask-objects"
DEDICATED_FILES = {
    "objects.json": f"metadata.annotations['{_OBJECTS}']",
    "job-name": f"metadata.labels['{names.POD_OF_JOB}']",
    "job-uid": f"metadata.labels['{names.UID_OF_JOB}']",
}
"""The files, and which of its pod's own fields each shows."""


@dataclass(frozen=True)
class Request:
    """One start of a job's runner.

    Parameters
    ----------
    number
        Of the Job: the first is 1.
    release, namespace
        Of the service.
    environment
        What the container gets besides what the chart gives it: the submitter's ``MODELOPS_JOB_*``.
    asked
        What the person who starts it has seen of the job's log: all pods of this Job get it, so that a restarted one
        knows what its Job has claimed, and none undoes what others did to the job meanwhile.
    labels
        For people: whose it is, which study.
    dedicated
        The objects of the job's dedicated Dask cluster, the DaskCluster first; empty: the job uses the shared cluster.
    workers
        Labels of the pods of its Dask workers.
    """

    job: str
    number: int
    release: str
    namespace: str
    storage: str
    scheduler: str
    environment: Mapping[str, str] = field(default_factory=dict)
    asked: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    dedicated: Sequence[Object] = ()
    workers: Mapping[str, str] = field(default_factory=dict)


def ends_job(code: int) -> bool:
    """Tell whether a Job is over, well or badly, when its pod ends with an exit code."""
    return code == 0 or code in FATAL


def runner_job(pod: RunnerPod, request: Request) -> Object:
    """Return the manifest of a runner's Job."""
    labels = {
        names.NAME: "mops",
        names.INSTANCE: request.release,
        names.COMPONENT: names.RUNNER,
        names.JOB: request.job,
        **names.labels(request.labels),
    }
    queue = {names.QUEUE: pod.queue} if pod.queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.runner_name(request.job, request.number),
            "namespace": request.namespace,
            "labels": {**labels, **queue},
            "annotations": {names.STORAGE: request.storage, **_cluster_name(request)},
        },
        "spec": _given(
            backoffLimit=pod.backoff_limit,
            # With a failure policy the API server takes no other: a pod on a node that does not answer is not replaced.
            podReplacementPolicy="Failed",
            podFailurePolicy={"rules": _failure_rules()},
            activeDeadlineSeconds=pod.deadline_s,
            ttlSecondsAfterFinished=pod.keep_s,
            template={
                "metadata": _given(
                    labels={**pod.labels, **labels}, annotations={**pod.annotations, **_cluster_objects(request)}
                ),
                "spec": _pod_spec(pod, request),
            },
        ),
    }


def _cluster_name(request: Request) -> dict[str, str]:
    return {names.DEDICATED_CLUSTER: request.dedicated[0]["metadata"]["name"]} if request.dedicated else {}


def _cluster_objects(request: Request) -> dict[str, str]:
    return {_OBJECTS: json.dumps(list(request.dedicated))} if request.dedicated else {}


def _failure_rules() -> list[Object]:
    """Return what the end of a pod means, in the order in which Kubernetes asks: the first that fits counts."""
    return [
        # Evicted, drained, preempted: not the job's fault, whatever its exit code.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": _exits(FATAL)},
        {"action": "Count", "onExitCodes": _exits(COUNTED)},
    ]


def _exits(codes: tuple[int, ...]) -> Object:
    return {"containerName": CONTAINER, "operator": "In", "values": list(codes)}


def _pod_spec(pod: RunnerPod, request: Request) -> Object:
    return _given(
        restartPolicy="Never",  # a failure policy asks for it
        serviceAccountName=pod.service_account,
        automountServiceAccountToken=pod.mount_token,
        enableServiceLinks=False,
        terminationGracePeriodSeconds=pod.grace_s,
        priorityClassName=pod.priority_class,
        imagePullSecrets=pod.image_pull_secrets,
        nodeSelector=pod.node_selector,
        tolerations=pod.tolerations,
        affinity=pod.affinity,
        securityContext=pod.pod_security,
        containers=[_container(pod, request)],
        volumes=[*pod.volumes, *([_dedicated_volume()] if request.dedicated else [])],
    )


def _dedicated_volume() -> Object:
    """Return a pod's own fields as a volume: the uid of its Job exists only when the Job does."""
    items = [{"path": name, "fieldRef": {"fieldPath": path}} for name, path in DEDICATED_FILES.items()]
    return {"name": "own-cluster", "downwardAPI": {"items": items}}


def _container(pod: RunnerPod, request: Request) -> Object:
    asked = ["--asked", request.asked] if request.asked else []
    dedicated = ["--dedicated", DEDICATED_FOLDER] if request.dedicated else []
    mounts = [{"name": "own-cluster", "mountPath": DEDICATED_FOLDER, "readOnly": True}] if request.dedicated else []
    workers = ["--workers", names.selector(request.workers)] if request.workers else []
    return _given(
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
        # What a runner says last is why it ended: shown by `kubectl describe`, and by `mops jobs status`.
        terminationMessagePolicy="FallbackToLogsOnError",
    )


def _environment(pod: RunnerPod, request: Request) -> list[Object]:
    """Return the container's variables; the chart's own come first, so that the submitter's settings count."""
    places = {"MODELOPS_STORAGE": request.storage, "MODELOPS_SCHEDULER": request.scheduler}
    for port in pod.ports:
        if port["name"] == "metrics":
            places["MODELOPS_METRICS_PORT"] = str(port["containerPort"])
    ours = places | dict(request.environment)
    return [
        *(variable for variable in pod.env if variable["name"] not in ours),
        *({"name": name, "value": value} for name, value in sorted(ours.items())),
    ]


def _given(**fields: Any) -> Object:
    """Return the fields that say something."""
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}
