"""Every error of kr8s, and of what it stands on, becomes one of ours, with what to do; no cluster is needed."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx_ws
import kr8s
import pytest
import yaml

from mops.errors import MopsError, ServiceError, UsageError
from mops.k8s import client
from mops.k8s.client import Kubernetes
from mops.k8s.errors import AlreadyThere, Forbidden, translated

REQUEST = httpx.Request("GET", "https://kubernetes.test:6443/version")


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for below in kind.__subclasses__():
        yield from subclasses(below)


def defined_by(module: Any) -> list[type[Exception]]:
    found = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Exception)]
    return sorted({one for one in found if one.__module__.startswith(module.__name__)}, key=lambda one: one.__name__)


FOREIGN = [
    *defined_by(kr8s),
    *sorted(set(subclasses(httpx.HTTPError)), key=lambda one: one.__name__),
    httpx.InvalidURL,
    *sorted(set(subclasses(httpx_ws.HTTPXWSException)), key=lambda one: one.__name__),
]


def an(kind: type[Exception]) -> Exception:
    """Make an error as the library does."""
    response = httpx.Response(503, request=REQUEST, text="try again later")
    if kind is kr8s.ServerError:
        return kr8s.ServerError("down", response=response)
    if kind is httpx.HTTPStatusError:
        return httpx.HTTPStatusError("down", request=REQUEST, response=response)
    if kind is httpx_ws.WebSocketUpgradeError:
        return httpx_ws.WebSocketUpgradeError(response)
    if kind in (httpx_ws.WebSocketInvalidTypeReceived, httpx_ws.WebSocketDisconnect):
        return kind.__new__(kind)
    return kind() if kind is httpx_ws.WebSocketNetworkError else kind("down")


def test_the_libraries_define_errors() -> None:
    """What is enumerated below is not nothing."""
    assert {kr8s.ServerError, kr8s.NotFoundError, kr8s.APITimeoutError, httpx.ConnectError} <= set(FOREIGN)
    assert len(FOREIGN) > 20


@pytest.mark.parametrize("kind", FOREIGN, ids=lambda kind: kind.__name__)
def test_every_foreign_error_is_translated(kind: type[Exception]) -> None:
    with pytest.raises(ServiceError) as raised, translated("somewhere"):
        raise an(kind)
    assert raised.value.where == "somewhere"
    assert raised.value.hint
    assert raised.value.exit_code == 4


def test_errors_of_our_own_are_not_touched() -> None:
    for error in (ValueError("a bug"), KeyError("a bug"), UsageError("ours"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as raised, translated("somewhere"):
            raise error
        assert raised.value is error


def refusal(code: int, message: str = "no") -> kr8s.ServerError:
    return kr8s.ServerError("?", response=httpx.Response(code, request=REQUEST, json={"message": message}))


@pytest.mark.parametrize(
    ("code", "kind", "what"),
    [
        (400, ServiceError, "Kubernetes refused this: no"),
        (401, ServiceError, "Kubernetes rejected your credentials (401): no"),
        (403, Forbidden, "Kubernetes does not allow this (403): no"),
        (404, ServiceError, "Kubernetes answered 404: no"),
        (409, AlreadyThere, "no"),
        (422, ServiceError, "Kubernetes refused this: no"),
        (429, ServiceError, "Kubernetes answered 429: no"),
        (500, ServiceError, "Kubernetes answered 500: no"),
    ],
)
def test_what_the_api_server_refuses_is_said_in_its_words(code: int, kind: type[MopsError], what: str) -> None:
    with pytest.raises(kind) as raised, translated("somewhere"):
        raise refusal(code)
    assert type(raised.value) is kind
    assert raised.value.what == what


@pytest.mark.parametrize("content", [b"<html>a portal</html>", b"[1]", b"{}", b"null"])
def test_a_refusal_by_something_else_than_kubernetes(content: bytes) -> None:
    with pytest.raises(ServiceError, match=r"Kubernetes answered 502: ."), translated("somewhere"):
        raise kr8s.ServerError("?", response=httpx.Response(502, request=REQUEST, content=content))


def test_a_websocket_that_breaks_in_its_own_tasks_is_translated_and_a_bug_there_is_not() -> None:
    with pytest.raises(ServiceError, match="out of reach"), translated("somewhere"):
        raise ExceptionGroup("of tasks", [httpx_ws.WebSocketNetworkError()])
    with pytest.raises(ExceptionGroup), translated("somewhere"):
        raise ExceptionGroup("of tasks", [AssertionError("a bug")])


# Real kubeconfigs


def kubeconfig(folder: Path, server: str = "https://127.0.0.1:1", user: Any = None, **fields: Any) -> Path:
    """Write a kubeconfig; each has a name of its own, because kr8s keeps what it has connected to."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {}}],
        **fields,
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump({name: value for name, value in content.items() if value is not ...}))
    return path


def plugin(command: str, *arguments: str) -> dict[str, Any]:
    """A user whose credentials a program prints."""
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "args": [*arguments]}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"contexts": [{"name": "here", "context": {"cluster": "other", "user": "u"}}]}, "Cluster other not found"),
        ({"contexts": [{"name": "here", "context": {"cluster": "c", "user": "other"}}]}, "User other not found"),
        ({"current-context": "gone"}, "Context gone not found"),
        ({"current-context": ...}, "there is no 'current-context'"),
        ({"user": plugin("no-such-plugin")}, "no-such-plugin"),
        ({"user": plugin("false")}, "non-zero code 1"),
        ({"user": plugin("echo", "{}")}, "there is no 'status'"),
        ({"user": {"client-key": "/nowhere", "client-certificate": "/nowhere"}}, "No such file or directory"),
        ({"user": {"client-key-data": "aGk=", "client-certificate-data": "aGk="}}, "PEM"),
        ({"server": "https://127.0.0.1:99999"}, "port"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_kubeconfig_that_leads_nowhere(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    path = kubeconfig(tmp_path, **fields)
    with pytest.raises(UsageError, match="the kubeconfig does not lead to a cluster") as raised:
        Kubernetes(kubeconfig=str(path))
    assert said in raised.value.what
    assert raised.value.where == f"{path}, its current context"
    assert "kubectl config get-contexts" in str(raised.value.hint)


@pytest.mark.parametrize("text", ["", "only text", "[1, 2]", "{not: yaml: [", "kind: Config\n", "\x00"])
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(UsageError, match="the kubeconfig does not lead to a cluster"):
        Kubernetes(kubeconfig=str(path))


def test_no_kubeconfig_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kr8s gave who named none the connection to another cluster that the process had already."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="Unable to find valid credentials") as raised:
        Kubernetes()
    assert raised.value.where == f"{tmp_path / 'nothing'}, its current context"
    with pytest.raises(UsageError):
        Kubernetes(kubeconfig=str(tmp_path))  # a folder


def test_an_unknown_context(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path)
    with pytest.raises(UsageError, match="Context elsewhere not found") as raised:
        Kubernetes(kubeconfig=str(path), context="elsewhere")
    assert raised.value.where == f"{path}, context elsewhere"


def test_a_closed_port(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening
        where = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ServiceError) as raised:
            Kubernetes(kubeconfig=str(kubeconfig(tmp_path, f"https://{where}")))
    assert raised.value.what == f"the Kubernetes cluster at {where} is out of reach (Connection refused)"
    assert "kubectl cluster-info" in str(raised.value.hint)


def test_a_host_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"at nowhere\.invalid:6443 is out of reach \(.*[Nn]ame"):
        Kubernetes(kubeconfig=str(kubeconfig(tmp_path, "https://nowhere.invalid:6443")))


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    """kr8s takes a time limit only when it is connected, and waited for ever."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(ServiceError, match=r"out of reach \(no answer for 1 s\)"):
            Kubernetes(
                kubeconfig=str(kubeconfig(tmp_path, f"https://127.0.0.1:{silent.getsockname()[1]}")), timeout_s=1.0
            )
    assert time.monotonic() - began < 20


def test_a_certificate_that_is_not_trusted_is_not_a_network_fault() -> None:
    """httpx calls it a ConnectError."""
    error = ssl.SSLCertVerificationError()
    error.verify_message = "self-signed"
    with (
        pytest.raises(ServiceError, match=r"the kubeconfig does not trust this Kubernetes cluster \(self-signed\)"),
        translated("x"),
    ):
        raise httpx.ConnectError("TLS") from error


# Copies of keys


class Auth:
    """What kr8s keeps of a kubeconfig."""

    def __init__(self, user: dict[str, str], key: object):
        self.client_key_file, self.client_cert_file, self.server_ca_file = key, None, None
        self.kubeconfig = self
        self.users = [{"name": "u", "user": user}]
        self.clusters: list[Any] = []


def test_copies_of_keys_do_not_stay_in_the_temporary_folder() -> None:
    """kr8s writes the keys of a kubeconfig into files, and left three of them behind with every command."""
    descriptor, copy = tempfile.mkstemp()
    os.close(descriptor)
    client._remove_copies(Auth({"client-key-data": "..."}, copy))
    assert not Path(copy).exists()
    client._remove_copies(Auth({"client-key-data": "..."}, copy))  # it is gone already


def test_files_that_a_kubeconfig_names_stay(tmp_path: Path) -> None:
    descriptor, mine = tempfile.mkstemp()
    os.close(descriptor)
    client._remove_copies(Auth({"client-key": mine}, mine))
    assert Path(mine).exists()
    Path(mine).unlink()
    (tmp_path / "key").touch()
    client._remove_copies(Auth({}, tmp_path / "key"))
    assert (tmp_path / "key").exists()


def test_a_service_account_has_no_kubeconfig_to_copy_from() -> None:
    """A runner's last words were the traceback of this, and `mops jobs status` shows last words."""
    client._remove_copies(object())
