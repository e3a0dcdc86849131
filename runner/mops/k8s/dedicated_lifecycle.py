"""Creates a job's dedicated Dask cluster from its runner's pod, and removes it when the job has ended.

The submitter builds the cluster's objects (k8s/dedicated.py) and puts them into the runner's Job (k8s/runner_job.py);
the Job's pods read them here. The Job owns the cluster, so that Kubernetes removes it with the Job if the runner does
not. See docs/internals/kubernetes.md.
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
_GOING_S = 300.0  # as long as workers may take to end
_LEFT_S = 10.0  # what Kubernetes needs to collect what a deleted object owned: seen were 1 to 2 s
_TAKEN_S = 60.0


@dataclass(frozen=True)
class DedicatedCluster:
    """What makes a cluster: the DaskCluster first, its DaskAutoscaler if it has one.

    Parameters
    ----------
    owner
        A reference to the runner's Job.
    """

    objects: list[Object]
    owner: Object

    @classmethod
    def read(cls, folder: Path) -> DedicatedCluster:
        """Read what the runner's pod shows (:data:`mops.k8s.runner_job.DEDICATED_FILES`)."""
        name, uid = ((folder / file).read_text().strip() for file in ("job-name", "job-uid"))
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
        return cls(json.loads((folder / "objects.json").read_text()), owner)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return str(self.objects[0]["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The namespace that it is in, and its runner too."""
        return str(self.objects[0]["metadata"]["namespace"])

    def make(self, kubernetes: Kubernetes) -> None:
        """Have the cluster, whose scheduler and workers come by and by: made, or found as an earlier pod has made it.

        Raises
        ------
        ServiceError
            Kubernetes refuses, or no operator takes it.
        """
        cluster, *more = self.objects
        made = _find_or_create(kubernetes, cluster, self.owner)
        owner = {key: made[key] for key in ("apiVersion", "kind")} | {key: made["metadata"][key] for key in _IDENTITY}
        for one in more:
            _find_or_create(kubernetes, one, owner)
        _waited_for(lambda: _taken(kubernetes.present(cluster)), _TAKEN_S, self._not_taken(kubernetes.where))
        logger.info("the Dask cluster %s is this job's own", self.name)

    def _not_taken(self, where: str) -> ServiceError:
        return ServiceError(
            f"no operator takes DaskCluster {self.name}, for {_TAKEN_S:g} s",
            where=where,
            hint="does the operator of dask-kubernetes run, and does it watch this namespace?",
        )

    def remove(self, kubernetes: Kubernetes) -> None:
        """Remove the cluster; what belongs to it goes with it."""
        kubernetes.delete(self.objects[0])
        logger.info("the Dask cluster %s is removed", self.name)


_IDENTITY = ("name", "uid")


def _find_or_create(kubernetes: Kubernetes, manifest: Object, owner: Object) -> Object:
    """Return the object of a manifest that belongs to an owner: found, or created.

    One of its name that goes, or that belongs to an owner that is gone, is waited for until it is not there any more,
    and then for what it owned: the operator would take that for the new one's, and Kubernetes collect it.
    """
    there = kubernetes.present(manifest)
    if there is not None and not _stays(there, owner):
        gone = ServiceError(
            f"{manifest['kind']} {manifest['metadata']['name']} does not go, for {_GOING_S:g} s",
            where=kubernetes.where,
            hint="the operator of dask-kubernetes has to let it go: does it run?",
        )
        _waited_for(lambda: kubernetes.present(manifest) is None, _GOING_S, gone)
        time.sleep(_LEFT_S)
        there = None
    if there is not None:
        return there
    return kubernetes.create({**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}})


def _stays(there: Object, owner: Object) -> bool:
    owners = {one["uid"] for one in there["metadata"].get("ownerReferences") or ()}
    return owner["uid"] in owners and "deletionTimestamp" not in there["metadata"]


def _taken(cluster: Object | None) -> bool:
    """Tell whether the operator has seen a cluster.

    That it has a phase is all that the phase says: two of the operator's handlers race for it, and a cluster that works
    may stay ``Pending``.
    """
    return bool(cluster and cluster.get("status", {}).get("phase"))


def _waited_for(look: Callable[[], bool], patience_s: float, otherwise: ServiceError) -> None:
    for _ in polls(_LOOK_S, patience_s):
        if look():
            return
    raise otherwise


@contextmanager
def dedicated_cluster(folder: Path | None) -> Iterator[None]:
    """Run the body with a job's dedicated cluster; remove the cluster if the body's end is the end of the Job.

    Otherwise the Job's next pod finds the cluster. If there is none, the operator removes it after :data:`IDLE_S`.

    Parameters
    ----------
    folder
        The files of :data:`mops.k8s.runner_job.DEDICATED_FILES`; None: the job has no dedicated cluster.
    """
    if folder is None:
        yield
        return
    own = DedicatedCluster.read(folder)
    own.make(connect(own.namespace))
    try:
        yield
    except Exception as end:
        _ended(own, getattr(end, "exit_code", 1))
        raise
    _ended(own, 0)


def _ended(own: DedicatedCluster, code: int) -> None:
    if not ends_job(code):
        return
    try:
        own.remove(connect(own.namespace))  # anew: the job may have taken days
    except ServiceError as refused:  # the job itself has ended as it has
        logger.warning("the Dask cluster %s stays until it was idle for long: %s", own.name, refused.what)
