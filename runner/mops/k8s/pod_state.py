"""What a pod is up to: from the pod and its events to a few words. Pure; phase.py has a runner's whole Job.

Objects are plain dictionaries, as Kubernetes writes them (v1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mops.k8s import job_phase
from mops.service.profile import Object


@dataclass(frozen=True)
class PodState:
    """A pod of the service.

    Parameters
    ----------
    word
        ``running``, ``starting``, ``restarting``, ``ending``, ``unschedulable``, ``stuck`` or ``ended``.
    reason
        Why it does not run, for people; empty: the word says it.
    hint
        What to do about it; empty: nothing.
    ready
        Whether it passes its probes.
    restarts
        Of its container.
    last_end
        How its container ended last; empty: it has not, or ended well.
    """

    name: str
    word: str
    reason: str = ""
    hint: str = ""
    ready: bool = False
    restarts: int = 0
    last_end: str = ""
    node: str = ""

    def __str__(self) -> str:
        return f"{self.word}{f': {self.reason}' if self.reason else ''}"


def state_of(pod: Object, events: Sequence[Object] = ()) -> PodState:
    """Return what a pod is up to.

    Parameters
    ----------
    events
        Of the namespace.
    """
    word, reason, hint = _standing(pod, events)
    return PodState(
        name=pod["metadata"]["name"],
        word=word,
        reason=reason,
        hint=hint,
        ready=is_ready(pod),
        restarts=sum(int(one.get("restartCount") or 0) for one in pod.get("status", {}).get("containerStatuses") or ()),
        last_end=job_phase.last_end([pod]),
        node=pod.get("spec", {}).get("nodeName", ""),
    )


def _standing(pod: Object, events: Sequence[Object]) -> tuple[str, str, str]:
    if pod["metadata"].get("deletionTimestamp"):
        return "ending", "", ""
    match pod.get("status", {}).get("phase"):
        case "Running" if waits := job_phase.waiting(pod):
            reason, message = waits[0]
            return "restarting", f"{reason}: {message}" if message else reason, "look: kubectl logs --previous"
        case "Running":
            return ("running" if is_ready(pod) else "starting"), "", ""
        case "Succeeded" | "Failed":
            return "ended", pod["status"].get("reason") or "", ""
    found = job_phase.pending(pod, events)
    return found.word, found.reason, found.hint


def is_running(pod: Object) -> bool:
    """Tell whether there is nothing to be said about a pod."""
    return _standing(pod, ())[0] == "running"


def is_ready(pod: Object) -> bool:
    """Tell whether a pod passes its probes."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def serving(pods: Iterable[Object]) -> Object | None:
    """Return a pod that takes connections, the newest; None: there is none."""
    return job_phase.newest(pod for pod in pods if is_ready(pod) and not pod["metadata"].get("deletionTimestamp"))


def container_port(service: Object, pod: Object, port: int) -> int:
    """Return the number of the pod's port to which a port of a Service leads."""
    targets = (one.get("targetPort", port) for one in service["spec"].get("ports") or () if one["port"] == port)
    target = next(targets, port)
    return target if isinstance(target, int) else _named_port(pod, target, port)


def _named_port(pod: Object, name: str, port: int) -> int:
    ports = (one for container in pod["spec"]["containers"] for one in container.get("ports") or ())
    return next((int(one["containerPort"]) for one in ports if one.get("name") == name), port)
