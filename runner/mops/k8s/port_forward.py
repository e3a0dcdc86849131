"""Forwards a port of this machine into the cluster: each TCP connection here becomes a byte stream there.

client.py opens the streams and speaks their protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

from anyio.from_thread import start_blocking_portal

from mops.errors import MopsError, UsageError

HOST = "127.0.0.1"  # other machines must not use the port
_CHUNK_BYTES = 1 << 16


class Stream(Protocol):
    """One connection into the cluster."""

    async def send(self, data: bytes) -> None:
        """Send bytes; raise ConnectionError if the stream has ended."""

    async def receive(self) -> bytes:
        """Return the next bytes; raise ConnectionError if the stream has ended."""


class Forward:
    """Listens on this machine and opens a stream for each connection."""

    # ``on_fault`` gets each failure of a connection, in a separate thread.
    def __init__(
        self, connect: Callable[[], AbstractAsyncContextManager[Stream]], on_fault: Callable[[MopsError], None]
    ):
        self._connect, self._on_fault = connect, on_fault
        self._connections: set[asyncio.Task[Any]] = set()

    @contextmanager
    def serve(self, port: int) -> Iterator[str]:
        """Serve on the port, or any free port for 0, while the body runs; yield host and port."""
        # One stream opens before the body runs, so that missing permissions show at once.
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(self._serving(port)) as bound:
            yield f"{HOST}:{bound}"

    @asynccontextmanager
    async def _serving(self, port: int) -> AsyncIterator[int]:
        server = await self._listening(port)
        try:
            async with self._connect():
                pass
            await server.start_serving()
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _listening(self, port: int) -> asyncio.Server:
        try:
            return await asyncio.start_server(self._accept, HOST, port, start_serving=False)
        except OSError as refused:
            why = "in use" if refused.errno == errno.EADDRINUSE else f"not available ({refused.strerror})"
            what, hint = f"port {port} of this machine is {why}", "choose another port with --port"
            raise UsageError(what, where=f"{HOST}:{port}", hint=hint) from refused

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: asyncio would make the task, and in Python 3.11 log a traceback when it is cancelled.
        connection = asyncio.ensure_future(self._carry(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry the bytes of one connection in both directions until either side ends it."""
        try:
            async with self._connect() as stream:
                await _until_one_ends(_send(reader, stream), _receive(stream, writer))
        except MopsError as fault:
            self._on_fault(fault)
        finally:
            writer.close()


async def _send(reader: asyncio.StreamReader, stream: Stream) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK_BYTES):
            await stream.send(data)


async def _receive(stream: Stream, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(await stream.receive())
            await writer.drain()


async def _until_one_ends(*directions: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.ensure_future(direction) for direction in directions]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end
