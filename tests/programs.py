"""What tests that run programs share: a port for one, and how one ended."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def name(self) -> str:
        """The job's name, as a script reads it."""
        return self.out.strip()
