"""A server that speaks the language of S3: moto, in an environment of its own, as its libraries clash with ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from azurite import answers

from programs import free_port, installed_once
from waiting import until

VERSION = "5.2.5"
# The server wants to know who asks, and does not check the signature.
SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
}
CLIENT = httpx.Client(verify=False, trust_env=False, timeout=60)
"""A client for all requests, without certificates: to load them takes 20 ms."""


def environment(port: int) -> dict[str, str]:
    """Return the variables with which mops finds the server."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    return keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


def installed() -> Path:
    """Return the program, after installing it into a cache outside the checkout if necessary."""

    def install(home: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True, timeout=120)
        pip = [home / "venv" / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"moto[s3,server]=={VERSION}"], check=True, timeout=280)

    return installed_once(f"moto-{VERSION}", install) / "venv" / "bin" / "moto_server"


@contextmanager
def running(log: Path) -> Iterator[int]:
    """Run the server on a free port of this host; yield the port."""
    port = free_port()
    with log.open("wb") as output:
        command = [installed(), "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)
    try:
        until(lambda: server.poll() is not None or answers(port), 120, said=log.read_text)
        assert server.poll() is None, log.read_text()
        yield port
    finally:
        server.terminate()
        server.wait(60)
