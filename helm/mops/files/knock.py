"""Checks for ``helm test`` that a pod which is no part of the release cannot connect to the scheduler."""

import socket
import sys

host, port = sys.argv[1].rsplit(":", 1)
try:
    socket.getaddrinfo(host, port)
except OSError as error:
    sys.exit(f"error: this pod cannot look up the name {host} ({error}), so it shows nothing about network policies")
try:
    socket.create_connection((host, int(port)), timeout=10).close()
except OSError as error:
    sys.stdout.write(f"{host}:{port}: closed to other pods, as the network policies say ({error})\n")
else:
    sys.exit(
        f"error: this cluster does not enforce network policies: any pod can connect to {host}:{port}\n"
        "hint: install a network plugin that enforces them, or set networkPolicy.enabled=false to do without them"
    )
