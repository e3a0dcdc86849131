"""Joins the stored log with the newer lines of the runner's sign of life."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "... (the next commit stores the lines between)"


def joined_tail(stored: Sequence[str], live: Sequence[str], n: int) -> list[str]:
    """Return the last ``n`` lines of a log. If the stored and the live lines do not meet, a line says so."""
    stored, live = list(stored), list(live)
    if not live or _contains(stored, live):
        return stored[-n:]
    # The runner stores the log with each commit, and shows its last lines more often. So the first of the live lines
    # are usually the last of the stored ones.
    overlap = next((k for k in range(min(len(live), len(stored)), 0, -1) if stored[-k:] == live[:k]), 0)
    gap = [GAP] if stored and not overlap else []
    return (stored + gap + live[overlap:])[-n:]


def _contains(lines: list[str], some: list[str]) -> bool:
    return any(lines[i : i + len(some)] == some for i in range(len(lines) - len(some), -1, -1))
