"""Signed requests to a server that speaks the language of S3, made without mops and its libraries."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Generator
from datetime import UTC, datetime

import httpx

CLIENT = httpx.Client(verify=False, trust_env=False, timeout=60)
"""A client for all requests, without certificates: to load them takes 20 ms."""


class Signature(httpx.Auth):
    """Signs requests with a key, as S3 asks for it (version 4)."""

    requires_request_body = True

    def __init__(self, key: str, secret: str, region: str = "us-east-1"):
        self._key, self._secret, self._region = key, secret, region

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(request.content).hexdigest()
        headers = {"host": request.headers["host"], "x-amz-content-sha256": digest, "x-amz-date": now}
        names = ";".join(headers)
        path, _, query = request.url.raw_path.decode().partition("?")
        query = "&".join(part if "=" in part else f"{part}=" for part in sorted(query.split("&")) if part)
        lines = [f"{name}:{value}" for name, value in headers.items()]
        whole = "\n".join([request.method, path, query, *lines, "", names, digest])
        scope = f"{now[:8]}/{self._region}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(whole.encode()).hexdigest()])
        key = f"AWS4{self._secret}".encode()
        for part in [*scope.split("/"), text]:
            key = hmac.digest(key, part.encode(), "sha256")
        request.headers.update(headers)
        request.headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self._key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        )
        yield request
