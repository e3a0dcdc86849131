"""Translates the errors of kr8s and httpx into errors of mops."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import httpx_ws
import kr8s

from mops.errors import ServiceError, UsageError
from mops.k8s.chart import ASK_FOR_RIGHTS


@contextmanager
def translated(where: str, *, has_options: bool = False) -> Iterator[None]:
    """Translate errors that kr8s and its libraries raise in the body, which sends options of the user or not."""
    try:
        yield
    except kr8s.ServerError as error:
        code = error.response.status_code if error.response is not None else 0
        raise _refused(code, _message(error), where, has_options=has_options) from error
    except httpx_ws.WebSocketUpgradeError as error:
        what = "port forwarding needs permission to get and create pods/portforward"
        message = f"{what} ({error.response.reason_phrase})"
        raise _refused(error.response.status_code, message, where) from error
    except kr8s.NotFoundError as error:
        raise ServiceError(str(error), where=where, hint="list what exists: kubectl get all") from error
    except _CONNECTION_ERRORS as error:
        raise _out_of_reach(error, where) from error
    except ExceptionGroup as group:  # a websocket that breaks in its tasks
        if not isinstance(root_cause(group), (OSError, *_CONNECTION_ERRORS)):
            raise
        raise _out_of_reach(group, where) from group


# The API server or a pod is out of reach.
_CONNECTION_ERRORS = (
    *(httpx.HTTPError, httpx.InvalidURL, httpx_ws.HTTPXWSException, TimeoutError),
    *(kr8s.APITimeoutError, kr8s.ConnectionClosedError, kr8s.ExecError),
)


def _out_of_reach(error: Exception, where: str) -> ServiceError:
    root = root_cause(error)
    if isinstance(root, ssl.SSLError):
        what = f"the kubeconfig does not trust this Kubernetes cluster ({brief(root)})"
        return ServiceError(what, where=where, hint="get a new kubeconfig")
    server = ""
    with contextlib.suppress(RuntimeError):  # some errors have no request
        server = f" at {error.request.url.netloc.decode()}" if isinstance(error, httpx.RequestError) else ""
    what = f"the Kubernetes cluster{server} is out of reach ({brief(root)})"
    return ServiceError(what, where=where, hint="check the context: kubectl cluster-info")


def root_cause(error: BaseException) -> BaseException:
    """Return the first cause of an error: libraries wrap a refused connection five times."""
    if isinstance(error, BaseExceptionGroup):
        return root_cause(error.exceptions[0])
    below = error.__cause__ or error.__context__
    return root_cause(below) if below is not None else error


def brief(error: BaseException) -> str:
    """Return an error in a few words, without memory addresses and error numbers."""
    if isinstance(error, ssl.SSLError):
        return error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason or str(error)
    if isinstance(error, OSError) and error.errno and error.strerror:
        text = os.strerror(error.errno) if error.errno > 0 else error.strerror  # name lookups have negative numbers
        return f"{text}: {error.filename}" if error.filename else text
    if isinstance(error, KeyError):
        return str(error.args[0]) if " " in str(error.args[0]) else f"there is no {error}"
    if isinstance(error, TypeError):
        return "it has the wrong structure"
    return " ".join(str(error).split()) or type(error).__name__


def _refused(code: int, message: str, where: str, *, has_options: bool = False) -> ServiceError | UsageError:
    if code == 401:
        what = f"Kubernetes rejected your credentials (401): {message}"
        return ServiceError(what, where=where, hint="log in to the cluster again")
    if code == 403:
        return ServiceError(f"Kubernetes does not allow this (403): {message}", where=where, hint=_hint_for(message))
    if code == 409:
        return ServiceError(message, where=where, hint="list the Jobs: kubectl get jobs")
    if has_options and code in (400, 422):
        hint = "correct the option that this names, or ask the cluster's operator about the chart's values"
        return UsageError(f"Kubernetes refused this: {message}", where=where, hint=hint)
    return ServiceError(f"Kubernetes answered {code}: {message}", where=where, hint=_EVENTS_HINT)


def _hint_for(refusal: str) -> str:
    """Return what helps against a 403: permissions are missing, or a quota or policy of the namespace refuses."""
    if 'User "' in refusal and " cannot " in refusal:  # as the API server words missing permissions
        return ASK_FOR_RIGHTS
    return "ask the cluster's operator about the quota or policy that this names"


_EVENTS_HINT = "look for the reason: kubectl get events"


def _message(error: kr8s.ServerError) -> str:
    """Return the API server's message; kr8s omits it for server errors."""
    if error.response is None:
        return str(error)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(error.response.json()["message"])
    return " ".join((error.response.text or str(error)).split())[:200]
