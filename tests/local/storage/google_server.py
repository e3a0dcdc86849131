"""A server for the requests that the client sends to Google Cloud Storage: no emulator has conditional creates.

Google's XML requests are those of S3, except for the header that makes a create conditional. This proxy renames it,
and sends the requests on to the server for S3 (moto). So it shows what mops sends and what it does with the answers,
and not what Google answers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote

import httpx
import s3_server

CREATE = {"x-goog-if-generation-match": "0"}  # only if there is no such object
_PASSED_ON = ("content-type", "content-length", "range")
_NOT_PASSED_BACK = ("connection", "transfer-encoding", "date", "server")


def environment(port: int) -> dict[str, str]:
    """Return the variables with which mops finds the server."""
    return {"GOOGLE_BASE_URL": f"http://127.0.0.1:{port}", "GOOGLE_BEARER_TOKEN": "test"}


@contextmanager
def running(s3_port: int) -> Iterator[int]:
    """Run the server on a free port of this host; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            given = {name.lower(): value for name, value in self.headers.items()}
            headers = {name: given[name] for name in _PASSED_ON if name in given} | s3_server.SIGNED
            if CREATE.items() <= given.items():
                headers["if-none-match"] = "*"
            body = self.rfile.read(int(given.get("content-length", 0)))
            path, _, query = self.path.partition("?")
            url = f"http://127.0.0.1:{s3_port}{quote(unquote(path))}?{query}"  # the client also encodes / and -
            answer = httpx.request(self.command, url, headers=headers, content=body, timeout=60)
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name not in _NOT_PASSED_BACK:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815 - the library's names

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
