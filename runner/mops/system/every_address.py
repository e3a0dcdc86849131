"""The address at which a server of a pod listens, so that IPv4 and IPv6 reach it."""

from __future__ import annotations

import socket


def every_address() -> str:
    """Return the address of all addresses of this machine: of both families, or of IPv4 if it has no IPv6."""
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - who may connect is for network policies
