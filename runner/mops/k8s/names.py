"""Labels, and the names of objects: each has its home here. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
JOB = "mops/job"
OWNER = "mops/owner"
STUDY = "mops/study"
QUEUE = "kueue.x-k8s.io/queue-name"
POD_OF_JOB = "batch.kubernetes.io/job-name"  # Kubernetes' own
UID_OF_JOB = "batch.kubernetes.io/controller-uid"
DASK_CLUSTER = "dask.org/cluster-name"  # of the operator of dask-kubernetes
DASK_COMPONENT = "dask.org/component"
STORAGE = "mops/storage"
DEDICATED_CLUSTER = "mops/dask-cluster"
"""An annotation of a runner's Job: the name of its dedicated Dask cluster."""

RUNNER = "runner"
CLIENT = "client"
SCHEDULER = "scheduler"
WORKER = "worker"

_LABEL_COLUMNS = 63
_CLUSTER_COLUMNS = 37  # the operator allows 53; with these the hosts of its workers differ in their first 63


def runner_name(job: str, number: int) -> str:
    """Return the name of the ``number``-th Kubernetes Job of a job, as long as a label may be: pods have it as one."""
    return f"{job[: _LABEL_COLUMNS - len(f'-{number}')].rstrip('-')}-{number}"


def cluster_name(job: str, token: str) -> str:
    """Return the name of a job's dedicated Dask cluster.

    Parameters
    ----------
    token
        No other has it: the operator would take what is left of a cluster of the same name for the new one's.
    """
    # It begins with a letter, as a Service's name has to; a job's may begin with a digit.
    room = _CLUSTER_COLUMNS - len(f"dask--{token}")
    return f"dask-{job[:room].strip('-')}-{token}"


def client_name(release: str) -> str:
    """Return the name of the ConfigMap in which the chart says what clients need."""
    return f"{release}-{CLIENT}"


def selector(labels: Mapping[str, str]) -> str:
    """Return labels as a selector."""
    return ",".join(f"{name}={value}" for name, value in labels.items())


def of_job(job: str) -> dict[str, str]:
    """Return the labels by which everything of a job is found."""
    return {NAME: "mops", JOB: job}


def of_component(release: str, component: str) -> dict[str, str]:
    """Return the labels of the chart's pods of a component."""
    return {NAME: "mops", INSTANCE: release, COMPONENT: component}


def labels(texts: Mapping[str, str]) -> dict[str, str]:
    """Return texts as labels; those of which no character can stand in one are left out."""
    return {name: value for name, text in texts.items() if (value := label(text))}


def label(text: str) -> str:
    """Return a text as the value of a label, which has fewer characters than texts have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_LABEL_COLUMNS].strip("-._")
