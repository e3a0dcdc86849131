"""What tests that run programs share: variables and a port for one, and how one ended."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import Any


def environment() -> dict[str, str]:
    """Return this process's variables without mops' own, and without those of its tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MODELOPS_", "MOPS_"))}


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
