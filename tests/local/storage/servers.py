"""Servers that misbehave: a proxy before the storage, and a server in place of the storage."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol


class CuttingProxy:
    """Forwards connections, and loses the answers to requests whose first line ``cut`` selects."""

    def __init__(self, port: int, cut: Callable[[bytes], bool]):
        self._port, self._cut = port, cut
        self.lost: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._port))
        with suppress(OSError), client, server, client.makefile("rb") as asked, server.makefile("rb") as answers:
            while request := _message(asked):
                server.sendall(request)
                answer = _message(answers, to_head=request.startswith(b"HEAD"))
                first = request.split(b"\r\n", 1)[0]
                if self._cut(first):
                    self.lost.append(first)
                    return  # after the request: the answer is lost
                client.sendall(answer)


def _message(stream, *, to_head: bool = False) -> bytes:
    """Read one HTTP message, with a length or chunked."""
    lines = [stream.readline()]
    while lines[-1].strip():
        lines.append(stream.readline())
    if not lines[0]:
        return b""
    headers = dict(line.lower().rstrip().split(b": ", 1) for line in lines[1:-1])
    head, body = b"".join(lines), b""
    if to_head:
        return head
    if headers.get(b"transfer-encoding") == b"chunked":
        while True:
            size = stream.readline()
            body += size + stream.read(int(size, 16) + 2)
            if int(size, 16) == 0:
                return head + body
    return head + stream.read(int(headers.get(b"content-length", 0)))


class Scripted:
    """A server that answers any request with the next answer of a script, and repeats the last answer.

    An answer is (status, headers, body), or None to close the connection.
    """

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        self.requests.append((handler.command, handler.path, dict(handler.headers)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        status, headers, body = answer
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":  # whose answer has no body: the client would read it as the next answer
            handler.wfile.write(body)


class Answering(Protocol):
    """Answers requests."""

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        """Read a request, and write the answer."""


@contextmanager
def serving(server_side: Answering) -> Iterator[int]:
    """Serve a script, or anything else that answers, on a free port; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            server_side.handle(self)

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
