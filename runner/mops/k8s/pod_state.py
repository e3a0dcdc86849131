"""Decides the state of a pod from the pod and its events. Pure; job_phase.py does it for a runner's Job.

Objects are plain dictionaries, as Kubernetes writes them (v1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mops.k8s import names
from mops.k8s.chart import Object
from mops.k8s.runner_job import CONTAINER


@dataclass(frozen=True)
class ObjectState:
    """The state of a pod or a Job."""

    word: str
    reason: str = ""  # why the object is in this state; empty: the word says enough
    hint: str = ""  # what the user can do; empty: nothing

    def __str__(self) -> str:
        return f"{self.word}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class PodState(ObjectState):
    """The state of a pod of the service."""

    # The word is ``running``, ``starting``, ``restarting``, ``ending``, ``queued`` (Kueue holds the pod),
    # ``unschedulable``, ``stuck`` or ``ended``.
    name: str = ""
    ready: bool = False  # passes its probes
    restarts: int = 0  # of its container
    last_end: str = ""  # of its container; empty: it has not ended, or ended with exit code 0
    node: str = ""


def state_of(pod: Object, events: Sequence[Object] = ()) -> PodState:
    """Return the state of a pod, with the events of the namespace."""
    state = _object_state(pod, events)
    return PodState(
        **vars(state),
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
            return ObjectState("restarting", waits[0][1], "see how it ended: kubectl logs --previous POD")
        case "Running":
            return ObjectState("running" if is_ready(pod) else "starting")
        case "Succeeded" | "Failed":
            return ObjectState("ended", pod["status"].get("reason") or "")
    return pending(pod, events)


def is_running(pod: Object) -> bool:
    """Tell whether a pod runs and passes its probes."""
    return _object_state(pod, ()).word == "running"


def true_conditions(of: Object) -> list[Object]:
    """Return the conditions that hold for a pod or a Job."""
    return [one for one in of.get("status", {}).get("conditions") or () if one["status"] == "True"]


def is_ready(pod: Object) -> bool:
    """Tell whether a pod passes its probes."""
    return any(one["type"] == "Ready" for one in true_conditions(pod))


def serving(pods: Iterable[Object]) -> Object | None:
    """Return the newest pod that accepts connections; None: there is none."""
    return newest(pod for pod in pods if is_ready(pod) and not pod["metadata"].get("deletionTimestamp"))


def container_port(service: Object, pod: Object, port: int) -> int:
    """Return the number of the pod's port to which a port of a Service leads."""
    targets = (one.get("targetPort", port) for one in service["spec"].get("ports") or () if one["port"] == port)
    target = next(targets, port)
    if isinstance(target, int):
        return target
    ports = (one for container in pod["spec"]["containers"] for one in container.get("ports") or ())
    return next((int(one["containerPort"]) for one in ports if one.get("name") == target), port)


# Kubelet's reasons why a container cannot start, and a hint for each.
_STUCK = {
    "ErrImagePull": "check the image's name and imagePullSecrets in the chart's values",
    "ImagePullBackOff": "check the image's name and imagePullSecrets in the chart's values",
    "ErrImageNeverPull": "load the image onto the node, or change imagePullPolicy in the chart's values",
    "InvalidImageName": "correct the image's name in the chart's values",
    "CreateContainerConfigError": "create the missing Secret or ConfigMap, or correct its name in the chart's values",
    "CreateContainerError": "look for the reason: kubectl describe pod POD",
    "RunContainerError": "look for the reason: kubectl describe pod POD",
}

_MISSING_HINT = "create the missing volume, Secret or ConfigMap, or correct its name in the chart's values"


def newest(objects: Iterable[Object]) -> Object | None:
    """Return the newest object; None: there are none."""
    return max(
        objects, key=lambda one: (one["metadata"].get("creationTimestamp", ""), one["metadata"]["name"]), default=None
    )


_GATE = "kueue.x-k8s.io/admission"


def in_queue(metadata: Object) -> str:
    """Return the reason why Kueue holds a Job or pod."""
    return f"in the queue {metadata.get('labels', {}).get(names.QUEUE, '')}"


def is_queued(pod: Object) -> bool:
    """Tell whether Kueue holds a pod, because its queue has no room."""
    return any(gate["name"] == _GATE for gate in pod.get("spec", {}).get("schedulingGates") or ())


def pending(pod: Object, events: Sequence[Object] = ()) -> ObjectState:
    """Return the state of a pod that does not run yet."""
    if is_queued(pod):
        return ObjectState("queued", in_queue(pod["metadata"]))
    status = pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return ObjectState(
                "unschedulable",
                condition.get("message", ""),
                "wait for room, or lower the resources in the chart's values",
            )
    for reason, text in waiting(pod):
        if reason in _STUCK:
            return ObjectState("stuck", text, _STUCK[reason])
    mount = message_of_events(events, "Pod", pod["metadata"]["name"], ("FailedMount", "FailedAttachVolume"))
    if mount:
        return ObjectState("stuck", mount, _MISSING_HINT)
    return ObjectState("starting")


def waiting(pod: Object) -> list[tuple[str, str]]:
    """Return kubelet's reason for each container that waits, alone and with its message."""
    waits = [container.get("state", {}).get("waiting") for container in _containers(pod)]
    both = [(wait.get("reason", ""), wait.get("message", "")) for wait in waits if wait]
    return [(reason, f"{reason}: {message}" if message else reason) for reason, message in both]


def _containers(pod: Object) -> Iterator[Object]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def message_of_events(events: Sequence[Object], kind: str, name: str, reasons: Sequence[str]) -> str:
    """Return the last message of these reasons about an object; empty: there is none."""
    about = {"kind": kind, "name": name}
    of_object = [event for event in events if about.items() <= event.get("involvedObject", {}).items()]
    found = [event for event in of_object if event.get("reason") in reasons]
    return str(max(found, key=event_time, default={}).get("message", ""))


def refused_pods(events: Sequence[Object], deployments: str) -> str:
    """Return why Kubernetes makes no pods of a Deployment, such as a quota; empty: no event says so.

    ``deployments`` is its name, or a pattern for several, as of a shell.
    """
    of_deployment = [event for event in events if fnmatchcase(_deployment_of(event), deployments)]
    # A refusal is over after a later event: pods were made, or the Deployment was scaled. Kubernetes renews the event
    # of a refusal at each try. Of events in one second, the refusal is the later one.
    newest = max(of_deployment, key=lambda event: (event_time(event), event.get("reason") == _REFUSED), default={})
    message = str(newest.get("message", "")) if newest.get("reason") == _REFUSED else ""
    return message.partition("is forbidden: ")[2] or message


_REFUSED = "FailedCreate"


def _deployment_of(event: Object) -> str:
    """Return the name of the Deployment that an event is about, perhaps by its ReplicaSet; empty: another object."""
    about = event.get("involvedObject", {})
    name = str(about.get("name", ""))
    return {"Deployment": name, "ReplicaSet": name.rpartition("-")[0]}.get(about.get("kind"), "")


def event_time(event: Object) -> str:
    """Return when an event was last seen, as a text that sorts by time."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def last_end(pods: Iterable[Object]) -> str:
    """Return how the last container ended; empty: none has ended, or it ended with exit code 0."""
    ended = [end for pod in pods for end in ends_of(pod)]
    if not ended:
        return ""
    last = max(ended, key=lambda end: end.get("finishedAt") or "")
    code, reason = last.get("exitCode", 0), last.get("reason")
    # The reason counts only if the exit code is not 0: on nodes with cgroup v1 a container has the reason OOMKilled if
    # the kernel killed a child process in it, however the container itself ended.
    if code == 0:
        return ""
    how = f"{reason}, exit code {code}" if reason and reason != "Error" else f"exit code {code}"
    lines = [line.strip() for line in (last.get("message") or "").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return f"{how}: {(errors or lines)[-1]}" if lines else how


def ends_of(pod: Object) -> list[Object]:
    """Return how the main container's present and last process ended, if they have."""
    ends = []
    for container in _containers(pod):
        if container.get("name") in (CONTAINER, "worker", "scheduler"):
            states = (container.get("state") or {}, container.get("lastState") or {})
            ends += [state["terminated"] for state in states if "terminated" in state]
    return ends
