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

RUNNER = "runner"
CLIENT = "client"

_LABEL_COLUMNS = 63


def runner_name(job: str, number: int) -> str:
    """Return the name of the ``number``-th Kubernetes Job of a job; a name of a job has at most 60 characters."""
    return f"{job}-{number}"


def client_name(release: str) -> str:
    """Return the name of the ConfigMap in which the chart says what clients need."""
    return f"{release}-{CLIENT}"


def selector(labels: Mapping[str, str]) -> str:
    """Return labels as a selector."""
    return ",".join(f"{name}={value}" for name, value in labels.items())


def of_job(job: str) -> dict[str, str]:
    """Return the labels by which everything of a job is found."""
    return {NAME: "mops", JOB: job}


def label(text: str) -> str:
    """Return a text as the value of a label, which has fewer characters than texts have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_LABEL_COLUMNS].strip("-._")
