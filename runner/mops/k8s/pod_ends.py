"""Finds out why pods of workers ended, for a runner that runs in a pod itself.

Pure functions decide what a pod's status means, PodHistory decides what is new in it, and Pods asks Kubernetes. The
address of a worker identifies its pod. The runner decides what follows from the end of a pod.
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
from mops.k8s.pod_state import ends_of, event_time, true_conditions
from mops.k8s.runner_job import ACCOUNT_FOLDER
from mops.verdicts import LossCause

if TYPE_CHECKING:
    from mops.k8s.client import Kubernetes

logger = logging.getLogger(__name__)

ACCOUNT = Path(ACCOUNT_FOLDER)

# If a query sees the end of a container, the end explains the loss of its worker up to this long before the query.
# Queries come every 10 s, and a lost worker waits 20 s for an explanation.
NEAR_SECONDS = 25.0

# The end also explains the loss up to this long after the query: a scheduler notices the end of a process at once.
SOON_SECONDS = 2.0

PAUSE_SECONDS = 30.0  # if two queries are farther apart, the time of what happened between them is unknown

_FORGET_SECONDS = 600.0
_TIMEOUT_SECONDS = 10.0
_SILENT_SECONDS = 20.0
_KILLED = 128 + 9

T = TypeVar("T")


def container_end(name: str, ended: Object) -> LossCause:
    """Return what the end of a pod's container means, from the field ``terminated`` of its state."""
    code, oom = ended.get("exitCode", 0), ended.get("reason") == "OOMKilled"
    # The exit code decides: on nodes with cgroup v1 a container has the reason OOMKilled if the kernel killed a child
    # process in it, however the container itself ended hours later.
    if oom and code == _KILLED:
        return LossCause(f"the container of pod {name} was OOMKilled (exit code {code})", memory=True)
    earlier = "; the kernel had killed a process in it for memory before" if oom else ""
    return LossCause(f"the container of pod {name} ended with exit code {code}{earlier}")


def removal_of(pod: Object) -> LossCause | None:
    """Return why a pod was removed; None: it was not."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    if status.get("reason") == "Evicted":
        return _evicted(name, status.get("message", ""))
    for condition in true_conditions(pod):
        if condition["type"] in _REMOVALS:
            return LossCause(
                _with_message(f"pod {name} was removed ({condition.get('reason')})", condition), removed=True
            )
    if pod["metadata"].get("deletionTimestamp"):
        return LossCause(f"pod {name} was deleted", removed=True)
    return None


_REMOVALS = ("DisruptionTarget", "TerminationTarget")  # conditions of Kubernetes, and of Kueue if it evicts a pod


def _with_message(what: str, source: Object) -> str:
    message = " ".join((source.get("message") or "").split())
    return f"{what}: {message}" if message else what


_NODE_LACKS_MEMORY = "The node was low on resource: memory"


def _evicted(name: str, message: str) -> LossCause:
    """Return what an eviction by kubelet means."""
    # A worker's container uses no more memory than it requests (helm/mops), so it does not cause a node's lack of
    # memory. It may cause a lack of disk space, of volume space or of process numbers: a simulation can use up those.
    text = _with_message(f"pod {name} was Evicted", {"message": message})
    return LossCause(text, removed=message.startswith(_NODE_LACKS_MEMORY))


def event_end(name: str, events: Iterable[Object], since: str = "") -> LossCause | None:
    """Return why a pod or its container ended, by its newest event that explains it; None: no event does."""
    # Events from before the start of the container are about the previous container.
    newest_first = sorted((event for event in events if event_time(event) >= since), key=event_time, reverse=True)
    return next(filter(None, (_end_of_event(name, event) for event in newest_first)), None)


def _end_of_event(name: str, event: Object) -> LossCause | None:
    match event.get("reason"):
        case "Evicted":
            return _evicted(name, event.get("message") or "")
        case "Preempted" | "TaintManagerEviction" as reason:
            return LossCause(_with_message(f"pod {name} was removed ({reason})", event), removed=True)
        case "OOMKilling":
            return LossCause(_with_message(f"pod {name} ran out of memory (OOMKilling)", event), memory=True)
        case "Killing" if "liveness" in (event.get("message") or ""):
            return LossCause(_with_message(f"pod {name}", event))
    return None


@dataclass
class PodRecord:
    """What queries have seen of a pod. Times are in seconds, monotonic."""

    name: str
    created: str
    host: str = ""
    removal: LossCause | None = None  # why the pod was removed; None: it was not
    ended_containers: set[str] = field(default_factory=set)  # whose ends were seen
    # of a container that was new, when a query saw it, and when the container started
    last_end: tuple[LossCause, float, str] = (LossCause(""), -math.inf, "")
    missing_since: float | None = None  # when a query first did not list the pod


class PodHistory:
    """What queries have seen of pods. Times are those of the queries: the clocks of nodes may differ."""

    def __init__(self) -> None:
        self._pods: dict[str, PodRecord] = {}
        self._noted_at = -math.inf

    def note(self, pods: Sequence[Object], now: float) -> None:
        """Note a list of all pods. Ends of containers are not new in the first list, nor after a long pause."""
        new = now - self._noted_at <= PAUSE_SECONDS
        for pod in pods:
            self._note(pod, now, new=new)
        listed = {pod["metadata"]["uid"] for pod in pods}
        for uid, record in list(self._pods.items()):
            if uid not in listed:
                record.missing_since = now if record.missing_since is None else record.missing_since
                if now - record.missing_since > _FORGET_SECONDS:
                    del self._pods[uid]
        self._noted_at = now

    def _note(self, pod: Object, now: float, *, new: bool) -> None:
        metadata = pod["metadata"]
        created = metadata.get("creationTimestamp", "")
        record = self._pods.setdefault(metadata["uid"], PodRecord(metadata["name"], created))
        record.host = pod.get("status", {}).get("podIP") or record.host
        record.removal = removal_of(pod)
        for ended in reversed(ends_of(pod)):  # the newest end comes last, and stays
            container = ended.get("containerID") or ended.get("finishedAt") or ""
            if container not in record.ended_containers and new:
                record.last_end = container_end(record.name, ended), now, ended.get("startedAt") or ""
            record.ended_containers.add(container)

    def pod_with_address(self, host: str) -> PodRecord | None:
        """Return the last pod with an address; None: no pod had this address."""
        found = (record for record in self._pods.values() if record.host == host)
        return max(found, key=lambda record: record.created, default=None)


class Pods:
    """Asks Kubernetes why pods of workers ended; if it does not answer, warns once, and the reason stays unknown."""

    def __init__(
        self,
        selector: str,
        connect: Callable[[], Kubernetes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        # It connects at the first query.
        self._selector, self._connect, self._clock = selector, connect or of_this_pod, clock
        self._kubernetes: Kubernetes | None = None
        self._history = PodHistory()
        self._silent_until = -math.inf
        self._warned = False

    def look(self) -> None:
        """List the workers' pods."""
        pods = self._answer(lambda kubernetes: kubernetes.pods(self._selector))
        if pods is not None:
            self._history.note(pods, self._clock())

    def cause(self, worker: str, at: float) -> LossCause | None:
        """Return why the worker at an address was lost ``at`` (s, monotonic); None: that is not known yet."""
        pod = self._history.pod_with_address(worker.rpartition("://")[2].rpartition(":")[0].strip("[]"))
        if pod is None:
            return None
        last_end, seen_at, container_started = pod.last_end
        end = pod.removal or (last_end if -SOON_SECONDS <= seen_at - at <= NEAR_SECONDS else None)
        if end is None and pod.missing_since is None:
            return None
        if end is not None and (end.memory or end.removed):
            return end
        events = self._answer(lambda kubernetes: kubernetes.events(pod.name)) or ()
        by_event = event_end(pod.name, events, since=container_started)
        return by_event or end or LossCause(f"pod {pod.name} was deleted", removed=True)

    def runner_out_of_memory(self, pod: str) -> str:
        """Return the text that says that a runner's pod ran out of memory; empty: it did not."""
        found = self._answer(lambda kubernetes: kubernetes.pod(pod))
        ends = [container_end(pod, ended) for ended in ends_of(found or {})]
        return next((end.text for end in ends if end.memory), "")

    def _answer(self, ask: Callable[[Kubernetes], T]) -> T | None:
        """Ask Kubernetes; None: it does not answer, and the next question waits a while."""
        if self._clock() < self._silent_until:
            return None
        try:
            self._kubernetes = self._kubernetes or self._connect()
            return ask(self._kubernetes)
        except (ServiceError, UsageError) as error:
            self._silent_until = self._clock() + _SILENT_SECONDS
            if not self._warned:
                self._warned = True
                logger.warning("cannot ask Kubernetes why pods end: %s (at %s)", error.what, error.where)
            return None


def of_this_pod() -> Kubernetes:
    """Connect with the service account of this process's pod."""
    try:
        namespace = (ACCOUNT / "namespace").read_text().strip()  # kr8s 0.20 would use the namespace default
    except OSError as error:
        raise ServiceError("the pod has no token of its service account", where=str(ACCOUNT)) from error
    return connect_kubernetes(namespace, timeout_s=_TIMEOUT_SECONDS)
