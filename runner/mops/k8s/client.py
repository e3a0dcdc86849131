"""The connection to Kubernetes. Only this module and errors.py, which translates errors, import kr8s.

Objects are plain dictionaries, as Kubernetes writes them; runner_job.py and job_phase.py know their meaning.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import tempfile
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import httpx_ws
import kr8s
import yaml
from kr8s.asyncio.objects import Pod as AsyncPod
from kr8s.asyncio.objects import Service as AsyncService
from kr8s.objects import ConfigMap, Deployment, Event, Job, Pod, Secret, new_class, object_from_spec

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
_Review = new_class(kind="SelfSubjectReview", version="authentication.k8s.io/v1", namespaced=False, asyncio=False)


class Kubernetes:
    """A namespace of a Kubernetes cluster, as the user's kubeconfig reaches it."""

    def __init__(
        self,
        namespace: str | None = None,  # None: the context's
        # as for kubectl; None: the current ones, and in a pod its service account
        context: str | None = None,
        kubeconfig: str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ):
        # Always named: without a kubeconfig, kr8s returns any connection that this process has already.
        self.context, self.kubeconfig = context, kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        options = {"namespace": namespace, "context": context, "kubeconfig": self.kubeconfig}
        with _opened(f"{self.kubeconfig}, {f'context {context}' if context else 'its current context'}"):
            self._api = _within(timeout_s, lambda: kr8s.api(**options))
            self._api.timeout = timeout_s
            if context and not namespace:  # kr8s uses the current context's namespace
                self._api.namespace = self._api.auth.kubeconfig.get_context(context).get("namespace", "default")
        weakref.finalize(self, _remove_copies, self._api.auth)
        self.context = context or self._api.auth.active_context or None
        self.namespace: str = self._api.namespace
        self.where = f"{self._api.auth.server}, namespace {self.namespace}"

    def config_map(self, name: str) -> Object | None:
        """Return a ConfigMap; None: it does not exist."""
        return self.present({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})

    def secret(self, name: str, keys: tuple[str, ...]) -> dict[str, str]:
        """Return the texts that a Secret has under these keys. ServiceError: one is missing."""
        where = f"{self.where}: get Secret {name}"
        with translated(where):
            found = self._named(Secret, name)
            found.refresh()
            data = found.raw.get("data", {})
        if missing := [key for key in keys if key not in data]:
            hint = "ask the cluster's operator to add it"
            raise ServiceError(f"the Secret lacks {', '.join(missing)}", where=where, hint=hint)
        return {key: base64.b64decode(data[key]).decode() for key in keys}

    def config_maps(self, labels: dict[str, str]) -> list[Object]:
        """Return the ConfigMaps with these labels."""
        return self._list(ConfigMap, labels, "configmaps")

    def jobs(self, labels: dict[str, str]) -> list[Object]:
        """Return the Jobs with these labels."""
        return self._list(Job, labels, "jobs")

    def pods(self, labels: dict[str, str] | str) -> list[Object]:
        """Return the pods with these labels, or of this selector."""
        return self._list(Pod, labels, "pods")

    def pod(self, name: str) -> Object | None:
        """Return a pod; None: it does not exist."""
        return next(iter(self._list(Pod, {}, "pods", f"metadata.name={name}")), None)

    def events(self, about: str | None = None) -> list[Object]:
        """Return the namespace's events, or those about a pod; Kubernetes keeps events for an hour."""
        fields = f"involvedObject.kind=Pod,involvedObject.name={about}" if about else None
        return self._list(Event, {}, "events", fields)

    def _list(self, kind: type, labels: dict[str, str] | str, what: str, fields: str | None = None) -> list[Object]:
        chosen = labels if isinstance(labels, str) else names.selector(labels)
        with translated(f"{self.where}: list {what}"):
            found = self._api.get(kind, label_selector=chosen or None, field_selector=fields, raw=True)
            return list(found)

    def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Create an object in the namespace, or (dry_run) let Kubernetes check it; return it as Kubernetes has it."""
        with translated(f"{self.where}: create {_what(manifest)}", has_options=manifest["kind"] == "Job"):
            new = object_from_spec(manifest, api=self._api, allow_unknown_type=True)
            if dry_run:
                new.endpoint += "?dryRun=All"  # kr8s has no argument for it
            new.create()
            return dict(new.raw.to_dict())

    def serves(self, version: str) -> bool:
        """Tell whether Kubernetes has an API version, like ``kubernetes.dask.org/v1``."""
        with translated(f"{self.where}: list API versions"):
            return version in self._api.api_versions()

    def present(self, manifest: Object) -> Object | None:
        """Return the object with a manifest's kind and name; None: it does not exist."""
        with translated(f"{self.where}: get {_what(manifest)}"), contextlib.suppress(kr8s.NotFoundError):
            found = object_from_spec(manifest, api=self._api, allow_unknown_type=True)
            found.refresh()
            return dict(found.raw.to_dict())
        return None

    def delete(self, manifest: Object) -> None:
        """Delete the object with a manifest's kind and name, and what it owns, if it exists."""
        with translated(f"{self.where}: delete {_what(manifest)}"), contextlib.suppress(kr8s.NotFoundError):
            found = object_from_spec(manifest, api=self._api, allow_unknown_type=True)
            found.delete(propagation_policy="Background")

    def delete_job(self, name: str) -> None:
        """Delete a Job and its pods, if it exists."""
        self.delete({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}})

    def replicas(self, deployment: str) -> int:
        """Return how many pods a Deployment should have."""
        with translated(f"{self.where}: get Deployment {deployment}"):
            found = self._named(Deployment, deployment)
            found.refresh()
            return int(found.raw["spec"].get("replicas", 1))

    def scale(self, deployment: str, replicas: int) -> None:
        """Set how many pods a Deployment should have; do not wait for them."""
        with translated(f"{self.where}: scale Deployment {deployment}"):
            self._named(Deployment, deployment).patch({"spec": {"replicas": replicas}}, subresource="scale")

    def annotate_pod(self, name: str, annotations: dict[str, str]) -> None:
        """Add annotations to a pod, if it exists."""
        with translated(f"{self.where}: annotate pod {name}"), contextlib.suppress(kr8s.NotFoundError):
            self._named(Pod, name).patch({"metadata": {"annotations": annotations}})

    def _named(self, kind: Any, name: str) -> Any:
        return kind({"metadata": {"name": name, "namespace": self.namespace}}, api=self._api)

    def log_lines(self, pod: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yield the lines that a pod's first container printed, and with ``follow`` also new ones, until it ends."""
        with translated(f"{self.where}: logs of pod {pod}"):
            yield from self._named(Pod, pod).logs(follow=follow, tail_lines=tail, timeout=None)

    @cached_property
    def user(self) -> str:
        """The name of this person, as Kubernetes knows it."""
        with translated(f"{self.where}: ask who you are"):
            review = _Review({"metadata": {"name": ""}}, api=self._api)
            review.create()
            return str(review.raw["status"]["userInfo"]["username"])

    def may(self, verb: str, resource: str, group: str = "", name: str = "") -> bool:
        """Tell whether this person has a permission in the namespace."""
        # As RBAC writes it: ``pods/log``. Without a name, the permission is for any object.
        plain, _, sub = resource.partition("/")
        what = {"verb": verb, "resource": plain, "subresource": sub, "group": group, "name": name}
        spec = {"resourceAttributes": {"namespace": self.namespace, **what}}
        with translated(f"{self.where}: ask for permissions"):
            review = _AccessReview({"metadata": {"name": ""}, "spec": spec}, api=self._api)
            review.create()
            return bool(review.raw["status"]["allowed"])

    def forwarded(
        self, service: str, port: int, local: int | None = None, on_fault: Callable[[MopsError], None] = lambda _: None
    ) -> AbstractContextManager[str]:
        """Forward a port of a Service to ``local``, or any free port, while the body runs; yield host and port."""
        # Each connection looks for a pod, so that connections fail only while no pod exists. ``on_fault`` gets each
        # failure of a connection, in a separate thread.
        return Forward(_Door(self, service, port).open, on_fault).serve(local or 0)


class _Door:
    """Opens connections to a port of a Service, in the event loop of the caller."""

    # The PortForward of kr8s retries endlessly and without a pause if Kubernetes refuses or no pod exists.
    def __init__(self, of: Kubernetes, service: str, port: int):
        self._of, self._service, self._port = of, service, port
        self._where = f"{of.where}: forward port {port} of Service {service}"
        self._api: Any = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Stream]:
        """Connect to the port."""
        with translated(self._where):
            if self._api is None:
                async with asyncio.timeout(_TIMEOUT_S):
                    self._api = await kr8s.asyncio.api(
                        namespace=self._of.namespace, context=self._of.context, kubeconfig=self._of.kubeconfig
                    )
                self._api.timeout = _TIMEOUT_S
                weakref.finalize(self, _remove_copies, self._api.auth)
            pod, number = await self._target()
            url, params = f"pods/{pod}/portforward", {"ports": str(number)}
            async with self._api.open_websocket(
                "v1", namespace=self._of.namespace, url=url, params=params
            ) as websocket:
                yield _Websocket(websocket, self._where)

    async def _target(self) -> tuple[str, int]:
        """Return the pod to connect to, and the number of its port."""
        here = self._of.namespace
        service = AsyncService({"metadata": {"name": self._service, "namespace": here}}, api=self._api)
        await service.refresh()
        selector = names.selector(service.raw["spec"]["selector"])
        pods = self._api.async_get(AsyncPod, namespace=here, label_selector=selector, raw=True)
        pod = serving([one async for one in pods])
        if pod is None:
            hint = f"look at the pods: kubectl get pods -l {selector}"
            raise ServiceError("no pod of this Service is ready", where=self._where, hint=hint)
        return pod["metadata"]["name"], container_port(service.raw, pod, self._port)


class _Websocket:
    """One connection in Kubernetes' framing: messages begin with a channel's number; 0 is data, 1 an error text."""

    def __init__(self, websocket: httpx_ws.AsyncWebSocketSession, where: str):
        self._websocket, self._where = websocket, where
        self._begun: set[int] = set()

    async def send(self, data: bytes) -> None:
        with _broken():
            await self._websocket.send_bytes(b"\0" + data)

    async def receive(self) -> bytes:
        while True:
            with _broken():
                message = await self._websocket.receive_bytes()
            channel, data = message[0], message[1:]
            if channel not in self._begun:  # the first message of a channel is the port's number
                self._begun.add(channel)
            elif channel == 1:
                hint = "look at the pods: kubectl get pods"
                raise ServiceError(data.decode(errors="replace"), where=self._where, hint=hint)
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
    """Translate what kr8s raises in the body for a wrong kubeconfig."""
    with translated(where), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kr8s warns about versions of Kubernetes that it was not tested with
        try:
            yield
        except (OSError, ValueError, TypeError, LookupError, RuntimeError, ExceptionGroup, yaml.YAMLError) as error:
            what = f"the kubeconfig does not lead to a cluster ({brief(root_cause(error))})"
            raise UsageError(what, where=where, hint="list your contexts: kubectl config get-contexts") from error


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return the result of a call within a time limit: kr8s has limits only once it is connected."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            answer.set_exception(error)

    threading.Thread(target=run, name="mops-connect", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        return answer.result(seconds)
    raise kr8s.APITimeoutError(f"no answer for {seconds:g} s")


def _remove_copies(auth: Any) -> None:
    """Remove the files with keys and certificates of a kubeconfig that kr8s writes and leaves behind."""
    if not hasattr(auth, "kubeconfig"):  # a pod's service account: kr8s writes no files
        return
    users = [user["user"] for user in auth.kubeconfig.users]
    clusters = [cluster["cluster"] for cluster in auth.kubeconfig.clusters]
    own = {str(value) for part in (*users, *clusters) for value in part.values()}
    for copy in (auth.client_key_file, auth.client_cert_file, auth.server_ca_file):
        if copy and str(copy) not in own and Path(copy).parent == Path(tempfile.gettempdir()):
            Path(copy).unlink(missing_ok=True)


def _what(manifest: Object) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"
