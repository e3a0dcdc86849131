"""The storages of the tests, each with direct access to its bytes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, urlsplit

import azurite
import google_server
import httpx
import pytest
import s3_server
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob import BlobServiceClient, ContainerClient
from fsspec.implementations.memory import MemoryFileSystem
from servers import serving
from tenacity import Retrying

from mops.storage.backends.base import PATIENT
from mops.storage.files import Files
from s3_requests import CLIENT


@dataclass
class LocalStorage:
    url: str
    kind: str = "local"
    shared: bool = True  # between processes

    def bytes_at(self, path: str) -> bytes | None:
        file = Path(self.url, path)
        return file.read_bytes() if file.exists() else None

    def lay(self, path: str, data: bytes) -> None:
        file = Path(self.url, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def drop(self, path: str) -> None:
        Path(self.url, path).unlink()


@dataclass
class MemoryStorage:
    url: str
    kind: str = "memory"
    shared: bool = False

    def _path(self, path: str) -> str:
        return f"/{self.url.removeprefix('memory://')}/{path}"

    def bytes_at(self, path: str) -> bytes | None:
        found = MemoryFileSystem.store.get(self._path(path))
        return None if found is None else found.getvalue()

    def lay(self, path: str, data: bytes) -> None:
        MemoryFileSystem().pipe_file(self._path(path), data)

    def drop(self, path: str) -> None:
        MemoryFileSystem().rm_file(self._path(path))


@dataclass
class AzureStorage:
    url: str
    container: ContainerClient
    port: int
    kind: str = "azure"
    shared: bool = True

    def _key(self, path: str) -> str:
        return f"{urlsplit(self.url).path.lstrip('/')}/{path}"

    def bytes_at(self, path: str) -> bytes | None:
        try:
            return self.container.download_blob(self._key(path)).readall()
        except ResourceNotFoundError:
            return None

    def lay(self, path: str, data: bytes) -> None:
        self.container.upload_blob(self._key(path), data, overwrite=True)

    def drop(self, path: str) -> None:
        self.container.delete_blob(self._key(path))


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


@dataclass
class S3Storage:
    url: str
    port: int
    kind: str = "s3"
    shared: bool = True

    def _ask(self, verb: str, path: str, data: bytes | None = None) -> httpx.Response:
        place = f"http://127.0.0.1:{self.port}/{self.url.partition('://')[2]}/{quote(path)}"
        return CLIENT.request(verb, place, content=data, auth=s3_server.SIGNED)

    def bytes_at(self, path: str) -> bytes | None:
        found = self._ask("GET", path)
        return None if found.status_code == 404 else found.raise_for_status().content

    def lay(self, path: str, data: bytes) -> None:
        self._ask("PUT", path, data).raise_for_status()

    def drop(self, path: str) -> None:
        self._ask("DELETE", path).raise_for_status()


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


Storage: TypeAlias = LocalStorage | MemoryStorage | AzureStorage | S3Storage


VERSITYGW = pytest.param("versitygw", marks=[pytest.mark.k8s, pytest.mark.timeout(900)])
"""A second server for S3, among the tests on Kubernetes, because it needs Go."""

KINDS = ["local", "memory", "s3", VERSITYGW, pytest.param("azure", marks=pytest.mark.azurite)]


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest) -> Storage:
    """Return each storage in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def files(storage: Storage) -> Files:
    return Files.open(storage.url)


@dataclass
class Time:
    """Time that passes only in ``sleep``."""

    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def retrying(self, total_s: float = 120) -> Retrying:
        """Return mops's own way to retry, for so many seconds of this time."""
        return PATIENT.copy(sleep=self.sleep, stop=lambda call: call.idle_for + call.upcoming_sleep >= total_s)


@pytest.fixture
def clock() -> Time:
    return Time()
