"""The phase of a runner's Job and its reason, from the Job, its pods and their events. Pure.

Objects are plain dictionaries, as Kubernetes writes them (batch/v1, v1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mops.k8s import names
from mops.k8s.chart import Object
from mops.k8s.pod_state import ObjectState, last_end, newest, pending, words_of_events


@dataclass(frozen=True)
class Phase(ObjectState):
    """The phase of a runner's Job.

    The word is ``queued``, ``suspended``, ``pending``, ``unschedulable``, ``stuck`` (its container cannot be made),
    ``starting``, ``running``, ``lost`` (its node does not answer), ``retrying``, ``ended``, ``failed`` or ``gone``.

    Parameters
    ----------
    pod
        The newest pod; empty: there is none.
    restarts
        How many pods failed before.
    """

    pod: str = ""
    restarts: int = 0

    def __str__(self) -> str:
        times = "once" if self.restarts == 1 else f"{self.restarts} times"
        restarts = f", its pod ended {times} before" if self.restarts and not self.over else ""
        return f"{super().__str__()}{restarts}"

    @property
    def over(self) -> bool:
        """Whether no pod runs or will run."""
        return self.word in ("ended", "failed", "gone")


GONE = Phase("gone", "its Kubernetes Job is not there any more")

POD_LOST_HINT = "start another runner: mops jobs resume JOB; if the node comes back, the runner there stops by itself"

POD_REFUSED_HINT = "look: kubectl describe job; is a quota used up, or an admission policy in the way?"

_SUSPENDED = (
    "whoever suspended it lets it go on; where Kueue admits Jobs, name a queue: "
    "mops jobs resume JOB --take-over --queue QUEUE"
)
"""Never to patch ``suspend``: a Job that Kueue holds would run beside the quota that it waits for."""


_FAILED = {
    "BackoffLimitExceeded": "its pod ended too often",
    "DeadlineExceeded": "it took longer than activeDeadlineSeconds allows",
    "PodFailurePolicy": "it ended with an exit code after which the same would come again",
}


def phase_of(
    job: Object | None, pods: Sequence[Object], events: Sequence[Object] = (), now: datetime | None = None
) -> Phase:
    """Return where a Job stands.

    Parameters
    ----------
    job
        None: there is none.
    pods
        The Job's.
    events
        Of the namespace; those of the Job and its newest pod are looked at.
    now
        Tells a pod that is ending from one that cannot; None: no pod is taken for one of those.
    """
    if job is None:
        return GONE
    pod = newest(pods)
    found = _ended(job, pods) or _waiting(job, pod) or _lost(pod, now) or _of_pod(job, pod, events)
    return Phase(
        found.word,
        found.reason,
        found.hint,
        pod=pod["metadata"]["name"] if pod else "",
        restarts=int(job.get("status", {}).get("failed") or 0),
    )


def _ended(job: Object, pods: Sequence[Object]) -> ObjectState | None:
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["status"] != "True":
            continue
        if condition["type"] in ("Complete", "SuccessCriteriaMet"):
            return ObjectState("ended")
        if condition["type"] in ("Failed", "FailureTarget"):
            why = _FAILED.get(condition.get("reason", ""), condition.get("message", ""))
            return ObjectState("failed", "; ".join(filter(None, (why, last_end(pods)))), "look: mops jobs logs JOB")
    return None


def _waiting(job: Object, pod: Object | None) -> ObjectState | None:
    if not job["spec"].get("suspend"):
        return None
    queue = job["metadata"].get("labels", {}).get(names.QUEUE)
    if queue:
        return ObjectState("queued", f"in the queue {queue}")
    ending = "its pod is ending" if pod and pod["metadata"].get("deletionTimestamp") else ""
    return ObjectState("suspended", ending, _SUSPENDED)


def _lost(pod: Object | None, now: datetime | None) -> ObjectState | None:
    """Return the phase of a pod whose node has not ended it in time, and so does not answer.

    Kubernetes does not replace such a pod: with a failure policy it waits until the pod has ended
    (docs/internals/kubernetes.md).
    """
    if pod is None or now is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return None
    until = pod["metadata"].get("deletionTimestamp")  # when its grace period is over
    node = pod.get("spec", {}).get("nodeName")
    if until is None or node is None or (now - datetime.fromisoformat(until)).total_seconds() < _LOST_S:
        return None
    return ObjectState("lost", f"its node {node} does not answer: the pod was to end at {until}", POD_LOST_HINT)


_LOST_S = 60.0
"""After the end of a pod's grace period: kubelet needs a few seconds, and clocks differ."""


def _of_pod(job: Object, pod: Object | None, events: Sequence[Object]) -> ObjectState:
    if pod is None:
        name = job["metadata"]["name"]
        refused = words_of_events(events, "Job", name, ("FailedCreate",))
        return ObjectState("stuck" if refused else "pending", refused, POD_REFUSED_HINT if refused else "")
    status = pod.get("status", {})
    match status.get("phase"):
        case "Running":
            return ObjectState("running")
        case "Succeeded" | "Failed":
            return ObjectState("retrying", last_end([pod]))
        case _:
            return pending(pod, events)
