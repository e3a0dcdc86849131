"""Creates a job's dedicated Dask cluster from its runner's pod, and removes it when the job has ended.

The user's process builds the cluster's objects and puts them into the runner's Job, whose pods read them here. The Job
owns the cluster, so that Kubernetes removes it with the Job if the runner does not (docs/internals/kubernetes.md).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mops.errors import ServiceError
from mops.k8s import connect
from mops.k8s.chart import Object
from mops.k8s.runner_job import ends_job
from mops.waiting import polls

if TYPE_CHECKING:
    from mops.k8s.client import Kubernetes

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_DELETION_S = 300.0  # workers may take this long to end
_COLLECTION_S = 10.0  # Kubernetes needs 1 to 2 s to collect what a deleted object owned
_OPERATOR_S = 60.0


@dataclass(frozen=True)
class DedicatedCluster:
    """The objects of a dedicated cluster."""

    objects: list[Object]  # the DaskCluster first
    owner: Object  # a reference to the runner's Job

    @classmethod
    def read(cls, folder: Path) -> DedicatedCluster:
        """Read the files of the runner's pod (:data:`mops.k8s.runner_job.DEDICATED_FILES`)."""
        name, uid = ((folder / file).read_text().strip() for file in ("job-name", "job-uid"))
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
        return cls(json.loads((folder / "objects.json").read_text()), owner)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return str(self.objects[0]["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The namespace of the cluster and its runner."""
        return str(self.objects[0]["metadata"]["namespace"])

    def create(self, kubernetes: Kubernetes) -> None:
        """Create the cluster, or find the cluster of an earlier pod; its scheduler and workers start later."""
        cluster, *more = self.objects
        created = _find_or_create(kubernetes, cluster, self.owner)
        owner = {
            **{key: created[key] for key in ("apiVersion", "kind")},
            **{key: created["metadata"][key] for key in ("name", "uid")},
        }
        for one in more:
            _find_or_create(kubernetes, one, owner)
        no_operator = ServiceError(
            f"no operator started DaskCluster {self.name} within {_OPERATOR_S:g} s",
            where=kubernetes.where,
            hint="check that the operator of dask-kubernetes runs and watches this namespace",
        )

        def operator_has_seen_it() -> bool:
            # Any phase shows that. Two handlers of the operator race to write the phase, so a cluster that works may
            # stay Pending.
            return bool((kubernetes.present(cluster) or {}).get("status", {}).get("phase"))

        _wait_until(operator_has_seen_it, _OPERATOR_S, no_operator)
        logger.info("created the dedicated Dask cluster %s", self.name)

    def remove(self, kubernetes: Kubernetes) -> None:
        """Remove the cluster, and with it all objects that it owns."""
        kubernetes.delete(self.objects[0])
        logger.info("removed the dedicated Dask cluster %s", self.name)


def _find_or_create(kubernetes: Kubernetes, manifest: Object, owner: Object) -> Object:
    """Return the object of a manifest that belongs to an owner: the existing object, or a new one."""
    existing = kubernetes.present(manifest)
    if existing is not None:
        owners = {one["uid"] for one in existing["metadata"].get("ownerReferences") or ()}
        if owner["uid"] in owners and "deletionTimestamp" not in existing["metadata"]:
            return existing
        # The object is being deleted or belongs to another owner. Wait until Kubernetes has deleted it and what it
        # owned. Otherwise the operator would use these remains for the new object, and lose them.
        remains = ServiceError(
            f"{manifest['kind']} {manifest['metadata']['name']} was not deleted within {_DELETION_S:g} s",
            where=kubernetes.where,
            hint="check that the operator of dask-kubernetes runs: it has to confirm the deletion",
        )
        _wait_until(lambda: kubernetes.present(manifest) is None, _DELETION_S, remains)
        time.sleep(_COLLECTION_S)
    return kubernetes.create({**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}})


def _wait_until(condition: Callable[[], bool], patience_s: float, otherwise: ServiceError) -> None:
    for _ in polls(_LOOK_S, patience_s):
        if condition():
            return
    raise otherwise


@contextmanager
def dedicated_cluster(folder: Path | None) -> Iterator[None]:
    """Run the body with a job's dedicated cluster, if it has one; remove the cluster if the Job ends with the body."""
    if folder is None:
        yield
        return
    cluster = DedicatedCluster.read(folder)
    cluster.create(connect(cluster.namespace))
    # If the Job continues, its next pod finds the cluster. If no pod follows, the operator removes it after IDLE_S.
    try:
        yield
    except Exception as end:
        _remove_after(cluster, getattr(end, "exit_code", 1))
        raise
    _remove_after(cluster, 0)


def _remove_after(cluster: DedicatedCluster, exit_code: int) -> None:
    if not ends_job(exit_code):
        return
    try:
        cluster.remove(connect(cluster.namespace))  # a new connection, because the job may have run for days
    except ServiceError as refused:  # the job's result does not depend on this
        logger.warning("%s was not removed and stays until it is idle: %s", cluster.name, refused.what)
