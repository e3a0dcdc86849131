"""Where a runner's Job stands in Kubernetes: from the Job, its pods and their events to one word and its reason. Pure.

Objects are plain dictionaries, as Kubernetes writes them (batch/v1, v1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from mops.k8s import names
from mops.k8s.runner_job import CONTAINER
from mops.service.profile import Object


@dataclass(frozen=True)
class Phase:
    """Where it stands.

    Parameters
    ----------
    word
        ``queued``, ``suspended``, ``pending``, ``unschedulable``, ``stuck`` (its container cannot be made),
        ``starting``, ``running``, ``lost`` (its node does not answer), ``retrying``, ``ended``, ``failed`` or ``gone``.
    reason
        Why, for people; empty: the word says it.
    hint
        What to do about it; empty: nothing.
    pod
        The newest pod; empty: there is none.
    restarts
        Pods that ended before their time.
    """

    word: str
    reason: str = ""
    hint: str = ""
    pod: str = ""
    restarts: int = 0

    def __str__(self) -> str:
        times = "once" if self.restarts == 1 else f"{self.restarts} times"
        restarts = f", its pod ended {times} before" if self.restarts and not self.over else ""
        return f"{self.word}{f': {self.reason}' if self.reason else ''}{restarts}"

    @property
    def over(self) -> bool:
        """Whether nothing runs any more, or ever will by itself."""
        return self.word in ("ended", "failed", "gone")


GONE = Phase("gone", "its Kubernetes Job is not there any more")

_SUSPENDED = (
    "whoever suspended it lets it go on; where Kueue admits Jobs, name a queue: "
    "mops jobs resume JOB --take-over --queue QUEUE"
)
"""Never to patch ``suspend``: a Job that Kueue holds would run beside the quota that it waits for."""

_STUCK = {
    "ErrImagePull": "does the image exist, and may the node pull it (imagePullSecrets)?",
    "ImagePullBackOff": "does the image exist, and may the node pull it (imagePullSecrets)?",
    "ErrImageNeverPull": "the node has no such image, and is told not to pull it (imagePullPolicy: Never)",
    "InvalidImageName": "correct the image's name in the chart's values",
    "CreateContainerConfigError": "is there a Secret or a ConfigMap missing that the chart's values name?",
    "CreateContainerError": "look: kubectl describe pod",
    "RunContainerError": "look: kubectl describe pod",
}
"""Why a container is not made, as kubelet calls it, and what to do."""

_FAILED = {
    "BackoffLimitExceeded": "its pod ended too often",
    "DeadlineExceeded": "it took longer than activeDeadlineSeconds allows",
    "PodFailurePolicy": "it ended with an exit code after which the same would come again",
}


def newest(jobs: Iterable[Object]) -> Object | None:
    """Return the newest of objects; None: there are none."""
    return max(jobs, key=_created, default=None)


def _created(one: Object) -> tuple[str, str]:
    return one["metadata"].get("creationTimestamp", ""), one["metadata"]["name"]


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

    Kubernetes does not replace such a pod: with a failure policy it waits until the pod has ended (docs/cluster.md).
    """
    if pod is None or now is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return None
    until = pod["metadata"].get("deletionTimestamp")  # when its grace period is over
    node = pod.get("spec", {}).get("nodeName")
    if until is None or node is None or (now - datetime.fromisoformat(until)).total_seconds() < _LOST_S:
        return None
    return Phase("lost", f"its node {node} does not answer: the pod was to end at {until}", _REPLACED)


_LOST_S = 60.0
"""After the end of a pod's grace period: kubelet needs a few seconds, and clocks differ."""

_REPLACED = "start another runner: mops jobs resume JOB; if the node comes back, the runner there stops by itself"


def _of_pod(job: Object, pod: Object | None, events: Sequence[Object]) -> Phase:
    if pod is None:
        name = job["metadata"]["name"]
        refused = _said(events, "Job", name, ("FailedCreate",))
        return Phase("stuck" if refused else "pending", refused, _REFUSED if refused else "")
    status = pod.get("status", {})
    match status.get("phase"):
        case "Running":
            return Phase("running")
        case "Succeeded" | "Failed":
            return Phase("retrying", last_end([pod]))
        case _:
            return pending(pod, events)


_REFUSED = "look: kubectl describe job; is a quota used up, or an admission policy in the way?"


def pending(pod: Object, events: Sequence[Object] = ()) -> Phase:
    """Return where a pod stands that has not begun to run."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Phase(
                "unschedulable", condition.get("message", ""), "ask for less (resources in the chart's values), or wait"
            )
    for reason, message in waiting(pod):
        if reason in _STUCK:
            return Phase("stuck", f"{reason}: {message}" if message else reason, _STUCK[reason])
    mount = _said(events, "Pod", pod["metadata"]["name"], ("FailedMount", "FailedAttachVolume"))
    if mount:
        return Phase("stuck", mount, "is there a volume, a Secret or a ConfigMap missing that the chart's values name?")
    return Phase("starting")


def waiting(pod: Object) -> list[tuple[str, str]]:
    """Return for what a pod's containers wait: reason and message, as kubelet says them."""
    waits = (container.get("state", {}).get("waiting") for container in _containers(pod))
    return [(wait.get("reason", ""), wait.get("message", "")) for wait in waits if wait]


def _containers(pod: Object) -> Iterator[Object]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _said(events: Sequence[Object], kind: str, name: str, reasons: Sequence[str]) -> str:
    """Return the last message of these reasons about an object; empty: there is none."""
    said = (event for event in events if event.get("reason") in reasons and _is_about(event, kind, name))
    return str(max(said, key=when, default={}).get("message", ""))


def _is_about(event: Object, kind: str, name: str) -> bool:
    about = event.get("involvedObject", {})
    return (about.get("kind"), about.get("name")) == (kind, name)


def when(event: Object) -> str:
    """Return when an event was last seen; texts that sort by time."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def last_end(pods: Iterable[Object]) -> str:
    """Return how the container that ended last did so; empty: none has ended.

    A reason is read only where the exit code is not 0: on nodes with cgroup v1 a container in which the kernel has
    killed a child for memory has the reason OOMKilled, however it ended itself.
    """
    ended = [end for pod in pods for end in ends_of(pod)]
    if not ended:
        return ""
    last = max(ended, key=lambda end: end.get("finishedAt") or "")
    code, reason = last.get("exitCode", 0), last.get("reason")
    if code == 0:
        return ""
    how = f"{reason}, exit code {code}" if reason and reason != "Error" else f"exit code {code}"
    said = _said_last(last.get("message") or "")
    return f"{how}: {said}" if said else how


def _said_last(message: str) -> str:
    """Return the line that says why a container ended: the last error; else the last line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or [""])[-1]


def ends_of(pod: Object) -> list[Object]:
    """Return how the main container's processes ended: the present one, if it has, and the one before."""
    ends = []
    for container in _containers(pod):
        if container.get("name") in (CONTAINER, "worker", "scheduler"):
            states = (container.get("state") or {}, container.get("lastState") or {})
            ends += [state["terminated"] for state in states if "terminated" in state]
    return ends
