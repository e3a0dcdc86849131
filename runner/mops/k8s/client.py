"""The connection to Kubernetes: the only module that imports kr8s. Its errors become ours in :func:`translated`.

Objects go in and come out as plain dictionaries, as Kubernetes writes them; what they mean is jobspec.py's and
phase.py's.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import httpx_ws
import kr8s
from kr8s.objects import ConfigMap, Event, Job, Pod, new_class, object_from_spec

from mops.errors import ServiceError, UsageError
from mops.k8s import names

_TIMEOUT_S = 20.0

Object = dict[str, Any]

_AccessReview = new_class(
    kind="SelfSubjectAccessReview", version="authorization.k8s.io/v1", namespaced=False, asyncio=False
)


class AlreadyThere(ServiceError):
    """There is an object of this name."""


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
        self.context, self.kubeconfig = context, kubeconfig
        with translated(f"context {context or '(current)'}"):
            self._api = kr8s.api(namespace=namespace, context=context, kubeconfig=kubeconfig)
            self._api.timeout = timeout_s
        self.namespace: str = self._api.namespace
        self.where = f"{self._api.auth.server}, namespace {self.namespace}"

    def version(self) -> str:
        """Return the version of Kubernetes."""
        with translated(self.where):
            return str(self._api.version()["gitVersion"])

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
            found = self._api.get(kind, namespace=self.namespace, label_selector=chosen or None, field_selector=fields)
            return [one.raw.to_dict() for one in found if not isinstance(one, dict)]

    def create(self, manifest: Object) -> Object:
        """Create an object in the namespace; return it as it is then.

        Raises
        ------
        AlreadyThere
            There is one of this name.
        ServiceError
            The cluster is out of reach, or refuses: what is missing.
        """
        what = f"{manifest['kind']} {manifest['metadata']['name']}"
        with translated(f"{self.where}: create {what}"):
            new = object_from_spec(manifest, api=self._api, allow_unknown_type=True)
            new.create()
            return dict(new.raw.to_dict())

    def delete_job(self, name: str) -> None:
        """Delete a Job, and its pods with it; one that is absent is fine."""
        with translated(f"{self.where}: delete Job {name}"), contextlib.suppress(kr8s.NotFoundError):
            self._named(Job, name).delete(propagation_policy="Background")

    def suspend(self, name: str, *, suspended: bool) -> None:
        """Suspend a Job, which ends its pod, or let it go on."""
        with translated(f"{self.where}: patch Job {name}"):
            self._named(Job, name).patch({"spec": {"suspend": suspended}})

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

    def may(self, verb: str, resource: str, group: str = "") -> bool:
        """Tell whether this person may do something in the namespace."""
        plain, _, sub = resource.partition("/")
        attributes = {"namespace": self.namespace, "verb": verb, "resource": plain, "group": group, "subresource": sub}
        with translated(f"{self.where}: ask for permissions"):
            review = _AccessReview(
                {"metadata": {"name": ""}, "spec": {"resourceAttributes": attributes}}, api=self._api
            )
            review.create()
            return bool(review.raw["status"]["allowed"])

    @contextmanager
    def forwarded(self, labels: dict[str, str], port: int, local: int | None = None) -> Iterator[int]:
        """Have a port of a running pod with these labels on this machine while in the body; yield the local port.

        Parameters
        ----------
        local
            The port here; None: any that is free.
        """
        running = [pod for pod in self.pods(labels) if pod["status"].get("phase") == "Running"]
        if not running:
            raise ServiceError(
                "no pod runs that has the port",
                where=f"{self.where}: pods with {names.selector(labels)}",
                hint="look: kubectl get pods",
            )
        with translated(f"{self.where}: forward port {port}"):
            pod = Pod(running[0], api=self._api)
            with pod.portforward(remote_port=port, local_port=local or "auto") as forwarded:
                yield int(forwarded)


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Translate the errors of kr8s, and of what it stands on, in the body.

    Raises
    ------
    UsageError, AlreadyThere, ServiceError
    """
    try:
        yield
    except kr8s.ServerError as error:
        raise _refused(error, where) from error
    except kr8s.NotFoundError as error:
        raise ServiceError(str(error), where=where, hint="look: kubectl get all") from error
    except (
        httpx.TransportError,
        httpx_ws.WebSocketDisconnect,
        kr8s.APITimeoutError,
        kr8s.ConnectionClosedError,
    ) as error:
        raise ServiceError(
            f"the Kubernetes cluster is out of reach ({_brief(error)})",
            where=where,
            hint="look: kubectl cluster-info; is it another context? mops connect --context",
        ) from error
    except ssl.SSLError as error:
        raise ServiceError(
            f"the Kubernetes cluster is not the one that the kubeconfig trusts ({error})",
            where=where,
            hint="fetch a new kubeconfig",
        ) from error
    except (FileNotFoundError, ValueError, KeyError) as error:  # what kr8s raises where a kubeconfig is not as it needs
        raise UsageError(
            f"the kubeconfig does not lead to a cluster ({_brief(error)})",
            where=where,
            hint="set KUBECONFIG, or name a context that 'kubectl config get-contexts' lists",
        ) from error


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _refused(error: kr8s.ServerError, where: str) -> ServiceError:
    """Return what a refusal of the API server means for who asked."""
    code = error.response.status_code if error.response is not None else 0
    message = _message(error)
    if code == 401:
        return ServiceError("Kubernetes does not know you", where=where, hint=f"log in anew; it says: {message}")
    if code == 403:
        hint = "ask the cluster's operator to add you to clients.subjects of the chart's values"
        return ServiceError(f"you may not do this: {message}", where=where, hint=hint)
    if code == 409:
        return AlreadyThere(message, where=where, hint="look: kubectl get jobs")
    if code in (400, 422):
        return ServiceError(f"Kubernetes refuses the object: {message}", where=where, hint="tell the chart's operator")
    return ServiceError(f"Kubernetes answers {code}: {message}", where=where, hint="look: kubectl get events")


def _message(error: kr8s.ServerError) -> str:
    status = error.status
    if isinstance(status, str):
        with contextlib.suppress(json.JSONDecodeError):
            status = json.loads(status)
    return str(status.get("message", error)) if isinstance(status, dict) else str(error)
