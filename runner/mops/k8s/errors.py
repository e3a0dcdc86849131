"""What the errors of kr8s and httpx mean, as errors of mops."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import httpx_ws
import kr8s

from mops.errors import ServiceError


class AlreadyThere(ServiceError):
    """There is an object of this name."""


class Forbidden(ServiceError):
    """The person may not do what was asked for."""


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Translate the errors of kr8s, and of what it stands on, in the body.

    Raises
    ------
    AlreadyThere, Forbidden, ServiceError
    """
    try:
        yield
    except kr8s.ServerError as error:
        raise _refused(_code(error), _message(error), where) from error
    except httpx_ws.WebSocketUpgradeError as error:
        said = f"to forward a port takes the right to get and create pods/portforward ({error.response.reason_phrase})"
        raise _refused(error.response.status_code, said, where) from error
    except kr8s.NotFoundError as error:
        raise ServiceError(str(error), where=where, hint="look: kubectl get all") from error
    except _ON_THE_WAY as error:
        raise _out_of_reach(error, where) from error
    except ExceptionGroup as group:  # what breaks a websocket in its own tasks
        if not isinstance(root_cause(group), (OSError, *_ON_THE_WAY)):
            raise
        raise _out_of_reach(group, where) from group


_ON_THE_WAY = (
    *(httpx.HTTPError, httpx.InvalidURL, httpx_ws.HTTPXWSException, TimeoutError),
    *(kr8s.APITimeoutError, kr8s.ConnectionClosedError, kr8s.ExecError),
)
"""What says that the API server, or a pod, is not reached, or not any more."""


def _out_of_reach(error: Exception, where: str) -> ServiceError:
    root = root_cause(error)
    if isinstance(root, ssl.SSLError):
        return ServiceError(
            f"the Kubernetes cluster is not the one that the kubeconfig trusts ({brief(root)})",
            where=where,
            hint="fetch a new kubeconfig",
        )
    return ServiceError(
        f"the Kubernetes cluster{_server(error)} is out of reach ({brief(root)})",
        where=where,
        hint="look: kubectl cluster-info; is it another context? mops connect --context",
    )


def _server(error: Exception) -> str:
    with contextlib.suppress(RuntimeError):  # not every one knows its request
        return f" at {error.request.url.netloc.decode()}" if isinstance(error, httpx.RequestError) else ""
    return ""


def root_cause(error: BaseException) -> BaseException:
    """Return what an error came from: a refused connection is wrapped five times."""
    if isinstance(error, BaseExceptionGroup):
        return root_cause(error.exceptions[0])
    below = error.__cause__ or error.__context__
    return root_cause(below) if below is not None else error


def brief(error: BaseException) -> str:
    """Return an error in few words, without addresses of memory and numbers of errors."""
    if isinstance(error, ssl.SSLError):
        return error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason or str(error)
    if isinstance(error, OSError) and error.errno and error.strerror:
        said = os.strerror(error.errno) if error.errno > 0 else error.strerror  # those of names have numbers below 0
        return f"{said}: {error.filename}" if error.filename else said
    if isinstance(error, KeyError):
        return str(error.args[0]) if " " in str(error.args[0]) else f"there is no {error}"
    if isinstance(error, TypeError):
        return "it is not written as one"
    return " ".join(str(error).split()) or type(error).__name__


def _refused(code: int, message: str, where: str) -> ServiceError:
    """Return what a refusal of the API server means for who asked."""
    if code == 401:
        return ServiceError("Kubernetes does not know you", where=where, hint=f"log in anew; it says: {message}")
    if code == 403:
        hint = "ask the cluster's operator to add you to clients.subjects of the chart's values"
        return Forbidden(f"you may not do this: {message}", where=where, hint=hint)
    if code == 409:
        return AlreadyThere(message, where=where, hint="look: kubectl get jobs")
    if code in (400, 422):
        return ServiceError(f"Kubernetes refuses: {message}", where=where, hint="look: kubectl get events")
    return ServiceError(f"Kubernetes answers {code}: {message}", where=where, hint="look: kubectl get events")


def _code(error: kr8s.ServerError) -> int:
    return error.response.status_code if error.response is not None else 0


def _message(error: kr8s.ServerError) -> str:
    """Return what the API server says; kr8s leaves it out where the server is at fault."""
    if error.response is None:
        return str(error)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(error.response.json()["message"])
    return " ".join((error.response.text or str(error)).split())[:200]
