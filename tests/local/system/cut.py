"""A proxy whose connections a test can cut, as a network fault does; both ends stay alive."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Cut:
    """Forwards connections from :attr:`port` to another port."""

    def __init__(self, to: int):
        self._to = to
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                here, _ = self._listening.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", self._to))
                except OSError:  # the port is not open yet: the client may retry
                    here.close()
                    continue
                self._open += [here, there]
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()

    def cut(self) -> None:
        """Close every open connection."""
        cut, self._open = self._open, []
        for one in cut:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        """Accept no further connection, and close the open ones."""
        self._listening.close()
        self.cut()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


@contextmanager
def way_to(port: int) -> Iterator[Cut]:
    """Yield a proxy for a port of this machine."""
    way = Cut(port)
    try:
        yield way
    finally:
        way.close()
