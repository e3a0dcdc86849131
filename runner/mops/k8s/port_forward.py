"""A port of this machine that leads into the cluster: TCP connections here become byte streams there.

Who opens such a stream, and in which words it is spoken, is client.py's.
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

HOST = "127.0.0.1"  # nobody else on the network is to come in by it
_PIECE = 1 << 16


class Stream(Protocol):
    """One connection into the cluster."""

    async def send(self, data: bytes) -> None:
        """Send bytes; ConnectionError: it has ended."""

    async def receive(self) -> bytes:
        """Return the next bytes; ConnectionError: it has ended."""


class Forward:
    """Listens on this machine, and opens a stream for each connection.

    Parameters
    ----------
    connect
        Opens a stream; its errors are of mops.
    on_fault
        Told why a connection could not be made, or broke; in a thread of its own.
    """

    def __init__(
        self, connect: Callable[[], AbstractAsyncContextManager[Stream]], on_fault: Callable[[MopsError], None]
    ):
        self._connect, self._on_fault = connect, on_fault
        self._connections: set[asyncio.Task[Any]] = set()

    @contextmanager
    def serve(self, port: int) -> Iterator[str]:
        """Serve while in the body; yield where: host and port.

        Parameters
        ----------
        port
            0: any that is free.

        Raises
        ------
        UsageError
            The port cannot be had.
        MopsError
            As ``connect`` raises: one stream is opened before the body, so that who may not hears so at once.
        """
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
            taken = refused.errno == errno.EADDRINUSE
            raise UsageError(
                f"port {port} of this machine {'is in use' if taken else f'cannot be had ({refused.strerror})'}",
                where=f"{HOST}:{port}",
                hint="choose another one with --port",
            ) from refused

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A coroutine here would be a task of asyncio's, which in Python 3.11 logs a traceback when it is cancelled.
        connection = asyncio.ensure_future(self._carry(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry the bytes of one connection, both ways, until either side ends it."""
        try:
            async with self._connect() as stream:
                await _until_one_ends(_there(reader, stream), _back(stream, writer))
        except MopsError as fault:
            self._on_fault(fault)
        finally:
            writer.close()


async def _there(reader: asyncio.StreamReader, stream: Stream) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_PIECE):
            await stream.send(data)


async def _back(stream: Stream, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(await stream.receive())
            await writer.drain()


async def _until_one_ends(*ways: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end
