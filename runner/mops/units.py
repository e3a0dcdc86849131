"""Writes bytes, seconds, counts and foreign texts for people. Child processes import this: standard library only."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime

_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, movements of the cursor
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # titles, links
    r"|\x1b[ -/]*[0-~]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# What differs between messages with one reason, and what to write instead: patterns for RE2 and for ``re``. The order
# counts: an id has digits.
VARYING = (
    (r"\b0x[0-9a-fA-F]+\b", "#"),
    (r"\b[0-9a-f]{8}(-?[0-9a-f]{4,})*\b", "#"),
    (r"/[^\s'\":,;()]+/", "/"),
    (r"[-+]?\d[\d.,]*([eE][-+]?\d+)?( [KMG]?i?B\b)?", "#"),
    (r"#(\.?#)+", "#"),
)


def bytes_text(n_bytes: int) -> str:
    """Return bytes with a unit: ``1.5 GiB``."""
    if n_bytes >= 1 << 30:
        return f"{n_bytes / 2**30:,.1f} GiB"
    if n_bytes >= 1 << 20:
        return f"{n_bytes / 2**20:,.0f} MiB"
    return f"{n_bytes / 2**10:.0f} KiB" if n_bytes >= 1 << 10 else f"{n_bytes} B"


def mebibytes(n_bytes: int) -> str:
    """Return bytes in MiB with a decimal, to compare a size with its limit: ``200.1 MiB``."""
    return f"{n_bytes / 2**20:,.1f} MiB"


def moment(iso: str) -> str:
    """Return a moment (ISO 8601 with its zone) in local time: ``2026-01-31 09:30``."""
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M}"


def duration(seconds: float) -> str:
    """Return seconds with a unit: ``7.3 s``, ``2 min 05 s``, ``3 h 07 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def age(seconds: float) -> str:
    """Return a time with its largest unit: ``45 days``, ``7 hours``, ``12 minutes``."""
    for length, unit in ((86400, "day"), (3600, "hour")):
        if seconds >= length:
            return counted(int(seconds // length), unit)
    return counted(max(int(seconds // 60), 0), "minute")


def rate(per_second: float) -> str:
    """Return a rate: ``1,200/s``, ``2.5/s``, ``1.2/min``, ``36/h``."""
    if per_second <= 0:
        return "0/s"
    if per_second >= 0.1:
        value, unit = per_second, "s"
    elif per_second >= 1 / 60:
        value, unit = per_second * 60, "min"
    else:
        value, unit = per_second * 3600, "h"
    return f"{value:,.0f}/{unit}" if value >= 10 else f"{value:.{1 if value >= 0.1 else 3}f}/{unit}"


def to_go(seconds: float | None, n_slow: int = 0) -> str:
    """Return how long a job will still take: ``3 min 05 s to go``; empty: unknown, or nothing is left."""
    # ``seconds``: without the ``n_slow`` simulations that run much longer than others
    waits = f"waits for {counted(n_slow, 'slow simulation')}" if n_slow else ""
    if not seconds:
        return waits
    return f"{duration(seconds)} to go{', then ' if waits else ''}{waits}"


def counted(n: int, what: str) -> str:
    """Return a number of things: ``1 row``, ``2 rows``."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def listed(names: Sequence[object], most: int) -> str:
    """Return the first names as one text, and the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def number(value: float) -> str:
    """Return an estimate with three digits: ``0.012``, ``1.50``, ``22,400,000``, ``1.2e-07``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def printable(text: str) -> str:
    """Return text without escape sequences and control characters, except tabs and ends of lines."""
    if not _CONTROL.search(text):
        return text
    lines = _ESCAPE_SEQUENCE.sub("", text).split("\n")
    # Of a line that a carriage return overwrites, such as a progress bar, the last state stays.
    return _CONTROL.sub("", "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))


def without_varying(text: str) -> str:
    """Return a text without its numbers, sizes, ids, addresses and folders: texts that differ in those are equal."""
    for pattern, instead in VARYING:
        text = re.sub(pattern, instead, text, flags=re.ASCII)
    return text


def shortened(text: str, columns: int) -> str:
    """Return a text of at most this many columns; a longer one is cut after a word and ends with ``...``."""
    if len(text) <= columns:
        return text
    head = text[: columns - 2]
    return f"{head[: head.rfind(' ')]}..."  # without a space -1: all but the last character


def shortened_in_middle(text: str, most: int) -> str:
    """Return a text of at most this many characters; a longer one keeps both ends."""
    if len(text) <= most:
        return text
    mark = f" [... of {len(text):,} characters ...] "
    tail = (most - len(mark)) // 2
    return f"{text[: most - len(mark) - tail]}{mark}{text[-tail:]}"
