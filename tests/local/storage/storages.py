"""The storages of the tests, each with direct access to its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, urlsplit

import httpx
import pytest
import s3_server
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob import ContainerClient
from fsspec.implementations.memory import MemoryFileSystem
from tenacity import Retrying

from mops.storage.backends.base import PATIENT
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


Storage: TypeAlias = LocalStorage | MemoryStorage | AzureStorage | S3Storage


VERSITYGW = pytest.param("versitygw", marks=[pytest.mark.k8s, pytest.mark.timeout(900)])
"""A second server for S3, among the tests on Kubernetes, because it needs Go."""

KINDS = ["local", "memory", "s3", VERSITYGW, pytest.param("azure", marks=pytest.mark.azurite)]


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
