"""Creates a job's dedicated Dask cluster from its runner's pod, and removes it when the job has ended.

The user's process builds the cluster's objects and puts them into the runner's Job, whose pods read them here. The Job
owns the cluster, so that Kubernetes removes it with the Job if the runner does not (docs/internals/kubernetes.md).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


def _create(kubernetes: Kubernetes, cluster: Object, more: Sequence[Object], job: Object) -> None:
    """Create the cluster of a Job, or find the one of an earlier pod; its scheduler and workers start later."""
    created = _find_or_create(kubernetes, cluster, job)
    kind, metadata = {key: created[key] for key in ("apiVersion", "kind")}, created["metadata"]
    owner = {**kind, "name": metadata["name"], "uid": metadata["uid"]}
    for one in more:
        _find_or_create(kubernetes, one, owner)
    name = cluster["metadata"]["name"]
    what = f"no operator started DaskCluster {name} within {_OPERATOR_S:g} s"
    hint = "check that the operator of dask-kubernetes runs and watches this namespace"
    no_operator = ServiceError(what, where=kubernetes.where, hint=hint)

    def operator_has_seen_it() -> bool:
        # Any phase shows that. Two handlers of the operator race to write the phase, so a cluster that works may
        # stay Pending.
        return bool((kubernetes.present(cluster) or {}).get("status", {}).get("phase"))

    _wait_until(operator_has_seen_it, _OPERATOR_S, no_operator)
    logger.info("created the dedicated Dask cluster %s", name)


def _find_or_create(kubernetes: Kubernetes, manifest: Object, owner: Object) -> Object:
    """Return the object of a manifest that belongs to an owner: the existing object, or a new one."""
    existing = kubernetes.present(manifest)
    if existing is not None:
        owners = {one["uid"] for one in existing["metadata"].get("ownerReferences") or ()}
        if owner["uid"] in owners and "deletionTimestamp" not in existing["metadata"]:
            return existing
        # The object is being deleted or belongs to another owner. Wait until Kubernetes has deleted it and what it
        # owned. Otherwise the operator would use these remains for the new object, and lose them.
        what = f"{manifest['kind']} {manifest['metadata']['name']} was not deleted within {_DELETION_S:g} s"
        hint = "check that the operator of dask-kubernetes runs: it has to confirm the deletion"
        remains = ServiceError(what, where=kubernetes.where, hint=hint)
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
    # The files of the runner's pod (`mops.k8s.runner_job.DEDICATED_FILES`). The DaskCluster comes first.
    name, uid = ((folder / file).read_text().strip() for file in ("job-name", "job-uid"))
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
    cluster, *more = json.loads((folder / "objects.json").read_text())
    _create(connect(cluster["metadata"]["namespace"]), cluster, more, job)
    # If the Job continues, its next pod finds the cluster. If no pod follows, the operator removes it after IDLE_S.
    try:
        yield
    except Exception as end:
        _remove_after(cluster, getattr(end, "exit_code", 1))
        raise
    _remove_after(cluster, 0)


def _remove_after(cluster: Object, exit_code: int) -> None:
    """Remove a cluster, and with it all objects that it owns, if its Job ends with this exit code."""
    if not ends_job(exit_code):
        return
    name = cluster["metadata"]["name"]
    try:
        connect(cluster["metadata"]["namespace"]).delete(cluster)  # the job may have run for days, so connect again
        logger.info("removed the dedicated Dask cluster %s", name)
    except ServiceError as refused:  # the job's result does not depend on this
        logger.warning("%s was not removed and stays until it is idle: %s", name, refused.what)
