"""Serves the pages until Ctrl-C: to this machine alone, or to everyone whom a proxy in front lets in."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time

import uvicorn

from mops.errors import UsageError
from mops.storage.files import Files
from mops.system.every_address import every_address
from mops.ui.access import Access
from mops.ui.app import Site, application

ADDRESS = "127.0.0.1"
_END_SECONDS = 2


class WebPage:
    """The pages of a storage on a port of this machine; 0: any free one. UsageError: the port is not available."""

    # ``local``: jobs run on this machine even when connected to a service. ``behind_login``: serve other machines too,
    # without a token.
    def __init__(self, files: Files, port: int, *, local: bool, read_only: bool, behind_login: bool = False):
        # Every address only where a proxy in front asks who they are.
        address = every_address() if behind_login else ADDRESS
        self._socket = _bound(address, port)
        access = Access(self._socket.getsockname()[1], read_only, behind_login)
        shown = f"[{address}]" if ":" in address else address
        self.url = f"http://{shown}:{access.port}/{'' if behind_login else f'?token={access.token}'}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(Site(files, access, local)),
                access_log=False,  # it would contain the token
                log_level="warning",
                lifespan="off",
                timeout_graceful_shutdown=_END_SECONDS,
                server_header=False,
            )
        )

    def serve(self) -> None:
        """Serve until Ctrl-C or SIGTERM."""
        # Not `uvicorn.Server.run`, whose end waits for all threads: one may wait for a storage that does not answer.
        with self._socket:
            asyncio.new_event_loop().run_until_complete(self._server.serve(sockets=[self._socket]))

    @staticmethod
    def has_ended() -> bool:
        """Tell whether no thread still reads the storage, after a short wait."""
        until = time.monotonic() + _END_SECONDS
        others = [one for one in threading.enumerate() if one is not threading.current_thread() and not one.daemon]
        for one in others:
            one.join(max(until - time.monotonic(), 0.0))
        return not any(one.is_alive() for one in others)


def _bound(address: str, port: int) -> socket.socket:
    both = ":" in address
    try:
        # It listens at once, so that a browser that comes before the server starts waits for it.
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server((address, port), family=family, dualstack_ipv6=both)
    except OSError as refused:
        what = "is in use" if refused.errno == errno.EADDRINUSE else f"cannot be used: {refused.strerror}"
        raise UsageError(f"port {port} {what}", where=address, hint="use any free port: --port 0") from refused
