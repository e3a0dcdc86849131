"""The tone of a job's state, in reports and on the web page."""

from __future__ import annotations

from typing import Literal, TypeAlias

Tone: TypeAlias = Literal["good", "warning", "bad", "neutral"]

# The class of a state's colour.
TONES: dict[str, Tone] = {
    "submitted": "neutral",
    "running": "neutral",
    "succeeded": "good",
    "partial": "warning",
    "interrupted": "warning",
    "cancelled": "warning",
    "failed": "bad",
    "unreadable": "bad",
}


def tone_of(state: str, n_simulations: int | None, n_failed: int | None) -> Tone:
    """Return the tone of a job: that of its state, or bad if it has finished and every simulation failed."""
    return "bad" if state == "partial" and n_simulations and n_failed == n_simulations else TONES[state]
