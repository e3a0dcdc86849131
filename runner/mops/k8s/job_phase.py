"""Decides the phase of a runner's Job and its reason, from the Job, its pods and their events. Pure.

Objects are plain dictionaries, as Kubernetes writes them (batch/v1, v1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mops.k8s import names
from mops.k8s.chart import Object
from mops.k8s.pod_state import ObjectState, in_queue, last_end, message_of_events, newest, pending, true_conditions


@dataclass(frozen=True)
class Phase(ObjectState):
    """The phase of a runner's Job.

    The word is ``queued``, ``suspended``, ``pending``, ``unschedulable``, ``stuck`` (its container cannot be made),
    ``starting``, ``running``, ``lost`` (its node does not answer), ``retrying``, ``ended``, ``failed``, ``gone`` or
    ``unknown`` (Kubernetes does not answer).
    """

    pod: str = ""  # the newest; empty: there is none
    restarts: int = 0  # how many pods failed before

    def __str__(self) -> str:
        times = "once" if self.restarts == 1 else f"{self.restarts} times"
        restarts = f", its pod ended {times} before" if self.restarts and not self.over else ""
        return f"{super().__str__()}{restarts}"

    @property
    def is_known(self) -> bool:
        """Whether Kubernetes has told the phase."""
        return self.word != "unknown"

    @property
    def over(self) -> bool:
        """Whether no pod runs or will run."""
        return self.word in ("ended", "failed", "gone")

    @property
    def has_runner(self) -> bool:
        """Whether Kubernetes says that a pod runs or will run."""
        return self.is_known and not self.over

    def is_of(self, host: str) -> bool:
        """Tell whether the newest pod has this host name: that of the pod, or the first 63 characters of it."""
        return bool(host) and self.pod.startswith(host)


GONE = Phase("gone", "its Kubernetes Job no longer exists")

POD_LOST_HINT = "start another runner: mops jobs resume JOB"  # if the node comes back, its runner stops by itself

POD_REFUSED_HINT = "find the quota or policy that refuses its pods: kubectl describe job"

# The hint is not to patch ``suspend``: a Job that Kueue holds would run outside the quota that it waits for.
_SUSPENDED = "if Kueue suspended it, name a queue: mops jobs resume JOB --take-over --queue QUEUE"


_FAILED = {
    "BackoffLimitExceeded": "its pods failed too often",
    "DeadlineExceeded": "it took longer than activeDeadlineSeconds allows",
    "PodFailurePolicy": "its pod ended with an exit code that a restart would repeat",
}


def phase_of(
    job: Object | None, pods: Sequence[Object], events: Sequence[Object] = (), now: datetime | None = None
) -> Phase:
    """Return the phase of a Job (None: it does not exist) from its pods and the events of the namespace."""
    if job is None:
        return GONE
    pod = newest(pods)
    # Without the present time, no pod counts as lost.
    found = _ended(job, pods) or _waiting(job, pod) or _lost(pod, now) or _of_pod(job, pod, events)
    name, restarts = pod["metadata"]["name"] if pod else "", int(job.get("status", {}).get("failed") or 0)
    return Phase(**vars(found), pod=name, restarts=restarts)


def _ended(job: Object, pods: Sequence[Object]) -> ObjectState | None:
    for condition in true_conditions(job):
        if condition["type"] in ("Complete", "SuccessCriteriaMet"):
            return ObjectState("ended")
        if condition["type"] in ("Failed", "FailureTarget"):
            why = _FAILED.get(condition.get("reason", ""), condition.get("message", ""))
            reason = "; ".join(filter(None, (why, last_end(pods))))
            return ObjectState("failed", reason, "read the log: mops jobs logs JOB")
    return None


def _waiting(job: Object, pod: Object | None) -> ObjectState | None:
    if not job["spec"].get("suspend"):
        return None
    if names.QUEUE in job["metadata"].get("labels", {}):
        return ObjectState("queued", in_queue(job["metadata"]))
    ending = "its pod is ending" if pod and pod["metadata"].get("deletionTimestamp") else ""
    return ObjectState("suspended", ending, _SUSPENDED)


def _lost(pod: Object | None, now: datetime | None) -> ObjectState | None:
    """Return the state of a pod whose node has not ended it in time, and so does not answer."""
    if pod is None or now is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return None
    until = pod["metadata"].get("deletionTimestamp")  # the end of its grace period
    node = pod.get("spec", {}).get("nodeName")
    if until is None or node is None or (now - datetime.fromisoformat(until)).total_seconds() < _LOST_S:
        return None
    # Kubernetes does not replace the pod: with a failure policy it waits for its end (docs/internals/kubernetes.md).
    return ObjectState("lost", f"its node {node} does not answer; the pod should have ended at {until}", POD_LOST_HINT)


_LOST_S = 60.0  # seconds after the end of a pod's grace period: kubelet needs a few seconds, and clocks differ


def _of_pod(job: Object, pod: Object | None, events: Sequence[Object]) -> ObjectState:
    if pod is None:
        name = job["metadata"]["name"]
        refused = message_of_events(events, "Job", name, ("FailedCreate",))
        return ObjectState("stuck" if refused else "pending", refused, POD_REFUSED_HINT if refused else "")
    status = pod.get("status", {})
    match status.get("phase"):
        case "Running":
            return ObjectState("running")
        case "Succeeded" | "Failed":
            return ObjectState("retrying", last_end([pod]))
        case _:
            return pending(pod, events)
