"""The environment, a free port, and the result of a program that a test runs."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import Any


def environment() -> dict[str, str]:
    """Return the variables of this process without those of mops and of its tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MODELOPS_", "MOPS_"))}


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass
class Ran:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def name(self) -> str:
        """The name of the job: stdout, as a script reads it."""
        return self.out.strip()
