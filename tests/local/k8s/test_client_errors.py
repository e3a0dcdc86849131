"""mops translates every error of kr8s and its libraries into its own error with a hint; no cluster is needed."""

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
from mops.k8s.errors import translated

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
    """Create an error in the same way as the library."""
    response = httpx.Response(503, request=REQUEST, text="overloaded")
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
    """The tests below enumerate at least one error per library."""
    assert {kr8s.ServerError, kr8s.NotFoundError, kr8s.APITimeoutError, httpx.ConnectError} <= set(FOREIGN)
    assert len(FOREIGN) > 20


def test_every_foreign_error_is_translated(subtests: pytest.Subtests) -> None:
    for kind in FOREIGN:
        with subtests.test(str(kind)):
            with pytest.raises(ServiceError) as raised, translated("somewhere"):
                raise an(kind)
            assert raised.value.where == "somewhere"
            assert raised.value.hint
            assert raised.value.exit_code == 4


def test_mops_errors_pass_through_unchanged() -> None:
    for error in (ValueError("a bug"), KeyError("a bug"), UsageError("ours"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as raised, translated("somewhere"):
            raise error
        assert raised.value is error


def refusal(code: int, message: str = "no") -> kr8s.ServerError:
    return kr8s.ServerError("?", response=httpx.Response(code, request=REQUEST, json={"message": message}))


def test_a_refusal_keeps_the_text_of_the_api_server(subtests: pytest.Subtests) -> None:
    for code, kind, what in [
        (400, ServiceError, "Kubernetes answered 400: no"),
        (401, ServiceError, "Kubernetes rejected your credentials (401): no"),
        (403, ServiceError, "Kubernetes does not allow this (403): no"),
        (404, ServiceError, "Kubernetes answered 404: no"),
        (409, ServiceError, "no"),
        (422, ServiceError, "Kubernetes answered 422: no"),
        (429, ServiceError, "Kubernetes answered 429: no"),
        (500, ServiceError, "Kubernetes answered 500: no"),
    ]:
        with subtests.test(str((code, kind, what))):
            with pytest.raises(kind) as raised, translated("somewhere"):
                raise refusal(code)
            assert type(raised.value) is kind
            assert raised.value.what == what


@pytest.mark.parametrize("code", [400, 422])
@pytest.mark.parametrize(("kind", "expected"), [("Job", UsageError), ("DaskCluster", ServiceError)])
def test_only_for_a_job_does_kubernetes_refuse_an_option(
    monkeypatch: pytest.MonkeyPatch, kind: str, expected: type[MopsError], code: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise refusal(code)

    monkeypatch.setattr("mops.k8s.client.object_from_spec", refuse)
    here = object.__new__(Kubernetes)
    here.where, here._api = "here", None
    with pytest.raises(expected) as raised:
        here.create({"kind": kind, "metadata": {"name": "x"}})
    assert type(raised.value) is expected


def test_a_refusal_that_does_not_come_from_kubernetes(subtests: pytest.Subtests) -> None:
    for content in [b"<html>a portal</html>", b"[1]", b"{}", b"null"]:
        refused = pytest.raises(ServiceError, match=r"Kubernetes answered 502: .")
        with subtests.test(str(content)), refused, translated("somewhere"):
            raise kr8s.ServerError("?", response=httpx.Response(502, request=REQUEST, content=content))


def test_an_error_in_a_websocket_task_is_translated_but_a_bug_is_not() -> None:
    with pytest.raises(ServiceError, match="out of reach"), translated("somewhere"):
        raise ExceptionGroup("of tasks", [httpx_ws.WebSocketNetworkError()])
    with pytest.raises(ExceptionGroup), translated("somewhere"):
        raise ExceptionGroup("of tasks", [AssertionError("a bug")])


# Real kubeconfigs


def kubeconfig(folder: Path, server: str = "https://127.0.0.1:1", user: Any = None, **fields: Any) -> Path:
    """Write a kubeconfig with a unique name, because kr8s caches connections by name."""
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
    """Return a kubeconfig user whose credentials come from a program."""
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "args": [*arguments]}}


def test_a_kubeconfig_with_a_broken_reference(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
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
    ]
    for i, (fields, said) in enumerate(cases):
        with subtests.test(said):
            (tmp_path / str(i)).mkdir()
            path = kubeconfig(tmp_path / str(i), **fields)
            with pytest.raises(UsageError, match="the kubeconfig does not lead to a cluster") as raised:
                Kubernetes(kubeconfig=str(path))
            assert said in raised.value.what
            assert raised.value.where == f"{path}, its current context"
            assert "kubectl config get-contexts" in str(raised.value.hint)


def test_a_file_that_is_not_a_kubeconfig(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text in ["", "only text", "[1, 2]", "{not: yaml: [", "kind: Config\n", "\x00"]:
        with subtests.test(text=text):
            path = tmp_path / f"kubeconfig{len(text)}"
            path.write_text(text)
            with pytest.raises(UsageError, match="the kubeconfig does not lead to a cluster"):
                Kubernetes(kubeconfig=str(path))


def test_no_kubeconfig_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: without a kubeconfig, kr8s returned the cached connection to another cluster."""
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


def test_an_unknown_host(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"at nowhere\.invalid:6443 is out of reach \(.*[Nn]ame"):
        Kubernetes(kubeconfig=str(kubeconfig(tmp_path, "https://nowhere.invalid:6443")))


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    """Regression: kr8s applies a timeout only after it has connected, so the command hung."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(ServiceError, match=r"out of reach \(no answer for 1 s\)"):
            Kubernetes(
                kubeconfig=str(kubeconfig(tmp_path, f"https://127.0.0.1:{silent.getsockname()[1]}")), timeout_s=1.0
            )
    assert time.monotonic() - began < 20


def test_an_untrusted_certificate_is_not_a_network_fault() -> None:
    """httpx reports an untrusted certificate as a ConnectError."""
    error = ssl.SSLCertVerificationError()
    error.verify_message = "self-signed"
    with (
        pytest.raises(ServiceError, match=r"the kubeconfig does not trust this Kubernetes cluster \(self-signed\)"),
        translated("x"),
    ):
        raise httpx.ConnectError("TLS") from error


# Copies of keys


class Auth:
    """The part of kr8s's authentication object that holds the copies of the keys."""

    def __init__(self, user: dict[str, str], key: object):
        self.client_key_file, self.client_cert_file, self.server_ca_file = key, None, None
        self.kubeconfig = self
        self.users = [{"name": "u", "user": user}]
        self.clusters: list[Any] = []


def test_copies_of_keys_do_not_stay_in_the_temporary_folder() -> None:
    """Regression: kr8s writes the keys of a kubeconfig into files, and each command left three of them."""
    descriptor, copy = tempfile.mkstemp()
    os.close(descriptor)
    client._remove_copies(Auth({"client-key-data": "..."}, copy))
    assert not Path(copy).exists()
    client._remove_copies(Auth({"client-key-data": "..."}, copy))  # already removed


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
    """Regression: the runner's log ended with this traceback, and `mops jobs status` shows the end of the log."""
    client._remove_copies(object())
