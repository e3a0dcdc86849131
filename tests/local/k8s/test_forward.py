"""Port forwarding: real sockets on this machine, and test streams in place of a pod."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from mops.errors import MopsError, ServiceError, UsageError
from mops.k8s.port_forward import Forward, Stream
from waiting import until

SIZE = 5 << 20


class Echo:
    """Echoes the data that it receives, and closes or fails when the data says so."""

    def __init__(self) -> None:
        self._kept: asyncio.Queue[bytes] = asyncio.Queue(4)

    async def send(self, data: bytes) -> None:
        if data == b"end":
            raise ConnectionAbortedError
        await self._kept.put(data)

    async def receive(self) -> bytes:
        data = await self._kept.get()
        if data == b"break":
            raise ServiceError("the pod has ended", where="there", hint="look")
        return data


class Elsewhere:
    """Opens streams, or refuses them."""

    def __init__(self) -> None:
        self.refuses = False
        self.opened = self.open = 0
        self.faults: list[MopsError] = []

    def connect(self) -> AbstractAsyncContextManager[Stream]:
        return self._connect()

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Stream]:
        if self.refuses:
            raise ServiceError("no pod is ready", where="there", hint="look")
        self.opened, self.open = self.opened + 1, self.open + 1
        try:
            yield Echo()
        finally:
            self.open -= 1


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere()


@pytest.fixture
def address(elsewhere: Elsewhere) -> Iterator[tuple[str, int]]:
    with Forward(elsewhere.connect, elsewhere.faults.append).serve(0) as where:
        yield parsed(where)


def parsed(where: str) -> tuple[str, int]:
    host, _, port = where.partition(":")
    return host, int(port)


def closed(connection: socket.socket) -> bool:
    connection.settimeout(30)
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_bytes_go_both_ways_in_order(address: tuple[str, int]) -> None:
    """The data is larger than all buffers on the path."""
    sent = bytes(i % 251 for i in range(SIZE))
    with socket.create_connection(address, timeout=30) as connection:
        threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
        came = bytearray()
        while len(came) < SIZE:
            came += connection.recv(1 << 20)
    assert came == sent


def test_connections_do_not_disturb_each_other(address: tuple[str, int], elsewhere: Elsewhere) -> None:
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(20)]
        for n, connection in enumerate(many):
            connection.sendall(b"%03d" % n)
        assert [connection.recv(3) for connection in reversed(many)] == [b"%03d" % n for n in range(19, -1, -1)]
    until(lambda: elsewhere.open == 0)
    assert elsewhere.faults == []


def test_a_closed_stream_closes_the_connection(address: tuple[str, int], elsewhere: Elsewhere) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"end")
        assert closed(connection)
    assert elsewhere.faults == []


def test_a_stream_error_is_reported(address: tuple[str, int], elsewhere: Elsewhere) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"break")
        assert closed(connection)
    until(lambda: elsewhere.faults)
    assert [fault.what for fault in elsewhere.faults] == ["the pod has ended"]


def test_a_new_connection_works_after_the_pod_returns(address: tuple[str, int], elsewhere: Elsewhere) -> None:
    elsewhere.refuses = True
    with socket.create_connection(address, timeout=30) as connection:
        assert closed(connection)
    until(lambda: elsewhere.faults)
    elsewhere.refuses = False
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"again")
        assert connection.recv(5) == b"again"


def test_a_refused_forward_fails_before_the_first_connection(elsewhere: Elsewhere) -> None:
    """The first connection would report the error in another thread."""
    elsewhere.refuses = True
    with (
        pytest.raises(ServiceError, match="no pod is ready"),
        Forward(elsewhere.connect, elsewhere.faults.append).serve(0),
    ):
        pytest.fail("there is nothing to serve")
    assert elsewhere.faults == []


def test_a_port_in_use(elsewhere: Elsewhere) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(UsageError, match=f"port {port} of this machine is in use") as raised,
            Forward(elsewhere.connect, elsewhere.faults.append).serve(port),
        ):
            pytest.fail("two listen on one port")
    assert raised.value.hint == "choose another port with --port"
    assert elsewhere.opened == 0


def test_closing_does_not_wait_for_open_connections(elsewhere: Elsewhere) -> None:
    """A browser keeps its connections open for minutes."""
    with Forward(elsewhere.connect, elsewhere.faults.append).serve(0) as where:
        connection = socket.create_connection(parsed(where), timeout=30)
        connection.sendall(b"here")
        assert connection.recv(4) == b"here"
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert closed(connection)
    connection.close()
    assert elsewhere.open == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(parsed(where), timeout=30)


def test_only_this_machine_can_connect(address: tuple[str, int]) -> None:
    assert address[0] == "127.0.0.1"


def test_an_error_in_the_body_is_not_translated(elsewhere: Elsewhere) -> None:
    """Regression: mops reported a KeyError of the caller as a bad kubeconfig."""
    with pytest.raises(KeyError), Forward(elsewhere.connect, elsewhere.faults.append).serve(0):
        raise KeyError("mine")
