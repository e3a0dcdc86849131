"""The connection to Kubernetes: the only module that imports kr8s. Its errors become ours in :func:`translated`.

Objects go in and come out as plain dictionaries, as Kubernetes writes them; what they mean is runner_job.py's and
job_phase.py's. How bytes go through a forwarded port is port_forward.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx_ws
import kr8s
import yaml
from kr8s.asyncio.objects import Pod as AsyncPod
from kr8s.asyncio.objects import Service as AsyncService
from kr8s.objects import ConfigMap, Event, Job, Pod, new_class, object_from_spec

from mops.errors import MopsError, ServiceError, UsageError
from mops.k8s import names
from mops.k8s.chart import Object
from mops.k8s.errors import brief, root_cause, translated
from mops.k8s.pod_state import container_port, serving
from mops.k8s.port_forward import Forward, Stream

_TIMEOUT_S = 20.0


_AccessReview = new_class(
    kind="SelfSubjectAccessReview", version="authorization.k8s.io/v1", namespaced=False, asyncio=False
)


class Kubernetes:
    """A namespace of a Kubernetes cluster, as the user's kubeconfig reaches it.

    Parameters
    ----------
    namespace
        None: the one of the context.
    context, kubeconfig
        As for kubectl; None: the current ones, and in a pod its service account.
    timeout_s
        How long an answer may take.

    Raises
    ------
    UsageError
        There is no such kubeconfig or context.
    ServiceError
        The cluster is out of reach, or refuses.
    """

    def __init__(
        self,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ):
        # Always named: asked for nothing in particular, kr8s gives any connection that the process has already.
        self.context, self.kubeconfig = context, kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        given = {"namespace": namespace, "context": context, "kubeconfig": self.kubeconfig}
        with _opened(f"{self.kubeconfig}, {f'context {context}' if context else 'its current context'}"):
            self._api = _within(timeout_s, lambda: kr8s.api(**given))
            self._api.timeout = timeout_s
            if context and not namespace:  # kr8s takes that of the current context
                self._api.namespace = self._api.auth.kubeconfig.get_context(context).get("namespace", "default")
        weakref.finalize(self, _remove_copies, self._api.auth)
        self.context = context or self._api.auth.active_context or None
        self.namespace: str = self._api.namespace
        self.where = f"{self._api.auth.server}, namespace {self.namespace}"

    def config_map(self, name: str) -> Object | None:
        """Return a ConfigMap; None: there is none of this name."""
        with translated(f"{self.where}: get ConfigMap {name}"), contextlib.suppress(kr8s.NotFoundError):
            found = self._named(ConfigMap, name)
            found.refresh()
            return dict(found.raw.to_dict())
        return None

    def config_maps(self, labels: dict[str, str]) -> list[Object]:
        """Return the ConfigMaps with these labels."""
        return self._list(ConfigMap, labels, "configmaps")

    def jobs(self, labels: dict[str, str]) -> list[Object]:
        """Return the Jobs with these labels."""
        return self._list(Job, labels, "jobs")

    def pods(self, labels: dict[str, str] | str) -> list[Object]:
        """Return the pods with these labels, or of a selector."""
        return self._list(Pod, labels, "pods")

    def pod(self, name: str) -> Object | None:
        """Return a pod; None: there is none of this name."""
        return next(iter(self._list(Pod, {}, "pods", f"metadata.name={name}")), None)

    def events(self, about: str | None = None) -> list[Object]:
        """Return the namespace's events, or those about a pod: Kubernetes keeps those of the last hour."""
        fields = f"involvedObject.kind=Pod,involvedObject.name={about}" if about else None
        return self._list(Event, {}, "events", fields)

    def _list(self, kind: type, labels: dict[str, str] | str, what: str, fields: str | None = None) -> list[Object]:
        chosen = labels if isinstance(labels, str) else names.selector(labels)
        with translated(f"{self.where}: list {what}"):
            found = self._api.get(kind, label_selector=chosen or None, field_selector=fields, raw=True)
            return list(found)

    def create(self, manifest: Object) -> Object:
        """Create an object in the namespace; return it as it is then.

        Raises
        ------
        AlreadyThere
            There is one of this name.
        ServiceError
            The cluster is out of reach, or refuses: what is missing.
        """
        with translated(f"{self.where}: create {_what(manifest)}"):
            new = object_from_spec(manifest, api=self._api, allow_unknown_type=True)
            new.create()
            return dict(new.raw.to_dict())

    def serves(self, version: str) -> bool:
        """Tell whether Kubernetes knows objects of a version, like ``kubernetes.dask.org/v1``."""
        with translated(f"{self.where}: list API versions"):
            return version in self._api.api_versions()

    def present(self, manifest: Object) -> Object | None:
        """Return the object of a manifest's kind and name as it is now; None: it is absent."""
        with translated(f"{self.where}: get {_what(manifest)}"), contextlib.suppress(kr8s.NotFoundError):
            found = object_from_spec(manifest, api=self._api, allow_unknown_type=True)
            found.refresh()
            return dict(found.raw.to_dict())
        return None

    def delete(self, manifest: Object) -> None:
        """Delete the object of a manifest's kind and name, and what it owns; one that is absent is fine."""
        with translated(f"{self.where}: delete {_what(manifest)}"), contextlib.suppress(kr8s.NotFoundError):
            gone = object_from_spec(manifest, api=self._api, allow_unknown_type=True)
            gone.delete(propagation_policy="Background")

    def delete_job(self, name: str) -> None:
        """Delete a Job, and its pods with it; one that is absent is fine."""
        with translated(f"{self.where}: delete Job {name}"), contextlib.suppress(kr8s.NotFoundError):
            self._named(Job, name).delete(propagation_policy="Background")

    def _named(self, kind: Any, name: str) -> Any:
        return kind({"metadata": {"name": name, "namespace": self.namespace}}, api=self._api)

    def log_lines(self, pod: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yield what a pod's first container printed, line by line.

        Parameters
        ----------
        follow
            Go on with what comes until the container ends.
        tail
            Only the last lines, so many; None: all.
        """
        with translated(f"{self.where}: logs of pod {pod}"):
            yield from self._named(Pod, pod).logs(follow=follow, tail_lines=tail, timeout=None)

    def may(self, verb: str, resource: str, group: str = "", name: str = "") -> bool:
        """Tell whether this person may do something in the namespace.

        Parameters
        ----------
        resource
            As RBAC writes it: ``pods/log``.
        name
            Of one object; empty: any.
        """
        plain, _, sub = resource.partition("/")
        asked = {"verb": verb, "resource": plain, "subresource": sub, "group": group, "name": name}
        attributes = {"namespace": self.namespace, **asked}
        with translated(f"{self.where}: ask for permissions"):
            review = _AccessReview(
                {"metadata": {"name": ""}, "spec": {"resourceAttributes": attributes}}, api=self._api
            )
            review.create()
            return bool(review.raw["status"]["allowed"])

    def forwarded(
        self, service: str, port: int, local: int | None = None, on_fault: Callable[[MopsError], None] = lambda _: None
    ) -> AbstractContextManager[str]:
        """Have a port of a Service on this machine while in the body; yield where: host and port.

        Each connection finds its pod anew, so that a pod that is replaced is missed only while there is none.

        Parameters
        ----------
        local
            The port here; None: any that is free.
        on_fault
            Told why a connection could not be made, or broke; in a thread of its own.

        Raises
        ------
        UsageError
            The local port cannot be had.
        ServiceError
            There is no such pod, this person may not forward ports, or Kubernetes is out of reach.
        """
        return Forward(_Door(self, service, port).open, on_fault).serve(local or 0)


class _Door:
    """The way to a port of a Service, by a connection of the event loop in which it is opened.

    kr8s has a PortForward; it tries for ever, without a pause, where Kubernetes refuses or the pod is gone.
    """

    def __init__(self, of: Kubernetes, service: str, port: int):
        self._of, self._service, self._port = of, service, port
        self._where = f"{of.where}: forward port {port} of Service {service}"
        self._api: Any = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Stream]:
        """Connect to the port.

        Raises
        ------
        ServiceError
            There is no such pod, this person may not forward ports, or Kubernetes is out of reach.
        """
        with translated(self._where):
            api = await self._connected()
            pod, number = await self._target(api)
            url, params = f"pods/{pod}/portforward", {"ports": str(number)}
            async with api.open_websocket("v1", namespace=self._of.namespace, url=url, params=params) as websocket:
                yield _Websocket(websocket, self._where)

    async def _connected(self) -> Any:
        if self._api is None:
            async with asyncio.timeout(_TIMEOUT_S):
                self._api = await kr8s.asyncio.api(
                    namespace=self._of.namespace, context=self._of.context, kubeconfig=self._of.kubeconfig
                )
            self._api.timeout = _TIMEOUT_S
            weakref.finalize(self, _remove_copies, self._api.auth)
        return self._api

    async def _target(self, api: Any) -> tuple[str, int]:
        """Return the pod to connect to, and its port's number."""
        here = self._of.namespace
        service = AsyncService({"metadata": {"name": self._service, "namespace": here}}, api=api)
        await service.refresh()
        selector = names.selector(service.raw["spec"]["selector"])
        pods = [one async for one in api.async_get(AsyncPod, namespace=here, label_selector=selector, raw=True)]
        pod = serving(pods)
        if pod is None:
            raise ServiceError(
                "no pod is ready that has this port", where=self._where, hint=f"look: kubectl get pods -l {selector}"
            )
        return pod["metadata"]["name"], container_port(service.raw, pod, self._port)


class _Websocket:
    """The bytes of one connection in Kubernetes' framing: a channel's number first; 0 is data, 1 says what is wrong."""

    def __init__(self, websocket: httpx_ws.AsyncWebSocketSession, where: str):
        self._websocket, self._where = websocket, where
        self._begun: set[int] = set()

    async def send(self, data: bytes) -> None:
        """As :meth:`Stream.send`."""
        with _broken():
            await self._websocket.send_bytes(b"\0" + data)

    async def receive(self) -> bytes:
        """As :meth:`Stream.receive`."""
        while True:
            with _broken():
                message = await self._websocket.receive_bytes()
            channel, data = message[0], message[1:]
            if channel not in self._begun:  # each channel begins with the port's number
                self._begun.add(channel)
            elif channel == 1:
                raise ServiceError(data.decode(errors="replace"), where=self._where, hint="look: kubectl get pods")
            elif data:
                return data


@contextmanager
def _broken() -> Iterator[None]:
    try:
        yield
    except (httpx_ws.HTTPXWSException, httpx.TransportError) as error:
        raise ConnectionAbortedError(brief(error)) from error


@contextmanager
def _opened(where: str) -> Iterator[None]:
    """Translate what kr8s raises in the body where a kubeconfig is not as it needs.

    Raises
    ------
    UsageError, ServiceError
    """
    with translated(where), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kr8s has not been tried with this version of Kubernetes
        try:
            yield
        except (OSError, ValueError, TypeError, LookupError, RuntimeError, ExceptionGroup, yaml.YAMLError) as error:
            raise UsageError(
                f"the kubeconfig does not lead to a cluster ({brief(root_cause(error))})",
                where=where,
                hint="set KUBECONFIG, or name a context that 'kubectl config get-contexts' lists",
            ) from error


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what a call returns: kr8s takes a time limit only when it is connected."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again, where it is waited for
            answer.set_exception(error)

    threading.Thread(target=run, name="mops-connect", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        return answer.result(seconds)
    raise kr8s.APITimeoutError(f"no answer for {seconds:g} s")


def _remove_copies(auth: Any) -> None:
    """Remove the files into which kr8s has copied keys and certificates of a kubeconfig: it leaves them behind."""
    if not hasattr(auth, "kubeconfig"):  # a pod's service account: nothing is copied
        return
    own = {str(value) for part in _parts(auth.kubeconfig) for value in part.values()}
    for copy in (auth.client_key_file, auth.client_cert_file, auth.server_ca_file):
        if copy and str(copy) not in own and Path(copy).parent == Path(tempfile.gettempdir()):
            Path(copy).unlink(missing_ok=True)


def _parts(kubeconfig: Any) -> Iterator[Object]:
    yield from (user["user"] for user in kubeconfig.users)
    yield from (cluster["cluster"] for cluster in kubeconfig.clusters)


def _what(manifest: Object) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"
