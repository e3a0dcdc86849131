"""The phase of a runner's Job and its reason, from the Job, its pods and their events. Pure.

Objects are plain dictionaries, as Kubernetes writes them (batch/v1, v1).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mops.k8s import names
from mops.k8s.chart import Object
from mops.k8s.pod_state import GONE, POD_LOST_HINT, POD_REFUSED_HINT, Phase, last_end, newest, pending, words_of_events

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
    return Phase(found.word, found.reason, found.hint, pod["metadata"]["name"] if pod else "", _n_failed(job))


def _n_failed(job: Object) -> int:
    return int(job.get("status", {}).get("failed") or 0)


def _ended(job: Object, pods: Sequence[Object]) -> Phase | None:
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["status"] != "True":
            continue
        if condition["type"] in ("Complete", "SuccessCriteriaMet"):
            return Phase("ended")
        if condition["type"] in ("Failed", "FailureTarget"):
            why = _FAILED.get(condition.get("reason", ""), condition.get("message", ""))
            return Phase("failed", "; ".join(filter(None, (why, last_end(pods)))), "look: mops jobs logs JOB")
    return None


def _waiting(job: Object, pod: Object | None) -> Phase | None:
    if not job["spec"].get("suspend"):
        return None
    queue = job["metadata"].get("labels", {}).get(names.QUEUE)
    if queue:
        return Phase("queued", f"in the queue {queue}")
    ending = "its pod is ending" if pod and pod["metadata"].get("deletionTimestamp") else ""
    return Phase("suspended", ending, _SUSPENDED)


def _lost(pod: Object | None, now: datetime | None) -> Phase | None:
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
    return Phase("lost", f"its node {node} does not answer: the pod was to end at {until}", POD_LOST_HINT)


_LOST_S = 60.0
"""After the end of a pod's grace period: kubelet needs a few seconds, and clocks differ."""


def _of_pod(job: Object, pod: Object | None, events: Sequence[Object]) -> Phase:
    if pod is None:
        name = job["metadata"]["name"]
        refused = words_of_events(events, "Job", name, ("FailedCreate",))
        return Phase("stuck" if refused else "pending", refused, POD_REFUSED_HINT if refused else "")
    status = pod.get("status", {})
    match status.get("phase"):
        case "Running":
            return Phase("running")
        case "Succeeded" | "Failed":
            return Phase("retrying", last_end([pod]))
        case _:
            return pending(pod, events)
