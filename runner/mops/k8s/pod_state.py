"""The state of a pod in a few words, from the pod and its events. Pure; job_phase.py has a runner's whole Job.

Objects are plain dictionaries, as Kubernetes writes them (v1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mops.k8s.chart import Object
from mops.k8s.runner_job import CONTAINER


@dataclass(frozen=True)
class ObjectState:
    """The state of a pod or a Job.

    Parameters
    ----------
    reason
        Why the object is in this state; empty: the word says enough.
    hint
        What the user can do; empty: nothing.
    """

    word: str
    reason: str = ""
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.word}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class PodState(ObjectState):
    """The state of a pod of the service.

    The word is ``running``, ``starting``, ``restarting``, ``ending``, ``unschedulable``, ``stuck`` or ``ended``.

    Parameters
    ----------
    ready
        Whether the pod passes its probes.
    restarts
        How often its container was restarted.
    last_end
        How its container ended last; empty: it has not ended, or ended with exit code 0.
    """

    name: str = ""
    ready: bool = False
    restarts: int = 0
    last_end: str = ""
    node: str = ""


def state_of(pod: Object, events: Sequence[Object] = ()) -> PodState:
    """Return the state of a pod.

    Parameters
    ----------
    events
        The events of the namespace.
    """
    state = _object_state(pod, events)
    return PodState(
        word=state.word,
        reason=state.reason,
        hint=state.hint,
        name=pod["metadata"]["name"],
        ready=is_ready(pod),
        restarts=sum(int(one.get("restartCount") or 0) for one in pod.get("status", {}).get("containerStatuses") or ()),
        last_end=last_end([pod]),
        node=pod.get("spec", {}).get("nodeName", ""),
    )


def _object_state(pod: Object, events: Sequence[Object]) -> ObjectState:
    if pod["metadata"].get("deletionTimestamp"):
        return ObjectState("ending")
    match pod.get("status", {}).get("phase"):
        case "Running" if waits := waiting(pod):
            reason, message = waits[0]
            text = f"{reason}: {message}" if message else reason
            return ObjectState("restarting", text, "look: kubectl logs --previous")
        case "Running":
            return ObjectState("running" if is_ready(pod) else "starting")
        case "Succeeded" | "Failed":
            return ObjectState("ended", pod["status"].get("reason") or "")
    return pending(pod, events)


def is_running(pod: Object) -> bool:
    """Tell whether a pod runs and passes its probes."""
    return _object_state(pod, ()).word == "running"


def is_ready(pod: Object) -> bool:
    """Tell whether a pod passes its probes."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def serving(pods: Iterable[Object]) -> Object | None:
    """Return a pod that takes connections, the newest; None: there is none."""
    return newest(pod for pod in pods if is_ready(pod) and not pod["metadata"].get("deletionTimestamp"))


def container_port(service: Object, pod: Object, port: int) -> int:
    """Return the number of the pod's port to which a port of a Service leads."""
    targets = (one.get("targetPort", port) for one in service["spec"].get("ports") or () if one["port"] == port)
    target = next(targets, port)
    return target if isinstance(target, int) else _named_port(pod, target, port)


def _named_port(pod: Object, name: str, port: int) -> int:
    ports = (one for container in pod["spec"]["containers"] for one in container.get("ports") or ())
    return next((int(one["containerPort"]) for one in ports if one.get("name") == name), port)


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


def newest(jobs: Iterable[Object]) -> Object | None:
    """Return the newest of objects; None: there are none."""
    return max(jobs, key=_created, default=None)


def _created(one: Object) -> tuple[str, str]:
    return one["metadata"].get("creationTimestamp", ""), one["metadata"]["name"]


def pending(pod: Object, events: Sequence[Object] = ()) -> ObjectState:
    """Return where a pod stands that has not begun to run."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return ObjectState(
                "unschedulable", condition.get("message", ""), "ask for less (resources in the chart's values), or wait"
            )
    for reason, message in waiting(pod):
        if reason in _STUCK:
            return ObjectState("stuck", f"{reason}: {message}" if message else reason, _STUCK[reason])
    mount = words_of_events(events, "Pod", pod["metadata"]["name"], ("FailedMount", "FailedAttachVolume"))
    if mount:
        return ObjectState(
            "stuck", mount, "is there a volume, a Secret or a ConfigMap missing that the chart's values name?"
        )
    return ObjectState("starting")


def waiting(pod: Object) -> list[tuple[str, str]]:
    """Return for what a pod's containers wait: reason and message, as kubelet says them."""
    waits = (container.get("state", {}).get("waiting") for container in _containers(pod))
    return [(wait.get("reason", ""), wait.get("message", "")) for wait in waits if wait]


def _containers(pod: Object) -> Iterator[Object]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def words_of_events(events: Sequence[Object], kind: str, name: str, reasons: Sequence[str]) -> str:
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
