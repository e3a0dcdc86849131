"""Writes bytes, seconds, rates and counts for people."""

from __future__ import annotations

import re
from datetime import datetime

_NUMBER = re.compile(r"\d[\d.,]*( [KMG]?i?B)?")


def bytes_text(n_bytes: int) -> str:
    """Return bytes for people: ``1.5 GiB``."""
    if n_bytes >= 1 << 30:
        return f"{n_bytes / 2**30:,.1f} GiB"
    if n_bytes >= 1 << 20:
        return f"{n_bytes / 2**20:,.0f} MiB"
    return f"{n_bytes / 2**10:.0f} KiB" if n_bytes >= 1 << 10 else f"{n_bytes} B"


def mebibytes(n_bytes: int) -> str:
    """Return bytes in MiB for people, with a decimal, as where a size is beside its limit: ``200.1 MiB``."""
    return f"{n_bytes / 2**20:,.1f} MiB"


def moment(iso: str) -> str:
    """Return a moment (ISO 8601, with its zone) as people here write it."""
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M}"


def duration(seconds: float) -> str:
    """Return seconds as people write them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def rate(per_second: float) -> str:
    """Return simulations per second as people write them."""
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"


def about(seconds: float) -> str:
    """Return roughly how long something will take: what is not known to the second is not said to the second."""
    for limit, unit_s, unit in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"about {max(round(seconds / unit_s), 1)} {unit}"
    return f"about {seconds / 86_400:.1f} days"


def counted(n: int, what: str) -> str:
    """Return a number of things."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def without_numbers(message: str) -> str:
    """Return a message with ``#`` for each number and size, so that messages that differ only in those are equal."""
    return _NUMBER.sub("#", message)
