"""Turns requests to Google Cloud Storage into requests to the server for S3: no emulator has conditional creates.

Google's XML requests are those of S3, except for the header that makes a create conditional. The tests show the
requests of mops, and how it reads answers. Google Cloud itself may answer differently.
"""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from urllib.parse import quote, unquote

import s3_server

from s3_requests import CLIENT

CREATE = {"x-goog-if-generation-match": "0"}  # only if there is no such object
_PASSED_ON = ("content-type", "content-length", "range")
_NOT_PASSED_BACK = ("connection", "transfer-encoding", "date", "server")


def environment(port: int) -> dict[str, str]:
    """Return the variables with which mops finds the server."""
    return {"GOOGLE_BASE_URL": f"http://127.0.0.1:{port}", "GOOGLE_BEARER_TOKEN": "test"}


class Proxy:
    """Answers as the server for S3 does, for :func:`servers.serving`."""

    def __init__(self, s3_port: int):
        self._s3 = f"http://127.0.0.1:{s3_port}"

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        given = {name.lower(): value for name, value in handler.headers.items()}
        headers = {name: given[name] for name in _PASSED_ON if name in given}
        if CREATE.items() <= given.items():
            headers["if-none-match"] = "*"
        body = handler.rfile.read(int(given.get("content-length", 0)))
        path, _, query = handler.path.partition("?")
        url = f"{self._s3}{quote(unquote(path))}?{query}"  # the client also encodes / and -
        answer = CLIENT.request(handler.command, url, headers=headers, content=body, auth=s3_server.SIGNED)
        handler.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name not in _NOT_PASSED_BACK:
                handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(answer.content)
