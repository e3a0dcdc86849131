"""Counts the child processes that this process has started, and why others took their place.

One count for the process, as pools come and go with their jobs.
"""

from __future__ import annotations

import threading
from collections import Counter

HOW = ("forked", "spawned")
"""How a child process is started."""

REASONS = {"itself": "died", "silence": "silent", "start": "hung", "memory": "memory", "timeout": "timeout"}
"""Why one makes room for a fresh one, by who ended it (:class:`mops.worker.deaths.Death`)."""

WORN = ("simulations", "growth", "size", "zombies")
"""The same for those that leave between two simulations (:class:`mops.child.replacement.ReplacementPolicy`)."""

ROOM = "room"
"""One that idled, and made room for another child (:mod:`mops.worker.children`)."""

_lock = threading.Lock()
_started: Counter[str] = Counter()
_replaced: Counter[str] = Counter()


def started(how: str) -> None:
    """Count a process that was started."""
    with _lock:
        _started[how] += 1


def replaced(reason: str) -> None:
    """Count a process that made room for a fresh one."""
    with _lock:
        _replaced[reason] += 1


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """Return how many were started, by how, and how many replaced, by reason."""
    with _lock:
        return {how: _started[how] for how in HOW}, {why: _replaced[why] for why in (*WORN, *REASONS.values(), ROOM)}
