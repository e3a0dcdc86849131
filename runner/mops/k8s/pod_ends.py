"""Why pods ended, as Kubernetes tells it to a runner that runs in a pod itself.

What a pod's status means is decided by pure functions, when something was new in it by :class:`PodHistory`;
:class:`Pods` reads. A worker is found by the address of its pod, whatever it is called. What follows from an end is the
driver's.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mops.errors import ServiceError, UsageError
from mops.k8s import connect as connect_kubernetes
from mops.k8s.chart import Object
from mops.k8s.pod_state import ends_of, when

if TYPE_CHECKING:
    from mops.k8s.client import Kubernetes

logger = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has the token of its service account, and the name of its namespace."""

NEAR_SECONDS = 25.0
"""A container's end explains a departure that was no longer before the look which saw it.

Looks come every ten seconds, and a departure waits twenty for one that tells.
"""

SOON_SECONDS = 2.0
"""Nor longer after it: a scheduler hears at once that a process has ended."""

PAUSE_SECONDS = 30.0
"""Of what happened between two looks that are farther apart nobody can say when it did."""

_FORGET_SECONDS = 600.0
_TIMEOUT_SECONDS = 10.0
_REST_SECONDS = 20.0
_KILLED = 128 + 9

T = TypeVar("T")


@dataclass(frozen=True)
class PodEnd:
    """Why a pod, or its container, ended.

    Parameters
    ----------
    text
        It in words.
    memory
        It ran out of memory.
    removed
        It was taken away, whatever ran in it.
    """

    text: str
    memory: bool = False
    removed: bool = False


def container_end(name: str, ended: Object) -> PodEnd:
    """Return what the end of a pod's container means.

    The exit code decides: on nodes with cgroup v1 a container in which the kernel has killed a child for memory has
    the reason OOMKilled however it ended itself, be it hours later.

    Parameters
    ----------
    ended
        ``terminated`` of a container's state.
    """
    code, oom = ended.get("exitCode", 0), ended.get("reason") == "OOMKilled"
    if oom and code == _KILLED:
        return PodEnd(f"the container of pod {name} was OOMKilled (exit code {code})", memory=True)
    earlier = ", and the kernel had killed a process in it for memory before" if oom else ""
    return PodEnd(f"the container of pod {name} ended with exit code {code}{earlier}")


def removal_of(pod: Object) -> PodEnd | None:
    """Return who took a pod away; None: nobody has."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    if status.get("reason") == "Evicted":
        return _evicted(name, status.get("message", ""))
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return PodEnd(_said(f"pod {name} was taken away ({condition.get('reason')})", condition), removed=True)
    if pod["metadata"].get("deletionTimestamp"):
        return PodEnd(f"pod {name} was deleted", removed=True)
    return None


def _said(what: str, said_by: Object) -> str:
    message = " ".join((said_by.get("message") or "").split())
    return f"{what}: {message}" if message else what


_NODE_LACKS_MEMORY = "The node was low on resource: memory"


def _evicted(name: str, message: str) -> PodEnd:
    """Return what an eviction by kubelet means.

    A worker's container takes no more memory than it has asked for (helm/mops), so that a node without memory is not
    its doing. Of a disk, a volume's limit or a node's processes this cannot be said: a simulation may fill them.
    """
    return PodEnd(
        _said(f"pod {name} was Evicted", {"message": message}), removed=message.startswith(_NODE_LACKS_MEMORY)
    )


def event_end(name: str, events: Iterable[Object], since: str = "") -> PodEnd | None:
    """Return what the newest event that tells why a pod, or its container, ended says of it; None: there is none.

    Parameters
    ----------
    since
        When the container was started: what is older is of the one before.
    """
    by_age = sorted((event for event in events if when(event) >= since), key=when, reverse=True)
    return next(filter(None, (_told(name, event) for event in by_age)), None)


def _told(name: str, event: Object) -> PodEnd | None:
    match event.get("reason"):
        case "Evicted":
            return _evicted(name, event.get("message") or "")
        case "Preempted" | "TaintManagerEviction" as reason:
            return PodEnd(_said(f"pod {name} was taken away ({reason})", event), removed=True)
        case "OOMKilling":
            return PodEnd(_said(f"pod {name} was out of memory (OOMKilling)", event), memory=True)
        case "Killing" if "liveness" in (event.get("message") or ""):
            return PodEnd(_said(f"pod {name}", event))
    return None


@dataclass
class PodRecord:
    """What is known of a pod.

    Parameters
    ----------
    born
        When it was created, for their order.
    ends
        Containers of which it is known how they ended.
    last
        How the last one did that was news, when (s, monotonic) that was seen, and when it was started.
    gone
        When (s, monotonic) the pod was first not listed.
    """

    name: str
    born: str
    host: str = ""
    taken: PodEnd | None = None
    ends: set[str] = field(default_factory=set)
    last: tuple[PodEnd, float, str] = (PodEnd(""), -math.inf, "")
    gone: float | None = None

    def end(self, at: float) -> PodEnd | None:
        """Return why it, or its container, ended at about a time; None: neither has."""
        end, seen_at, _ = self.last
        return self.taken or (end if -SOON_SECONDS <= seen_at - at <= NEAR_SECONDS else None)


class PodHistory:
    """What has been seen of pods, look by look. Times are the looks': clocks of nodes do not count."""

    def __init__(self) -> None:
        self._pods: dict[str, PodRecord] = {}
        self._noted_at = -math.inf

    def note(self, pods: Sequence[Object], now: float) -> None:
        """Take a list of all pods. How containers ended before the first list, or after a long pause, is no news."""
        news = now - self._noted_at <= PAUSE_SECONDS
        for pod in pods:
            self._note(pod, now, news=news)
        there = {pod["metadata"]["uid"] for pod in pods}
        for uid, seen in list(self._pods.items()):
            if uid not in there:
                seen.gone = now if seen.gone is None else seen.gone
                if now - seen.gone > _FORGET_SECONDS:
                    del self._pods[uid]
        self._noted_at = now

    def _note(self, pod: Object, now: float, *, news: bool) -> None:
        about = pod["metadata"]
        seen = self._pods.setdefault(about["uid"], PodRecord(about["name"], about.get("creationTimestamp", "")))
        seen.host = pod.get("status", {}).get("podIP") or seen.host
        seen.taken = removal_of(pod)
        for ended in reversed(ends_of(pod)):  # the newest comes last, and stays
            container = ended.get("containerID") or ended.get("finishedAt") or ""
            if container not in seen.ends and news:
                seen.last = container_end(seen.name, ended), now, ended.get("startedAt") or ""
            seen.ends.add(container)

    def at(self, host: str) -> PodRecord | None:
        """Return the pod that has, or had last, an address; None: none is known."""
        found = (seen for seen in self._pods.values() if seen.host == host)
        return max(found, key=lambda seen: seen.born, default=None)


class Pods:
    """Kubernetes, asked why pods ended. Where it does not answer that is said once, and nobody knows.

    Parameters
    ----------
    selector
        Of the workers' pods.
    connect
        Returns the connection; called at the first look.
    """

    def __init__(
        self,
        selector: str,
        connect: Callable[[], Kubernetes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._selector, self._connect, self._clock = selector, connect or of_this_pod, clock
        self._kubernetes: Kubernetes | None = None
        self._book = PodHistory()
        self._rests_until = -math.inf
        self._said = False

    def look(self) -> None:
        """List the workers' pods."""
        pods = self._asked(lambda kubernetes: kubernetes.pods(self._selector))
        if pods is not None:
            self._book.note(pods, self._clock())

    def cause(self, worker: str, at: float) -> PodEnd | None:
        """Return why the worker of an address went ``at`` (s, monotonic); None: nothing is known, or not yet."""
        pod = self._book.at(worker.rpartition("://")[2].rpartition(":")[0].strip("[]"))
        if pod is None:
            return None
        end = pod.end(at)
        if end is None and pod.gone is None:
            return None
        if end is not None and (end.memory or end.removed):
            return end
        return self._event_end(pod) or end or PodEnd(f"pod {pod.name} was deleted", removed=True)

    def _event_end(self, pod: PodRecord) -> PodEnd | None:
        _, _, started = pod.last
        return event_end(pod.name, self._asked(lambda kubernetes: kubernetes.events(pod.name)) or (), since=started)

    def runner_out_of_memory(self, pod: str) -> str:
        """Return what says that a runner's pod ran out of memory; empty: nothing does."""
        found = self._asked(lambda kubernetes: kubernetes.pod(pod))
        ends = [container_end(pod, ended) for ended in ends_of(found or {})]
        return next((end.text for end in ends if end.memory), "")

    def _asked(self, ask: Callable[[Kubernetes], T]) -> T | None:
        """Ask Kubernetes; None: it does not answer, and is not asked again for a while."""
        if self._clock() < self._rests_until:
            return None
        try:
            self._kubernetes = self._kubernetes or self._connect()
            return ask(self._kubernetes)
        except (ServiceError, UsageError) as error:
            self._rests_until = self._clock() + _REST_SECONDS
            self._warn(error)
            return None

    def _warn(self, error: ServiceError | UsageError) -> None:
        if not self._said:
            self._said = True
            logger.warning("Kubernetes does not tell why pods end: %s; at %s; the job goes on", error.what, error.where)


def of_this_pod() -> Kubernetes:
    """Return the connection that the service account of this process's pod has.

    Raises
    ------
    ServiceError
        It has none, or Kubernetes does not answer.
    """
    try:
        namespace = (ACCOUNT / "namespace").read_text().strip()  # kr8s 0.20 would take the one called default
    except OSError as error:
        raise ServiceError("the pod has no token of its service account", where=str(ACCOUNT)) from error
    return connect_kubernetes(namespace, timeout_s=_TIMEOUT_SECONDS)
