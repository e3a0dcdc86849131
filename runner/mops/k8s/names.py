"""Labels, annotations and names of Kubernetes objects. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
JOB = "mops/job"
OWNER = "mops/owner"  # also an annotation: not every name of a person is valid in a label
STUDY = "mops/study"
POOL = "mops/pool"  # of workers
QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_HOLDS = "kueue.x-k8s.io/managed"  # set by Kueue on the pods that it counts
POD_OF_JOB = "batch.kubernetes.io/job-name"  # set by Kubernetes
UID_OF_JOB = "batch.kubernetes.io/controller-uid"
DASK_CLUSTER = "dask.org/cluster-name"  # set by the operator of dask-kubernetes
DASK_COMPONENT = "dask.org/component"
STORAGE = "mops/storage"
DEDICATED_CLUSTER = "mops/dask-cluster"  # an annotation of a runner's Job: the name of its dedicated Dask cluster

MANAGE_OTHERS = "manage-others"  # a verb that only mops knows, on the ConfigMap of a release: change others' jobs

RUNNER = "runner"
CLIENT = "client"
SCHEDULER = "scheduler"
WORKER = "worker"
AUTOSCALER = "autoscaler"

DEFAULT_POOL = "default"  # of the workers outside of `worker.pools` of the chart

_LABEL_LENGTH = 63
_CLUSTER_LENGTH = 37  # the operator allows 53; with 37 the names of workers differ in their first 63 characters


def runner_name(job: str, number: int) -> str:
    """Return the name of a job's Kubernetes Job number ``number``. It fits into a label of the Job's pods."""
    return f"{job[: _LABEL_LENGTH - len(f'-{number}')].rstrip('-')}-{number}"


def cluster_name(job: str, token: str) -> str:
    """Return the name of a job's dedicated Dask cluster."""
    # A Service's name must begin with a letter, and a job's name may begin with a digit.
    # The token makes the name unique: the operator would mistake remains of an older cluster for the new cluster's.
    room = _CLUSTER_LENGTH - len(f"dask--{token}")
    return f"dask-{job[:room].strip('-')}-{token}"


def workers_name(release: str, pool: str) -> str:
    """Return the name of the Deployment of a pool of workers."""
    return f"{release}-{WORKER}" if pool == DEFAULT_POOL else f"{release}-{WORKER}-{pool}"


def client_name(release: str) -> str:
    """Return the name of the chart's ConfigMap for clients."""
    return f"{release}-{CLIENT}"


def selector(labels: Mapping[str, str]) -> str:
    """Return the selector for labels."""
    return ",".join(f"{name}={value}" for name, value in labels.items())


def of_job(job: str) -> dict[str, str]:
    """Return the labels of all objects of a job."""
    return {NAME: "mops", JOB: job}


def of_component(release: str, component: str) -> dict[str, str]:
    """Return the labels of the chart's pods of a component."""
    return {NAME: "mops", INSTANCE: release, COMPONENT: component}


def for_people(owner: str, study: str) -> dict[str, str]:
    """Return the labels that say whose job an object belongs to, and its study; without those without valid text."""
    return {name: value for name, text in ((OWNER, owner), (STUDY, study)) if (value := label(text))}


def label(text: str) -> str:
    """Return a text as the value of a label, with ``-`` for characters that labels do not allow."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_LABEL_LENGTH].strip("-._")
