"""A service whose Kubernetes is in memory and whose storage is a folder, and jobs that are submitted to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kubernetes_in_memory import Kubernetes
from mops.jobs import submit
from mops.jobs.job import Job
from mops.jobs.location import Location
from mops.k8s import names
from mops.k8s.chart import Object
from mops.service.profile import storage_of
from mops.service.service import Service
from mops.settings import Settings
from mops.storage.job_options import PodOptions

MODEL = """
def run(params, seed):
    assert params["x"] > 0
    return {"y": [params["x"]]}
"""
DESCRIBED: Object = {
    "format": 1,
    "version": "0.1.0",
    "release": "mops",
    "scheduler": "tcp://mops-scheduler.studies.svc:8786",
    "dashboard": {"service": "mops-scheduler", "port": 8787},
    "runner": {
        "image": "mops:1",
        "serviceAccount": "mops-runner",
        "automountServiceAccountToken": True,
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    },
    "worker": {
        "selector": {names.COMPONENT: "worker"},
        "podTemplate": {"metadata": {}, "spec": {"containers": [{"name": "worker"}]}},
    },
    "schedulerPodTemplate": {"metadata": {}, "spec": {"containers": [{"name": "scheduler"}]}},
    "dedicated": {"enabled": True, "workers": 3},
}
ASKED = PodOptions(
    queue="small", priority_class="urgent", memory="2Gi", deadline_s=600, keep_s=60, dedicated=True, workers="2:4"
)


def at(service: Service) -> Location:
    return Location(Settings(), service.profile, "", storage_of(service.profile), "service", service)


def submitted(service: Service, study: Path, pod: PodOptions = ASKED, **options: Any) -> Job:
    """Submit a study to a service, and let Kubernetes end the Job before any simulation runs."""
    job = submit.submit(study, name="waves", location=at(service), wait=False, pod=pod, **options)
    in_memory(service).end_jobs()
    return job


def in_memory(service: Service) -> Kubernetes:
    return service.kubernetes  # type: ignore[return-value]


def resume(job: Job, service: Service, **options: Any) -> list[str]:
    """Resume a job; return the reported changes."""
    said: list[str] = []
    submit.resume(
        job,
        location=at(service),
        wait=False,
        on_start=lambda _, changes: said.extend(changes),
        **options,
    )
    in_memory(service).end_jobs()
    return said
