"""Servers that speak the language of S3.

moto has a virtual environment, because its libraries clash with ours. k8s/testcluster builds versitygw.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azurite import answers

from programs import free_port, installed_once
from s3_requests import Signature
from waiting import until

VERSION = "5.2.5"
S3_UP = Path(__file__).parents[3] / "k8s" / "testcluster" / "s3-up"
SIGNED = Signature("test", "test")


def environment(port: int) -> dict[str, str]:
    """Return the variables with which mops finds the server."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    return keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


def moto_program() -> Path:
    """Return the program of moto, after installing it into a cache outside the checkout if necessary."""

    def install(home: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True, timeout=120)
        pip = [home / "venv" / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"moto[s3,server]=={VERSION}"], check=True, timeout=280)

    return installed_once(f"moto-{VERSION}", install) / "venv" / "bin" / "moto_server"


def versitygw_program() -> Path:
    """Return the program versitygw, after building it if necessary, which needs Go."""
    if os.environ.get("MOPS_REQUIRE_K8S") != "1":
        pytest.skip("needs versitygw: make test-k8s builds it")
    built = subprocess.run([S3_UP, "--program"], stdout=subprocess.PIPE, text=True, check=True, timeout=800)
    return Path(built.stdout.strip())


@contextmanager
def moto(folder: Path) -> Iterator[int]:
    """Run moto on a free port of this host; yield the port."""
    port = free_port()
    with _running([moto_program(), "-H", "127.0.0.1", "-p", str(port)], port, folder):
        yield port


@contextmanager
def versitygw(folder: Path) -> Iterator[int]:
    """Run versitygw, whose buckets are folders, on a free port of this host; yield the port."""
    port = free_port()
    keys = ["--access", "test", "--secret", "test", "--quiet"]
    with _running([versitygw_program(), "--port", f"127.0.0.1:{port}", *keys, "posix", folder], port, folder):
        yield port


@contextmanager
def _running(command: list[Path | str], port: int, folder: Path) -> Iterator[None]:
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    try:
        until(lambda: server.poll() is not None or answers(port), 120, said=log.read_text)
        assert server.poll() is None, log.read_text()
        yield
    finally:
        server.terminate()
        server.wait(60)
