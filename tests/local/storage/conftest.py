"""Fixtures of the storages of the tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import azurite
import google_server
import pytest
import s3_server
from azure.storage.blob import BlobServiceClient
from fsspec.implementations.memory import MemoryFileSystem
from servers import serving
from storages import KINDS, AzureStorage, LocalStorage, MemoryStorage, S3Storage, Storage, Time

from mops.storage.files import Files
from s3_requests import CLIENT


@pytest.fixture(scope="session")
def azurite_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    try:
        with azurite.running(tmp_path_factory.mktemp("azurite") / "azurite.log") as port:
            yield port
    except azurite.NoAzuriteError as missing:
        if azurite.required():
            raise
        pytest.skip(str(missing))


@pytest.fixture
def azure(azurite_port: int, monkeypatch: pytest.MonkeyPatch) -> AzureStorage:
    """Return a prefix in a new container."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string(azurite_port))
    service = BlobServiceClient.from_connection_string(azurite.connection_string(azurite_port))
    name = f"test-{uuid.uuid4().hex}"
    return AzureStorage(f"abfs://{name}/some/prefix", service.create_container(name), azurite_port)


@pytest.fixture(scope="session")
def s3_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3_server.moto(tmp_path_factory.mktemp("moto")) as port:
        yield port


@pytest.fixture
def s3(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> S3Storage:
    """Return a prefix in a new bucket of moto."""
    return _in_new_bucket(s3_port, monkeypatch)


@pytest.fixture(scope="session")
def versitygw_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3_server.versitygw(tmp_path_factory.mktemp("versitygw")) as port:
        yield port


@pytest.fixture
def versitygw(versitygw_port: int, monkeypatch: pytest.MonkeyPatch) -> S3Storage:
    """Return a prefix in a new bucket of versitygw."""
    return _in_new_bucket(versitygw_port, monkeypatch)


def _in_new_bucket(port: int, monkeypatch: pytest.MonkeyPatch) -> S3Storage:
    for name, value in s3_server.environment(port).items():
        monkeypatch.setenv(name, value)
    name = f"test-{uuid.uuid4().hex}"
    CLIENT.put(f"http://127.0.0.1:{port}/{name}", auth=s3_server.SIGNED).raise_for_status()
    return S3Storage(f"s3://{name}/some/prefix", port)


@pytest.fixture(scope="session")
def google_port(s3_port: int) -> Iterator[int]:
    with serving(google_server.Proxy(s3_port)) as port:
        yield port


@pytest.fixture
def google(s3: S3Storage, google_port: int, monkeypatch: pytest.MonkeyPatch) -> S3Storage:
    """Return a prefix in a new bucket, as mops sees one of Google Cloud."""
    for name, value in google_server.environment(google_port).items():
        monkeypatch.setenv(name, value)
    for name in s3_server.environment(1):
        monkeypatch.delenv(name)
    return S3Storage(s3.url.replace("s3://", "gs://"), s3.port)


@pytest.fixture
def local(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "storage"))


@pytest.fixture(scope="module", autouse=True)
def _empty_memory() -> Iterator[None]:
    """Remove what the tests of a file leave in memory: each listing reads the names of all files there."""
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def memory() -> MemoryStorage:
    return MemoryStorage(f"memory://{uuid.uuid4().hex}/prefix")


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest) -> Storage:
    """Return each storage in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def files(storage: Storage) -> Files:
    return Files.open(storage.url)


@pytest.fixture
def clock() -> Time:
    return Time()
