"""A real Azure Blob server for tests: Azurite from npm, installed once into a cache outside the checkout."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from programs import free_port, installed_from_npm
from waiting import until

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
# Published: the same for every Azurite.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class NoAzuriteError(Exception):
    """Azurite cannot be started here."""


def connection_string(port: int) -> str:
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};"


def installed() -> Path:
    """Return the program, after installing it if necessary."""
    if not shutil.which("node") or not shutil.which("npm"):
        raise NoAzuriteError("Azurite needs node 18 or newer with npm")
    try:
        return installed_from_npm("azurite", VERSION) / "dist" / "src" / "blob" / "main.js"
    except OSError as refused:
        raise NoAzuriteError(str(refused)) from refused


@contextmanager
def running(log: Path) -> Iterator[int]:
    """Run Azurite on a free port of this host; yield the port."""
    port = free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    # skipApiVersionCheck: clients announce newer versions than the emulator knows.
    options += ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    with log.open("wb") as output:
        server = subprocess.Popen(["node", str(installed()), *options], stdout=output, stderr=output, cwd=log.parent)
    try:
        _wait(port, server, log)
        yield port
    finally:
        server.terminate()
        server.wait(60)


def _wait(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    def connects() -> bool:
        if server.poll() is not None:
            raise NoAzuriteError(f"Azurite does not answer: {log.read_text()[-500:]}")
        return answers(port)

    until(connects, 120, said=log.read_text)


def answers(port: int) -> bool:
    """Tell whether a server of this host accepts connections."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def required() -> bool:
    return os.environ.get("MOPS_REQUIRE_AZURITE") == "1"
