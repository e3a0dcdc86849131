"""Requests to Google Cloud Storage, and what its answers mean (a scripted server)."""

from __future__ import annotations

import google_server
import pytest
from servers import Scripted, serving
from storages import Time

from mops.errors import StorageError, UsageError
from mops.storage.backends.base import Put
from mops.storage.files import Files

CREATED = (200, {"ETag": '"1"', "x-goog-generation": "1"}, b"")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in google_server.environment(1).items():
        monkeypatch.setenv(name, value)


def opened(port: int, monkeypatch: pytest.MonkeyPatch, clock: Time) -> Files:
    monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{port}")
    return Files.open("gs://bucket/prefix", retrying=clock.retrying())


def error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>said</Message></Error>".encode()


def test_a_create_asks_for_no_generation_and_is_repeated_if_the_storage_is_busy(
    monkeypatch: pytest.MonkeyPatch, clock: Time
) -> None:
    script = Scripted((429, {}, error("SlowDown")), (503, {}, b""), CREATED)
    with serving(script) as port:
        assert opened(port, monkeypatch, clock).put_new("log/1", b"x") is Put.CREATED
    sent = [({name.lower(): value for name, value in headers.items()}) for _, _, headers in script.requests]
    assert len(sent) == 3
    assert all(google_server.CREATE.items() <= headers.items() for headers in sent)


def test_an_object_that_exists_is_compared(monkeypatch: pytest.MonkeyPatch, clock: Time) -> None:
    other = (200, {"ETag": '"1"', "Last-Modified": "Sun, 29 Nov 2026 12:00:00 GMT"}, b"other")
    with serving(Scripted((412, {}, error("PreconditionFailed")), other)) as port:
        assert opened(port, monkeypatch, clock).put_new("log/1", b"x") is Put.OTHER


def test_refused_access_names_the_service_account(monkeypatch: pytest.MonkeyPatch, clock: Time) -> None:
    with serving(Scripted((403, {}, error("AccessDenied")))) as port, pytest.raises(StorageError) as caught:
        opened(port, monkeypatch, clock).put("a", b"x")
    assert "refuses access" in caught.value.what
    assert "service account" in str(caught.value.hint)
    assert clock.slept == []


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch, clock: Time) -> None:
    """Without a token, the client asks the machine for credentials, as on GKE."""
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN")
    monkeypatch.setenv("HOME", "/nowhere")  # without those of gcloud
    with serving(Scripted((404, {}, b""))) as port:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{port}")
        monkeypatch.setenv("GCE_METADATA_ROOT", f"127.0.0.1:{port}")
        with pytest.raises(StorageError, match="no usable credentials for Google Cloud") as caught:
            opened(port, monkeypatch, clock).put("a", b"x")
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(caught.value.hint)


def test_a_wrong_endpoint_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BASE_URL", "storage.example.org")
    with pytest.raises(UsageError, match="is not the URL of a storage"):
        Files.open("gs://bucket/prefix")
