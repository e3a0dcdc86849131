"""A runner's Job, as mops creates it for a submit with the default values of the chart."""

from __future__ import annotations

from mops.k8s.chart import RunnerPod
from mops.k8s.runner_job import Request

# The runner's pod in the chart's description, with default values and a workload identity.
POD = RunnerPod.model_validate(
    {
        "image": "registry.example.org/mops:0.1.0",
        "imagePullPolicy": "IfNotPresent",
        "serviceAccount": "mops-runner",
        "automountServiceAccountToken": True,
        "podSecurityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "ports": [{"name": "metrics", "containerPort": 9095}],
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "XDG_CACHE_HOME", "value": "/tmp/.cache"},
            {"name": "DASK_CONFIG", "value": "/etc/mops/dask"},
            {"name": "AZURE_STORAGE_ACCOUNT_NAME", "value": "studies"},
        ],
        "volumes": [
            {"name": "tmp", "emptyDir": {"sizeLimit": "10Gi"}},
            {"name": "dask-config", "configMap": {"name": "mops-dask"}},
            {"name": "tls", "secret": {"secretName": "mops-tls"}},
        ],
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "dask-config", "mountPath": "/etc/mops/dask", "readOnly": True},
            {"name": "tls", "mountPath": "/etc/mops/tls", "readOnly": True},
        ],
        "labels": {
            "app.kubernetes.io/name": "mops",
            "app.kubernetes.io/instance": "mops",
            "app.kubernetes.io/component": "runner",
            "azure.workload.identity/use": "true",
        },
        "backoffLimit": 6,
        "ttlSecondsAfterFinished": 604800,
        "terminationGracePeriodSeconds": 60,
    }
)

REQUEST = Request(
    job="malaria-261121-0f3a",
    number=1,
    release="mops",
    service_uid="0f3a2f0e-6d5c-4a8e-9a55-0c9a4bd1a111",
    namespace="studies",
    storage="abfs://studies/mops",
    scheduler="tls://mops-scheduler.studies.svc:8786",
    environment={"MODELOPS_JOB_BATCH_SIZE": "400"},
    owner="ada@example.org",
    study="malaria",
)
